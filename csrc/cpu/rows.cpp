#include "cpu/rows.h"

#include "cpu/clones.h"
#include "cpu/norm.h"

namespace robustdml::cpu {
namespace {

template <class T>
ROBUSTDML_HD void normalize_range(const T* P, T* U, T* inverse_norm, std::int64_t begin, std::int64_t end,
                                  std::int64_t D) {
    for (std::int64_t i = begin; i < end; ++i) {
        const T* p = P + i * D;
        const T scale = robustdml::cpu::inverse_norm(p, D);
        inverse_norm[i] = scale;
        T* u = U + i * D;
#pragma omp simd
        for (std::int64_t d = 0; d < D; ++d) u[d] = p[d] * scale;
    }
}

template <class T>
ROBUSTDML_HD void backward_range(T* G, const T* U, const T* inverse_norm, std::int64_t begin,
                                 std::int64_t end, std::int64_t D) {
    for (std::int64_t i = begin; i < end; ++i) {
        T* g = G + i * D;
        const T* u = U + i * D;
        T dot = 0;
#pragma omp simd reduction(+ : dot)
        for (std::int64_t d = 0; d < D; ++d) dot += g[d] * u[d];
        const T scale = inverse_norm[i];
#pragma omp simd
        for (std::int64_t d = 0; d < D; ++d) g[d] = (g[d] - dot * u[d]) * scale;
    }
}

template <class T>
ROBUSTDML_HD void project_range(T* G, const T* P, const T* inverse_norm, std::int64_t begin, std::int64_t end,
                                std::int64_t D) {
    for (std::int64_t i = begin; i < end; ++i) {
        T* g = G + i * D;
        const T* p = P + i * D;
        const T scale = inverse_norm[i];
        T dot = 0;
#pragma omp simd reduction(+ : dot)
        for (std::int64_t d = 0; d < D; ++d) dot += g[d] * (p[d] * scale);
#pragma omp simd
        for (std::int64_t d = 0; d < D; ++d) g[d] -= dot * (p[d] * scale);
    }
}

// target_clones takes no templates: one plain function per type.
ROBUSTDML_CLONES void normalize_clone(const float* P, float* U, float* n, std::int64_t b, std::int64_t e,
                                      std::int64_t D) {
    normalize_range(P, U, n, b, e, D);
}
ROBUSTDML_CLONES void normalize_clone(const double* P, double* U, double* n, std::int64_t b, std::int64_t e,
                                      std::int64_t D) {
    normalize_range(P, U, n, b, e, D);
}
ROBUSTDML_CLONES void backward_clone(float* G, const float* U, const float* n, std::int64_t b, std::int64_t e,
                                     std::int64_t D) {
    backward_range(G, U, n, b, e, D);
}
ROBUSTDML_CLONES void backward_clone(double* G, const double* U, const double* n, std::int64_t b,
                                     std::int64_t e, std::int64_t D) {
    backward_range(G, U, n, b, e, D);
}

ROBUSTDML_CLONES void project_clone(float* G, const float* P, const float* n, std::int64_t b, std::int64_t e,
                                    std::int64_t D) {
    project_range(G, P, n, b, e, D);
}
ROBUSTDML_CLONES void project_clone(double* G, const double* P, const double* n, std::int64_t b,
                                    std::int64_t e, std::int64_t D) {
    project_range(G, P, n, b, e, D);
}

}  // namespace

template <class T>
void normalize_rows(const T* P, T* U, T* inverse_norm, std::int64_t rows, std::int64_t D, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && rows * D > 65536)
    for (int t = 0; t < threads; ++t)
        normalize_clone(P, U, inverse_norm, rows * t / threads, rows * (t + 1) / threads, D);
}

template <class T>
void normalize_rows_backward(T* G, const T* U, const T* inverse_norm, std::int64_t rows, std::int64_t D,
                             int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && rows * D > 65536)
    for (int t = 0; t < threads; ++t)
        backward_clone(G, U, inverse_norm, rows * t / threads, rows * (t + 1) / threads, D);
}

template <class T>
void project_rows(T* G, const T* P, const T* inverse_norm, std::int64_t rows, std::int64_t D, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && rows * D > 65536)
    for (int t = 0; t < threads; ++t)
        project_clone(G, P, inverse_norm, rows * t / threads, rows * (t + 1) / threads, D);
}

template void normalize_rows<float>(const float*, float*, float*, std::int64_t, std::int64_t, int);
template void normalize_rows<double>(const double*, double*, double*, std::int64_t, std::int64_t, int);
template void normalize_rows_backward<float>(float*, const float*, const float*, std::int64_t, std::int64_t,
                                             int);
template void normalize_rows_backward<double>(double*, const double*, const double*, std::int64_t,
                                              std::int64_t, int);

template void project_rows<float>(float*, const float*, const float*, std::int64_t, std::int64_t, int);
template void project_rows<double>(double*, const double*, const double*, std::int64_t, std::int64_t, int);

}  // namespace robustdml::cpu
