#include "vmf/cuda.h"

#include "common/cuda/device.h"
#include "common/cuda/grid.h"
#include "vmf/terms.h"

namespace robustdml::cuda {
namespace {

constexpr int kThreads = 256;

template <VmfFunction function, int kDebye, int kSeries, class T>
__global__ void __launch_bounds__(kThreads)
    vmf_kernel(VmfOrder<T> order, const T* kappa, T* out, std::int64_t count) {
    const std::int64_t i = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) out[i] = vmf_function<function, kDebye, kSeries>(kappa[i], order);
}

}  // namespace

template <class T>
void vmf(VmfFunction function, const VmfOrder<T>& order, const T* kappa, T* out, std::int64_t count,
         std::uintptr_t stream) {
    if (count == 0) return;
    with_vmf(function, order, [&](auto constant, auto terms) {
        using Terms = decltype(terms);
        launch("vmf", vmf_kernel<decltype(constant)::value, Terms::debye, Terms::series, T>,
               blocks(count, kThreads), dim3(kThreads), stream, order, kappa, out, count);
    });
}

template void vmf<float>(VmfFunction, const VmfOrder<float>&, const float*, float*, std::int64_t,
                         std::uintptr_t);
template void vmf<double>(VmfFunction, const VmfOrder<double>&, const double*, double*, std::int64_t,
                          std::uintptr_t);

}  // namespace robustdml::cuda
