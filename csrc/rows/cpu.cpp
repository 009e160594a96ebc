#include "rows/cpu.h"

#include <algorithm>

#include "common/cpu/clones.h"
#include "common/cpu/parts.h"

namespace robustdml::cpu {
namespace {

// One row has its elements side by side whichever way it is read.
template <class A, class B>
ROBUSTDML_HD bool by_columns(const Rows<A>& one, const Rows<B>& other) {
    return one.by_columns() || other.by_columns();
}

// U = P * scale, a row or kRowsTogether of them by columns at a time, as everything below.
template <class T>
ROBUSTDML_HD void scale_range(const Rows<const T>& P, const Rows<T>& U, const T* scale, std::int64_t begin,
                              std::int64_t end, std::int64_t D) {
    if (!by_columns(P, U)) {
        for (std::int64_t i = begin; i < end; ++i) {
            const T* p = P.row(i);
            T* u = U.row(i);
#pragma omp simd
            for (std::int64_t d = 0; d < D; ++d) u[d] = p[d] * scale[i];
        }
        return;
    }
    for (std::int64_t d = 0; d < D; ++d) {
        const T* p = P.column(d);
        T* u = U.column(d);
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) u[i] = p[i] * scale[i];
    }
}

// 1 / |p| alone may be a number of few digits, or none.
template <class T>
ROBUSTDML_HD void scale_row(const Rows<const T>& P, const Rows<T>& U, std::int64_t i, std::int64_t D) {
    T square = 0;
    for (std::int64_t d = 0; d < D; ++d)
        square += P.column(d)[i * P.row_stride] * P.column(d)[i * P.row_stride];
    const InverseLength<T> length = inverse_length(square, P.row(i), P.column_stride, D);
    for (std::int64_t d = 0; d < D; ++d)
        U.column(d)[i * U.row_stride] = (P.column(d)[i * P.row_stride] * length.near_one) * length.inverse;
}

template <class T>
ROBUSTDML_HD void normalize_range(const Rows<const T>& P, const Rows<T>& U, T* inverse_norm,
                                  std::int64_t begin, std::int64_t end, std::int64_t D) {
    for (std::int64_t from = begin; from < end; from += kRowsTogether) {
        const std::int64_t to = std::min(end, from + kRowsTogether);
        inverse_norms_range(P, inverse_norm, from, to, D);
        scale_range(P, U, inverse_norm, from, to, D);
        for (std::int64_t i = from; i < to; ++i)
            if (out_of_reach(inverse_norm[i])) scale_row(P, U, i, D);
    }
}

// G -= (G.u) u, and that * inverse_norm where U holds the unit vectors u; else they are U * inverse_norm.
template <bool Unit, class T>
ROBUSTDML_HD void remove_along(const Rows<T>& G, const Rows<const T>& U, const T* inverse_norm,
                               std::int64_t begin, std::int64_t end, std::int64_t D) {
    if (!by_columns(G, U)) {
        for (std::int64_t i = begin; i < end; ++i) {
            T* g = G.row(i);
            const T* u = U.row(i);
            T dot = 0;
#pragma omp simd reduction(+ : dot)
            for (std::int64_t d = 0; d < D; ++d) dot += g[d] * u[d];
            const T factor = Unit ? dot : dot * inverse_norm[i] * inverse_norm[i];
            const T scale = Unit ? inverse_norm[i] : T(1);
#pragma omp simd
            for (std::int64_t d = 0; d < D; ++d) g[d] = (g[d] - factor * u[d]) * scale;
        }
        return;
    }
    for (std::int64_t from = begin; from < end; from += kRowsTogether) {
        const std::int64_t count = std::min(end - from, kRowsTogether);
        T factor[kRowsTogether] = {}, scale[kRowsTogether];
        for (std::int64_t d = 0; d < D; ++d) {
            const T* g = G.column(d) + from;
            const T* u = U.column(d) + from;
#pragma omp simd
            for (std::int64_t i = 0; i < count; ++i) factor[i] += g[i] * u[i];
        }
        for (std::int64_t i = 0; i < count; ++i) {
            const T inverse = inverse_norm[from + i];
            factor[i] *= Unit ? T(1) : inverse * inverse;
            scale[i] = Unit ? inverse : T(1);
        }
        for (std::int64_t d = 0; d < D; ++d) {
            T* g = G.column(d) + from;
            const T* u = U.column(d) + from;
#pragma omp simd
            for (std::int64_t i = 0; i < count; ++i) g[i] = (g[i] - factor[i] * u[i]) * scale[i];
        }
    }
}

template <class T>
ROBUSTDML_HD T cosine(const T* p, std::int64_t p_stride, const T* x, std::int64_t x_stride, std::int64_t D) {
    T p_square = 0, x_square = 0, dot = 0;
#pragma omp simd reduction(+ : p_square, x_square)
    for (std::int64_t d = 0; d < D; ++d) {
        p_square += p[d * p_stride] * p[d * p_stride];
        x_square += x[d * x_stride] * x[d * x_stride];
    }
    const InverseLength<T> of_p = inverse_length(p_square, p, p_stride, D);
    const InverseLength<T> of_x = inverse_length(x_square, x, x_stride, D);
#pragma omp simd reduction(+ : dot)
    for (std::int64_t d = 0; d < D; ++d)
        dot += (p[d * p_stride] * of_p.near_one) * (x[d * x_stride] * of_x.near_one);
    const T found = dot * of_p.inverse * of_x.inverse;
    return found == found ? found : kInfinity<T>;
}

template <class T>
ROBUSTDML_HD void cosines_range(const Rows<const T>& P, const Rows<const T>& X, const std::int64_t* places,
                                T* cosines, std::int64_t count, std::int64_t begin, std::int64_t end,
                                std::int64_t each, std::int64_t D) {
    for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t k = places[i];
        if (k < 0 || k >= count)
            cosines[i] = -kInfinity<T>;
        else if (by_columns(P, X))
            cosines[i] = cosine(P.row(k), P.column_stride, X.row(i / each), X.column_stride, D);
        else  // by vectors
            cosines[i] = cosine(P.row(k), 1, X.row(i / each), 1, D);
    }
}

