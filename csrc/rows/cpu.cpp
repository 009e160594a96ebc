#include "rows/cpu.h"

#include "common/cpu/clones.h"
#include "common/cpu/norm.h"
#include "common/cpu/parts.h"

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

// target_clones takes no templates: plain functions of both types.
#define ROBUSTDML_STAMP(T)                                                                                   \
    ROBUSTDML_CLONES void normalize_clone(const T* P, T* U, T* n, std::int64_t begin, std::int64_t end,      \
                                          std::int64_t D) {                                                  \
        normalize_range(P, U, n, begin, end, D);                                                             \
    }                                                                                                        \
    ROBUSTDML_CLONES void backward_clone(T* G, const T* U, const T* n, std::int64_t begin, std::int64_t end, \
                                         std::int64_t D) {                                                   \
        backward_range(G, U, n, begin, end, D);                                                              \
    }                                                                                                        \
    ROBUSTDML_CLONES void project_clone(T* G, const T* P, const T* n, std::int64_t begin, std::int64_t end,  \
                                        std::int64_t D) {                                                    \
        project_range(G, P, n, begin, end, D);                                                               \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

// Up to this many elements a thread alone is done before others have started.
constexpr std::int64_t kFewElements = 65536;

}  // namespace

template <class T>
void normalize_rows(const T* P, T* U, T* inverse_norm, std::int64_t rows, std::int64_t D, int threads) {
    in_parts(rows, threads, rows * D > kFewElements, [&](std::int64_t begin, std::int64_t end) {
        normalize_clone(P, U, inverse_norm, begin, end, D);
    });
}

template <class T>
void normalize_rows_backward(T* G, const T* U, const T* inverse_norm, std::int64_t rows, std::int64_t D,
                             int threads) {
    in_parts(rows, threads, rows * D > kFewElements, [&](std::int64_t begin, std::int64_t end) {
        backward_clone(G, U, inverse_norm, begin, end, D);
    });
}

template <class T>
void project_rows(T* G, const T* P, const T* inverse_norm, std::int64_t rows, std::int64_t D, int threads) {
    in_parts(rows, threads, rows * D > kFewElements,
             [&](std::int64_t begin, std::int64_t end) { project_clone(G, P, inverse_norm, begin, end, D); });
}

#define ROBUSTDML_STAMP(T)                                                                             \
    template void normalize_rows<T>(const T*, T*, T*, std::int64_t, std::int64_t, int);                \
    template void normalize_rows_backward<T>(T*, const T*, const T*, std::int64_t, std::int64_t, int); \
    template void project_rows<T>(T*, const T*, const T*, std::int64_t, std::int64_t, int);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
