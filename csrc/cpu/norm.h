// 1 / |p|, as every row on the CPU takes it.
#pragma once

#include <cmath>
#include <cstdint>

#include "math/portable.h"

namespace robustdml::cpu {

// Norms below this are zero vectors: cosine 0 with everything and no gradient, instead of a gradient of 1e12.
constexpr double kTinyNorm = 1e-12;

// 0 for a zero row; NaN stays NaN.
template <class T>
ROBUSTDML_HD T inverse_norm(const T* p, std::int64_t D) {
    // In double, so that 1e30 neither overflows nor vanishes.
    double square = 0;
#pragma omp simd reduction(+ : square)
    for (std::int64_t d = 0; d < D; ++d) square += static_cast<double>(p[d]) * static_cast<double>(p[d]);
    const double norm = std::sqrt(square);
    return norm < kTinyNorm ? T(0) : static_cast<T>(1.0 / norm);
}

}  // namespace robustdml::cpu
