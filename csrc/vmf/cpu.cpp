#include "vmf/cpu.h"

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

}  // namespace robustdml::cpu
