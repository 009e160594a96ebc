// 2^x for the epilogues: branch-free, so that compilers turn loops over it into vector code on every target.
#pragma once

#include <cstdint>
#include <cstring>

#include "math/portable.h"

namespace robustdml {

// e^x = 2^(x log2 e). The epilogues scale their exponents once a call, not once an element.
constexpr double kLog2E = 1.4426950408889634074;

template <class To, class From>
ROBUSTDML_HD To bits_of(From value) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To out;
    std::memcpy(&out, &value, sizeof(To));
    return out;
}

// 2^x for -126 <= x <= 127, relative error below 2 ulp; NaN stays NaN.
//
// x = n + r with |r| <= 1/2; adding 1.5 * 2^23 rounds to the integer n and leaves it in the low bits. The
// minimax polynomial (relative error 7.5e-8) gives 2^r, and n goes into its exponent bits.
ROBUSTDML_HD float exp2_in_range(float x) {
    constexpr float kRound = 12582912.0f;
    const float z = x + kRound;
    const float r = x - (z - kRound);
    float p = 1.327647202747327e-3f;
    p = p * r + 9.675541479813043e-3f;
    p = p * r + 5.550713274653046e-2f;
    p = p * r + 0.24022119721167298f;
    p = p * r + 0.6931469670632631f;
    p = p * r + 1.0000000716552195f;
    return bits_of<float>(bits_of<std::uint32_t>(p) + (bits_of<std::uint32_t>(z) << 23));
}

// The same in double, for -1022 <= x <= 1023. The series of e^(r ln2): its 14th term is below half an ulp.
ROBUSTDML_HD double exp2_in_range(double x) {
    constexpr double kRound = 6755399441055744.0;
    const double z = x + kRound;
    const double r = (x - (z - kRound)) * 6.93147180559945309417e-01;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return bits_of<double>(bits_of<std::uint64_t>(p) + (bits_of<std::uint64_t>(z) << 52));
}

// 2^x for x <= 127, or 1023 in double; 0 below -126, or -1022: a weight of zero is a bias of -inf.
template <class T>
ROBUSTDML_HD T exp2_fast(T x) {
    constexpr T kLeast = sizeof(T) == 4 ? T(-126) : T(-1022);
    const T e = exp2_in_range(x < kLeast ? kLeast : x);
    return x < kLeast ? T(0) : e;
}

// e^x for x <= 87, or 709 in double, within the same limits.
template <class T>
ROBUSTDML_HD T exp_fast(T x) {
    return exp2_fast(x * static_cast<T>(kLog2E));
}

// 2^x and e^x where their least values, 2^-126 and e^-87, or 2^-1022 and e^-708, are as good as 0.
template <class T>
ROBUSTDML_HD T exp2_clamped(T x) {
    constexpr T kLeast = sizeof(T) == 4 ? T(-126) : T(-1022);
    return exp2_in_range(x < kLeast ? kLeast : x);
}

template <class T>
ROBUSTDML_HD T exp_clamped(T x) {
    constexpr T kLeast = sizeof(T) == 4 ? T(-87) : T(-708);
    return exp2_in_range((x < kLeast ? kLeast : x) * static_cast<T>(kLog2E));
}

}  // namespace robustdml
