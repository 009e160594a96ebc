#include "vmf/cpu.h"

#include <algorithm>
#include <cmath>

#include "common/cpu/clones.h"
#include "common/cpu/parts.h"
#include "vmf/terms.h"

namespace robustdml::cpu {
namespace {

template <class Constant, class Terms, class T>
ROBUSTDML_HD void vmf_range(Constant, Terms, const VmfOrder<T>& order, const T* kappa, T* out,
                            std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i)
        out[i] = vmf_function<Constant::value, Terms::debye, Terms::series>(kappa[i], order);
}

// target_clones takes no templates: one plain function for all that vmf_terms.h lists.
#define ROBUSTDML_STAMP(T, function, debye, series)                                                          \
    ROBUSTDML_CLONES void vmf_clone(VmfConstant<VmfFunction::function> constant,                             \
                                    VmfTerms<debye, series> terms, const VmfOrder<T>& order, const T* kappa, \
                                    T* out, std::int64_t begin, std::int64_t end) {                          \
        vmf_range(constant, terms, order, kappa, out, begin, end);                                           \
    }
#define ROBUSTDML_STAMP_TERMS(T, function, terms, few, series) \
    ROBUSTDML_STAMP(T, function, terms, series)                \
    ROBUSTDML_STAMP(T, function, terms, 8)                     \
    ROBUSTDML_STAMP(T, function, few, 8)
ROBUSTDML_STAMP_TERMS(float, log_0f1, 5, 3, 24)
ROBUSTDML_STAMP_TERMS(float, peak, 5, 3, 24)
ROBUSTDML_STAMP_TERMS(float, ratio, 5, 3, 24)
ROBUSTDML_STAMP_TERMS(float, ratio_derivative, 5, 3, 24)
ROBUSTDML_STAMP_TERMS(double, log_0f1, 10, 6, 48)
ROBUSTDML_STAMP_TERMS(double, peak, 10, 6, 48)
ROBUSTDML_STAMP_TERMS(double, log_i, 10, 6, 48)
ROBUSTDML_STAMP_TERMS(double, ratio, 10, 6, 48)
ROBUSTDML_STAMP_TERMS(double, ratio_derivative, 10, 6, 48)
#undef ROBUSTDML_STAMP_TERMS
#undef ROBUSTDML_STAMP

// Classes of which a thread has the lengths, and then the concentrations, at hand.
constexpr std::int64_t kTogether = 256;

template <class T>
ROBUSTDML_HD void norms_range(const VmfClasses<T>& c, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
        const T* sum = c.sums + c.row(i) * c.D;
        double square = 0;
#pragma omp simd reduction(+ : square)
        for (std::int64_t d = 0; d < c.D; ++d) square += double(sum[d]) * double(sum[d]);
        c.norm[i] = std::sqrt(square);
    }
}

ROBUSTDML_CLONES void norms_clone(const VmfClasses<float>& c, std::int64_t begin, std::int64_t end) {
    norms_range(c, begin, end);
}
ROBUSTDML_CLONES void norms_clone(const VmfClasses<double>& c, std::int64_t begin, std::int64_t end) {
    norms_range(c, begin, end);
}

ROBUSTDML_CLONES void start_clone(const VmfSphere& sphere, const double* norm, const double* count,
                                  VmfStart* start, double* kappa, std::int64_t n) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
        start[i] = vmf_start(norm[i], count[i], sphere);
        kappa[i] = start[i].kappa;
    }
}

// A pass for each step: what one class waits for, the next ones fill.
#define ROBUSTDML_STAMP(debye, series)                                                         \
    ROBUSTDML_CLONES void newton_clone(VmfTerms<debye, series>, const VmfOrder<double>& order, \
                                       const VmfStart* start, double* kappa, std::int64_t n) { \
        _Pragma("omp simd") for (std::int64_t i = 0; i < n; ++i) kappa[i] =                    \
            vmf_newton_step<debye, series>(kappa[i], start[i], order);                         \
    }
ROBUSTDML_STAMP(10, 48)
ROBUSTDML_STAMP(10, 8)
ROBUSTDML_STAMP(6, 8)
#undef ROBUSTDML_STAMP

}  // namespace

template <class T>
void vmf(VmfFunction function, const VmfOrder<T>& order, const T* kappa, T* out, std::int64_t count,
         int threads) {
    with_vmf(function, order, [&](auto constant, auto terms) {
        in_parts(count, threads, count > 4096, [&](std::int64_t begin, std::int64_t end) {
            vmf_clone(constant, terms, order, kappa, out, begin, end);
        });
    });
}

template void vmf<float>(VmfFunction, const VmfOrder<float>&, const float*, float*, std::int64_t, int);
template void vmf<double>(VmfFunction, const VmfOrder<double>&, const double*, double*, std::int64_t, int);

template <class T>
void vmf_fit(const VmfClasses<T>& classes, const VmfOrder<double>& order, const VmfOrder<T>& order_of_peak,
             int threads) {
    const VmfSphere sphere = classes.sphere();
    with_vmf_terms(order, [&](auto terms) {
        in_parts(classes.n, threads, classes.n * classes.D > 65536,
                 [&](std::int64_t begin, std::int64_t end) {
                     double count[kTogether], kappa[kTogether];
                     VmfStart start[kTogether];
                     for (std::int64_t first = begin; first < end; first += kTogether) {
                         const std::int64_t n = std::min(kTogether, end - first);
                         norms_clone(classes, first, first + n);
                         for (std::int64_t i = 0; i < n; ++i) count[i] = classes.count(first + i);
                         start_clone(sphere, classes.norm + first, count, start, kappa, n);
                         for (int step = 0; sphere.estimator == VmfEstimator::newton && step < kNewtonSteps;
                              ++step)
                             newton_clone(terms, order, start, kappa, n);
                         for (std::int64_t i = 0; i < n; ++i)
                             classes.kappa[first + i] = count[i] > 1 ? static_cast<T>(kappa[i]) : T(0);
                     }
                 });
    });
    vmf(VmfFunction::peak, order_of_peak, classes.kappa, classes.log_peak, classes.n, threads);
}

template void vmf_fit<float>(const VmfClasses<float>&, const VmfOrder<double>&, const VmfOrder<float>&, int);
template void vmf_fit<double>(const VmfClasses<double>&, const VmfOrder<double>&, const VmfOrder<double>&,
                              int);

}  // namespace robustdml::cpu
