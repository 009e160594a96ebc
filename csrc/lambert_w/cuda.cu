#include "lambert_w/cuda.h"

#include "common/cuda/device.h"
#include "common/cuda/grid.h"
#include "math/lambert_w.h"

namespace robustdml::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ std::int64_t place() {
    return std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
}

template <class T>
__global__ void __launch_bounds__(kThreads) lambert_w_kernel(const T* x, T* w, std::int64_t count) {
    const std::int64_t i = place();
    if (i < count) w[i] = robustdml::lambert_w<true>(x[i]).w;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    procsim_kernel(const T* losses, const T* thresholds, std::int64_t stride, T twice_lambda, T* sigma,
                   std::int64_t count) {
    const std::int64_t i = place();
    if (i < count) sigma[i] = robustdml::procsim_sigma(losses[i], thresholds[i * stride], twice_lambda);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    superloss_kernel(const T* losses, const T* taus, std::int64_t stride, T lambda, T* values, T* sigma,
                     std::int64_t count) {
    const std::int64_t i = place();
    if (i >= count) return;
    const SuperLoss<T> result = robustdml::superloss(losses[i], taus[i * stride], lambda);
    values[i] = result.value;
    sigma[i] = result.sigma;
}

}  // namespace

template <class T>
void lambert_w(const T* x, T* w, std::int64_t count, std::uintptr_t cuda_stream) {
    if (count == 0) return;
    launch("lambert_w", lambert_w_kernel<T>, blocks(count, kThreads), dim3(kThreads), cuda_stream, x, w,
           count);
}

template <class T>
void procsim_sigma(const T* losses, const T* thresholds, std::int64_t stride, T lambda, T* sigma,
                   std::int64_t count, std::uintptr_t cuda_stream) {
    if (count == 0) return;
    launch("procsim_sigma", procsim_kernel<T>, blocks(count, kThreads), dim3(kThreads), cuda_stream, losses,
           thresholds, stride, T(2) * lambda, sigma, count);
}

template <class T>
void superloss(const T* losses, const T* taus, std::int64_t stride, T lambda, T* values, T* sigma,
               std::int64_t count, std::uintptr_t cuda_stream) {
    if (count == 0) return;
    launch("superloss", superloss_kernel<T>, blocks(count, kThreads), dim3(kThreads), cuda_stream, losses,
           taus, stride, lambda, values, sigma, count);
}

#define ROBUSTDML_STAMP(T)                                                                                 \
    template void lambert_w<T>(const T*, T*, std::int64_t, std::uintptr_t);                                \
    template void procsim_sigma<T>(const T*, const T*, std::int64_t, T, T*, std::int64_t, std::uintptr_t); \
    template void superloss<T>(const T*, const T*, std::int64_t, T, T*, T*, std::int64_t, std::uintptr_t);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cuda
