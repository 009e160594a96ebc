// Logarithms for the epilogues: branch-free, so that compilers turn loops over them into vector code.
#pragma once

#include <cstdint>
#include <type_traits>

#include "math/exp.h"
#include "math/limits.h"
#include "math/portable.h"

namespace robustdml {

// Sum of 2 s^2j / (2j + 1) from j on: what 2 atanh(s) has beyond its first term, over s.
template <int j, int last, class T>
ROBUSTDML_HD T atanh_tail(T square) {
    constexpr T coefficient = T(2) / T(2 * j + 1);
    if constexpr (j == last)
        return square * coefficient;
    else
        return square * (coefficient + atanh_tail<j + 1, last>(square));
}

// offset + log(u) + correction for a normal u > 0, within an ulp of the result or of 1. An offset that takes
// most of the logarithm away costs no accuracy.
//
// u = 2^e m with sqrt(1/2) <= m < sqrt(2), and log(m) = 2 atanh(s) with s = (m - 1)/(m + 1), |s| < 0.172: the
// first term left out is below 1e-18 (2e-9 in float) of the result. ln2 comes in two parts, the first with
// trailing zeros, so that e times it is exact.
template <class T>
ROBUSTDML_HD T log_normal(T u, T correction, T offset = T(0)) {
    constexpr bool kDouble = sizeof(T) == 8;
    using Bits = std::conditional_t<kDouble, std::uint64_t, std::uint32_t>;
    constexpr int kMantissa = kDouble ? 52 : 23;
    constexpr Bits kBias = kDouble ? 1023 : 127;
    constexpr Bits kOne = kBias << kMantissa;
    constexpr Bits kRootHalf = kDouble ? Bits(0x3fe6a09e667f3bcdull) : Bits(0x3f3504f3u);
    constexpr Bits kExponent = ~((Bits(1) << kMantissa) - 1);
    // The bits of 2^52 (2^23): an integer in their lowest places is added to that number.
    constexpr Bits kInteger = (kBias + kMantissa) << kMantissa;
    constexpr T kOffset = T(kDouble ? 4503599627370496.0 + 1023.0 : 8388608.0 + 127.0);
    constexpr T kLn2High = T(kDouble ? 6.93147180369123816490e-01 : 0.693359375);
    constexpr T kLn2Low = T(kDouble ? 1.90821492927058770002e-10 : -2.12194440054690583e-4);

    const Bits word = bits_of<Bits>(u);
    const Bits shifted = word + (kOne - kRootHalf);
    const T e = bits_of<T>(kInteger | (shifted >> kMantissa)) - kOffset;
    const T f = bits_of<T>(word - (shifted & kExponent) + kOne) - T(1);
    const T s = f / (T(2) + f);
    const T tail = atanh_tail<1, kDouble ? 10 : 4>(s * s);
    return (offset + e * kLn2High) + (f - (s * (f - tail) - (e * kLn2Low + correction)));
}

// log(x) for x > 0, subnormal numbers included; -inf for 0.
template <class T>
ROBUSTDML_HD T log_positive(T x) {
    constexpr bool kDouble = sizeof(T) == 8;
    constexpr T kScale = T(kDouble ? 18014398509481984.0 : 33554432.0);  // 2^54, 2^25
    constexpr T kLogScale = T(kDouble ? 54 * 0.69314718055994530942 : 25 * 0.69314718055994530942);
    const bool small = x < kSmallestNormal<T>;
    const T normal = small ? x * kScale : x;
    const T value = log_normal(normal > T(0) ? normal : T(1), small ? -kLogScale : T(0));
    return x > T(0) ? value : -kInfinity<T>;
}

// offset + log(1 + x) for finite x >= 0: what 1 + x rounds away comes back as the correction.
template <class T>
ROBUSTDML_HD T log1p_positive(T x, T offset = T(0)) {
    const T u = T(1) + x;
    return log_normal(u, (x - (u - T(1))) / u, offset);
}

}  // namespace robustdml
