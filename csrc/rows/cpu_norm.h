// Matrices by rows or by columns, and 1 / |p| of their rows, as every row on the CPU takes it.
#pragma once

#include <cmath>
#include <cstdint>

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

// 0 for a zero row, shorter than kTinyNorm; NaN for one with NaN or inf, which 1 / inf would pass off as one.
template <class T>
ROBUSTDML_HD T inverse_of_square(T square, const T* p, std::int64_t stride, std::int64_t D) {
    if (square > T(1e-18) && square < T(1e30)) return T(1) / std::sqrt(square);
    // Near the ends of the type, in double: 1e30 neither overflows nor vanishes. (double itself just tries
    // again.)
    double exact = 0;
    for (std::int64_t d = 0; d < D; ++d)
        exact += static_cast<double>(p[d * stride]) * static_cast<double>(p[d * stride]);
    const double norm = std::sqrt(exact);
    if (norm > kLargest<double>) return kNaN<T>;
    return norm < kTinyNorm ? T(0) : static_cast<T>(1.0 / norm);
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
            inverse_norm[i] = inverse_of_square(square, p, 1, D);
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
            inverse_norm[from + i] = inverse_of_square(square[i], P.row(from + i), P.column_stride, D);
    }
}

}  // namespace robustdml::cpu
