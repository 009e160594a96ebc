#include "lambert_w/cpu.h"

#include "common/cpu/clones.h"
#include "common/cpu/parts.h"
#include "math/lambert_w.h"

namespace robustdml::cpu {
namespace {

template <class T>
ROBUSTDML_HD void lambert_w_loop(const T* x, T* w, std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) w[i] = robustdml::lambert_w<true>(x[i]).w;
}

// A stride known to the compiler: it loads a vector, or spreads one value.
template <int kStride, class T>
ROBUSTDML_HD void procsim_loop(const T* losses, const T* thresholds, T twice_lambda, T* sigma,
                               std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i)
        sigma[i] = robustdml::procsim_sigma(losses[i], thresholds[i * kStride], twice_lambda);
}

template <int kStride, class T>
ROBUSTDML_HD void superloss_loop(const T* losses, const T* taus, T lambda, T* values, T* sigma,
                                 std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
        const SuperLoss<T> result = robustdml::superloss(losses[i], taus[i * kStride], lambda);
        values[i] = result.value;
        sigma[i] = result.sigma;
    }
}

// target_clones takes no templates: plain functions of both types.
#define ROBUSTDML_STAMP(T)                                                                                \
    ROBUSTDML_CLONES void lambert_w_clone(const T* x, T* w, std::int64_t begin, std::int64_t end) {       \
        lambert_w_loop(x, w, begin, end);                                                                 \
    }                                                                                                     \
    ROBUSTDML_CLONES void procsim_clone(const T* losses, const T* thresholds, std::int64_t stride,        \
                                        T twice_lambda, T* sigma, std::int64_t begin, std::int64_t end) { \
        if (stride == 0)                                                                                  \
            procsim_loop<0>(losses, thresholds, twice_lambda, sigma, begin, end);                         \
        else                                                                                              \
            procsim_loop<1>(losses, thresholds, twice_lambda, sigma, begin, end);                         \
    }                                                                                                     \
    ROBUSTDML_CLONES void superloss_clone(const T* losses, const T* taus, std::int64_t stride, T lambda,  \
                                          T* values, T* sigma, std::int64_t begin, std::int64_t end) {    \
        if (stride == 0)                                                                                  \
            superloss_loop<0>(losses, taus, lambda, values, sigma, begin, end);                           \
        else                                                                                              \
            superloss_loop<1>(losses, taus, lambda, values, sigma, begin, end);                           \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace

template <class T>
void lambert_w(const T* x, T* w, std::int64_t count, int threads) {
    in_parts(count, threads, count > 4096,
             [&](std::int64_t begin, std::int64_t end) { lambert_w_clone(x, w, begin, end); });
}

template <class T>
void procsim_sigma(const T* losses, const T* thresholds, std::int64_t stride, T lambda, T* sigma,
                   std::int64_t count, int threads) {
    in_parts(count, threads, count > 4096, [&](std::int64_t begin, std::int64_t end) {
        procsim_clone(losses, thresholds, stride, T(2) * lambda, sigma, begin, end);
    });
}

template <class T>
void superloss(const T* losses, const T* taus, std::int64_t stride, T lambda, T* values, T* sigma,
               std::int64_t count, int threads) {
    in_parts(count, threads, count > 4096, [&](std::int64_t begin, std::int64_t end) {
        superloss_clone(losses, taus, stride, lambda, values, sigma, begin, end);
    });
}

#define ROBUSTDML_STAMP(T)                                                                      \
    template void lambert_w<T>(const T*, T*, std::int64_t, int);                                \
    template void procsim_sigma<T>(const T*, const T*, std::int64_t, T, T*, std::int64_t, int); \
    template void superloss<T>(const T*, const T*, std::int64_t, T, T*, T*, std::int64_t, int);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
