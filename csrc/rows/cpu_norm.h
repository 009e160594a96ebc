// Matrices by rows or by columns, and 1 / |p| of their rows, as every row on the CPU takes it.
#pragma once

#include <cmath>
#include <cstdint>

#include "math/length.h"
#include "math/limits.h"
#include "math/portable.h"

namespace robustdml::cpu {

// Rows (n, D) of which either the elements of a row, or those of a column, lie next to each other.
template <class T>
struct Rows {
    T* data;
    std::int64_t row_stride;     // elements between rows
    std::int64_t column_stride;  // elements between columns; 1, or row_stride is

    bool by_columns() const { return column_stride != 1; }
    T* row(std::int64_t i) const { return data + i * row_stride; }
    T* column(std::int64_t d) const { return data + d * column_stride; }
};

// Rows of a matrix by columns that are worked on together: their sums stay in L1.
constexpr std::int64_t kRowsTogether = 128;

// Whether a row of this inverse norm is longer or shorter. A zero row, 0, and one with NaN or inf, NaN, are
// not.
template <class T>
ROBUSTDML_HD bool out_of_reach(T inverse_norm) {
    return inverse_norm > T(1) / kShortest<T> || (inverse_norm > T(0) && inverse_norm < T(1) / kLongest<T>);
}

// 1 / |p| = near_one * inverse, where p * near_one has a length whose square the type holds.
template <class T>
struct InverseLength {
    T near_one;
    T inverse;

    T product() const { return near_one * inverse; }
};

// At any scale: 0 for a row shorter than the smallest normal number; NaN for one with NaN or inf, which
// 1 / inf would pass off as zero.
template <class T>
ROBUSTDML_HD InverseLength<T> inverse_length(T square, const T* p, std::int64_t stride, std::int64_t D) {
    const T near_one = near_one_factor(square);
    if (near_one == T(1)) return {T(1), T(1) / std::sqrt(square)};
    T near_square = 0;
    for (std::int64_t d = 0; d < D; ++d)
        near_square += (p[d * stride] * near_one) * (p[d * stride] * near_one);
    const T norm = std::sqrt(near_square);
    if (!(norm <= kLargest<T>)) return {T(1), kNaN<T>};
    return {near_one, norm < kSmallestNormal<T> * near_one ? T(0) : T(1) / norm};
}

// inverse_norm[i] = 1 / |P[i]| for begin <= i < end.
template <class T>
ROBUSTDML_HD void inverse_norms_range(const Rows<const T>& P, T* inverse_norm, std::int64_t begin,
                                      std::int64_t end, std::int64_t D) {
    if (!P.by_columns()) {
        for (std::int64_t i = begin; i < end; ++i) {
            const T* p = P.row(i);
            T square = 0;
#pragma omp simd reduction(+ : square)
            for (std::int64_t d = 0; d < D; ++d) square += p[d] * p[d];
            inverse_norm[i] = inverse_length(square, p, 1, D).product();
        }
        return;
    }
    for (std::int64_t from = begin; from < end; from += kRowsTogether) {
        const std::int64_t count = end - from < kRowsTogether ? end - from : kRowsTogether;
        T square[kRowsTogether] = {};
        for (std::int64_t d = 0; d < D; ++d) {
            const T* p = P.column(d) + from;
#pragma omp simd
            for (std::int64_t i = 0; i < count; ++i) square[i] += p[i] * p[i];
        }
        for (std::int64_t i = 0; i < count; ++i)
            inverse_norm[from + i] = inverse_length(square[i], P.row(from + i), P.column_stride, D).product();
    }
}

}  // namespace robustdml::cpu