// target_clones takes no templates: plain functions of both types.
#define ROBUSTDML_STAMP(T)                                                                                \
    ROBUSTDML_CLONES void norms_clone(const Rows<const T>& P, T* n, std::int64_t begin, std::int64_t end, \
                                      std::int64_t D) {                                                   \
        inverse_norms_range(P, n, begin, end, D);                                                         \
    }                                                                                                     \
    ROBUSTDML_CLONES void normalize_clone(const Rows<const T>& P, const Rows<T>& U, T* n,                 \
                                          std::int64_t begin, std::int64_t end, std::int64_t D) {         \
        normalize_range(P, U, n, begin, end, D);                                                          \
    }                                                                                                     \
    ROBUSTDML_CLONES void backward_clone(const Rows<T>& G, const Rows<const T>& U, const T* n,            \
                                         std::int64_t begin, std::int64_t end, std::int64_t D) {          \
        remove_along<true>(G, U, n, begin, end, D);                                                       \
    }                                                                                                     \
    ROBUSTDML_CLONES void radial_clone(const Rows<T>& G, const Rows<const T>& P, const T* n,              \
                                       std::int64_t begin, std::int64_t end, std::int64_t D) {            \
        remove_along<false>(G, P, n, begin, end, D);                                                      \
    }                                                                                                     \
    ROBUSTDML_CLONES void cosines_clone(                                                                  \
        const Rows<const T>& P, const Rows<const T>& X, const std::int64_t* places, T* cosines,           \
        std::int64_t count, std::int64_t begin, std::int64_t end, std::int64_t each, std::int64_t D) {    \
        cosines_range(P, X, places, cosines, count, begin, end, each, D);                                 \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

// Up to this many elements a thread alone is done before others have started.
constexpr std::int64_t kFewElements = 65536;

}  // namespace

template <class T>
bool inverse_norms(Rows<const T> P, T* inverse_norm, std::int64_t rows, std::int64_t D, int threads) {
    in_parts(rows, threads, rows * D > kFewElements,
             [&](std::int64_t begin, std::int64_t end) { norms_clone(P, inverse_norm, begin, end, D); });
    return std::none_of(inverse_norm, inverse_norm + rows, [](T norm) { return out_of_reach(norm); });
}

template <class T>
bool normalize_rows(Rows<const T> P, Rows<T> U, T* inverse_norm, std::int64_t rows, std::int64_t D,
                    int threads) {
    in_parts(rows, threads, rows * D > kFewElements, [&](std::int64_t begin, std::int64_t end) {
        normalize_clone(P, U, inverse_norm, begin, end, D);
    });
    return std::none_of(inverse_norm, inverse_norm + rows, [](T norm) { return out_of_reach(norm); });
}

template <class T>
void normalize_rows_backward(Rows<T> G, Rows<const T> U, const T* inverse_norm, std::int64_t rows,
                             std::int64_t D, int threads) {
    in_parts(rows, threads, rows * D > kFewElements, [&](std::int64_t begin, std::int64_t end) {
        backward_clone(G, U, inverse_norm, begin, end, D);
    });
}

template <class T>
void subtract_radial(Rows<T> G, Rows<const T> P, const T* inverse_norm, std::int64_t rows, std::int64_t D,
                     int threads) {
    in_parts(rows, threads, rows * D > kFewElements,
             [&](std::int64_t begin, std::int64_t end) { radial_clone(G, P, inverse_norm, begin, end, D); });
}

template <class T>
void cosines_at(Rows<const T> P, Rows<const T> X, const std::int64_t* places, T* cosines, std::int64_t count,
                std::int64_t rows, std::int64_t each, std::int64_t D, int threads) {
    // By columns each element is in another cache line.
    const std::int64_t elements = rows * each * D * (by_columns(P, X) ? 8 : 1);
    in_parts(rows * each, threads, elements > kFewElements, [&](std::int64_t begin, std::int64_t end) {
        cosines_clone(P, X, places, cosines, count, begin, end, each, D);
    });
}

#define ROBUSTDML_STAMP(T)                                                                                 \
    template bool inverse_norms<T>(Rows<const T>, T*, std::int64_t, std::int64_t, int);                    \
    template bool normalize_rows<T>(Rows<const T>, Rows<T>, T*, std::int64_t, std::int64_t, int);          \
    template void normalize_rows_backward<T>(Rows<T>, Rows<const T>, const T*, std::int64_t, std::int64_t, \
                                             int);                                                         \
    template void subtract_radial<T>(Rows<T>, Rows<const T>, const T*, std::int64_t, std::int64_t, int);   \
    template void cosines_at<T>(Rows<const T>, Rows<const T>, const std::int64_t*, T*, std::int64_t,       \
                                std::int64_t, std::int64_t, std::int64_t, int);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
