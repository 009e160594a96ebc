// 1 / |p|, as every row on the CPU takes it.
#pragma once

#include <cmath>
#include <cstdint>

#include "math/limits.h"
#include "math/portable.h"

namespace robustdml::cpu {

// 0 for a zero row; NaN for one with NaN or inf, which 1 / inf would pass off as a zero row.
template <class T>
ROBUSTDML_HD T inverse_norm(const T* p, std::int64_t D) {
    T square = 0;
#pragma omp simd reduction(+ : square)
    for (std::int64_t d = 0; d < D; ++d) square += p[d] * p[d];
    if (square > T(1e-18) && square < T(1e30)) return T(1) / std::sqrt(square);
    // Near the ends of the type, in double: 1e30 neither overflows nor vanishes. (double itself just tries
    // again.)
    double exact = 0;
#pragma omp simd reduction(+ : exact)
    for (std::int64_t d = 0; d < D; ++d) exact += static_cast<double>(p[d]) * static_cast<double>(p[d]);
    const double norm = std::sqrt(exact);
    if (norm > kLargest<double>) return kNaN<T>;
    return norm < kTinyNorm ? T(0) : static_cast<T>(1.0 / norm);
}

}  // namespace robustdml::cpu
