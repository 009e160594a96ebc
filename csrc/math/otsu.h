// Otsu's cut of n sorted values s_1 <= ... <= s_n: the i that maximises the variance between the groups
//
//     B_i = (n C_i - i C_n)^2 / (i (n - i)),    C_i = sum of y_j over j <= i,    y_j = s_j - s_1,
//
// over the i with s_i < s_{i+1} and groups large enough; the lowest of several. The y_j are counted in steps
// of a power of two of their range, and the C_i are integers: the same in any order of summation, on any
// device, and exact where the values fit the steps.
#pragma once

#include <cstdint>

#include "math/exp.h"
#include "math/limits.h"
#include "math/portable.h"

namespace robustdml {

// Where y is 0, and the factor of y that gives steps, as a product of two: one could overflow. Values are
// halved first: their range may exceed the largest number.
struct OtsuScale {
    double half_origin;
    double first, second;
};

// 2^k for |k| < 1023.
ROBUSTDML_HD double power_of_two(std::int64_t k) {
    return bits_of<double>((k + 1023) << 52);
}

// The exponent of a positive normal number: floor(log2(x)).
ROBUSTDML_HD std::int64_t exponent_of(double x) {
    return (bits_of<std::int64_t>(x) >> 52) - 1023;
}

// Steps for n values from lowest to highest. One y has at most 51 bits, the sum of n at most 62.
ROBUSTDML_HD OtsuScale otsu_scale(double lowest, double highest, std::int64_t n) {
    const double half_range = highest * 0.5 - lowest * 0.5;
    const std::int64_t room = 61 - exponent_of(double(n));
    const std::int64_t bits = room < 51 ? room : 51;
    const std::int64_t k = bits - 1 - exponent_of(half_range);
    return {lowest * 0.5, power_of_two(k >> 1), power_of_two(k - (k >> 1))};
}

// y of one value, in steps, to the nearest: adding 1.5 * 2^52 leaves the integer in the lowest bits.
ROBUSTDML_HD std::int64_t otsu_steps(double value, const OtsuScale& scale) {
    constexpr double kRound = 6755399441055744.0;
    const double y = (value * 0.5 - scale.half_origin) * scale.first * scale.second;
    return bits_of<std::int64_t>(y + kRound) - bits_of<std::int64_t>(kRound);
}

// B_i.
ROBUSTDML_HD double otsu_between(std::int64_t sum, std::int64_t total, std::int64_t i, std::int64_t n) {
    const double difference = double(n) * double(sum) - double(i) * double(total);
    return difference * difference / (double(i) * double(n - i));
}

// The mean of count values whose y sum to sum.
ROBUSTDML_HD double otsu_mean(std::int64_t sum, std::int64_t count, const OtsuScale& scale) {
    const double half = double(sum) / double(count) / scale.first / scale.second + scale.half_origin;
    return half * 2.0;
}

// The threshold between neighbours a < b: their midpoint, or a where rounding takes the midpoint to b. It
// parts
// "<= threshold" from "> threshold".
template <class T>
ROBUSTDML_HD T otsu_midpoint(T a, T b) {
    const T middle = a * T(0.5) + b * T(0.5);
    return middle >= a && middle < b ? middle : a;
}

// Results of one row's cut; the pointers are at the row's place.
template <class T>
struct OtsuOutputs {
    T* threshold;
    T* low_mean;
    T* high_mean;
    std::int64_t* index;
    std::int64_t* excluded;
    bool* found;
};

// The cut after the i-th of n sorted values, between a and b; i = 0 where there is none.
template <class T>
ROBUSTDML_HD void otsu_write(const OtsuOutputs<T>& out, std::int64_t i, std::int64_t n, T a, T b,
                             std::int64_t sum, std::int64_t total, const OtsuScale& scale,
                             std::int64_t excluded) {
    const bool found = i > 0;
    const T mean = n > 0 ? T(otsu_mean(total, n, scale)) : T(0);
    *out.threshold = found ? otsu_midpoint(a, b) : kInfinity<T>;
    *out.low_mean = found ? T(otsu_mean(sum, i, scale)) : mean;
    *out.high_mean = found ? T(otsu_mean(total - sum, n - i, scale)) : mean;
    *out.index = found ? i : n;
    *out.excluded = excluded;
    *out.found = found;
}

}  // namespace robustdml
