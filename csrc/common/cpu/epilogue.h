// Shared by the epilogues of the CPU: a row's scale, and sums beside a one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "math/log_sum.h"
#include "math/portable.h"

namespace robustdml::cpu {

// Sums in the storage type run over at most this many terms before they go into a double.
constexpr std::int64_t kBlock = 1024;

// How a row of S becomes cosines, and their gradient that of S.
template <class T>
struct RowScale {
    T cosine;    // cosine / s
    T gradient;  // (dL/ds) / (dL/dcosine)
};

// `Chunk` has inverse_norm.
template <class Chunk, class T>
ROBUSTDML_HD RowScale<T> scale_of_row(const Chunk& c, std::int64_t row, T* s, std::int64_t columns) {
    if (!c.inverse_norm) return {T(1), T(1)};
    const T inverse = c.inverse_norm[row];
    if (inverse == T(0)) {
        std::fill(s, s + columns, T(0));
        return {T(1), T(0)};
    }
    return {inverse, inverse};
}

// A float needs no log1p of a sum that is not tiny beside the one: a logarithm in double is exact enough, and
// faster.
template <class T>
ROBUSTDML_HD T log_sum(double shift, double sum) {
    if (sizeof(T) == 4 && shift == 0 && sum > 1e-6) return static_cast<T>(std::log(1.0 + sum));
    return static_cast<T>(log_one_plus(shift, sum));
}

}  // namespace robustdml::cpu
