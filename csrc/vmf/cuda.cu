#include "vmf/cuda.h"

#include "common/cuda/device.h"
#include "common/cuda/grid.h"
#include "common/cuda/reduce.h"
#include "vmf/terms.h"

namespace robustdml::cuda {
namespace {

constexpr int kThreads = 256;
// Blocks of a fit that registers are kept free for. Without a number, ptxas aims higher and spills.
constexpr int kBlocks = 2;

template <VmfFunction function, int kDebye, int kSeries, class T>
__global__ void __launch_bounds__(kThreads)
    vmf_kernel(VmfOrder<T> order, const T* kappa, T* out, std::int64_t count) {
    const std::int64_t i = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) out[i] = vmf_function<function, kDebye, kSeries>(kappa[i], order);
}

// A warp takes a class: its lanes share the sum, and one of them has the iteration.
template <int kDebye, int kSeries, class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    vmf_fit_kernel(VmfClasses<T> c, VmfSphere sphere, VmfOrder<double> order) {
    const std::int64_t i = std::int64_t(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
    if (i >= c.n) return;  // a whole warp
    const T* sum = c.sums + c.row(i) * c.D;
    double square[1] = {0};
    for (std::int64_t d = threadIdx.x % kWarp; d < c.D; d += kWarp)
        square[0] += static_cast<double>(sum[d]) * static_cast<double>(sum[d]);
    reduce<kWarp>(square, Add{});
    if (threadIdx.x % kWarp != 0) return;
    const double norm = std::sqrt(square[0]), count = c.count(i);
    const VmfStart start = vmf_start(norm, count, sphere);
    double kappa = start.kappa;
    if (sphere.estimator == VmfEstimator::newton) {
        // Unrolled: around a loop all constants of the order would wait in registers.
#pragma unroll
        for (int step = 0; step < kNewtonSteps; ++step)
            kappa = vmf_newton_step<kDebye, kSeries>(kappa, start, order);
    }
    c.norm[i] = norm;
    c.kappa[i] = count > 1 ? static_cast<T>(kappa) : T(0);
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

template <class T>
void vmf_fit(const VmfClasses<T>& classes, const VmfOrder<double>& order, const VmfOrder<T>& order_of_peak,
             std::uintptr_t stream) {
    if (classes.n == 0) return;
    const VmfSphere sphere = classes.sphere();
    with_vmf_terms(order, [&](auto terms) {
        launch("vmf_fit", vmf_fit_kernel<decltype(terms)::debye, decltype(terms)::series, T>,
               blocks(classes.n, kThreads / kWarp), dim3(kThreads), stream, classes, sphere, order);
    });
    vmf(VmfFunction::peak, order_of_peak, classes.kappa, classes.log_peak, classes.n, stream);
}

template void vmf_fit<float>(const VmfClasses<float>&, const VmfOrder<double>&, const VmfOrder<float>&,
                             std::uintptr_t);
template void vmf_fit<double>(const VmfClasses<double>&, const VmfOrder<double>&, const VmfOrder<double>&,
                              std::uintptr_t);

}  // namespace robustdml::cuda
