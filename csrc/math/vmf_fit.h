// The concentration of a von Mises-Fisher distribution from the length of its vectors' sum; docs/vmf.md
// derives it.
#pragma once

#include <cmath>
#include <cstdint>

#include "math/limits.h"
#include "math/portable.h"
#include "math/vmf.h"

namespace robustdml {

enum class VmfEstimator : std::int64_t { newton, banerjee, prism };
enum class VmfCorrection : std::int64_t { u, none, predictive };

// From Banerjee's approximation, 6.5 % off at worst (D = 2), to 1e-9 (D = 2) or 1e-13 (D from 8).
constexpr int kNewtonSteps = 3;
constexpr double kBanerjeeError = 0.1;

// What all classes of a fit share.
struct VmfSphere {
    double dim;      // D
    double largest;  // what the square of the mean length counts as at most; below 1
    VmfEstimator estimator;
    VmfCorrection correction;
};

// kappa of `count` unit vectors whose sum has the length `norm`; 0 for one and for none. NaN stays NaN: so
// are the comparisons put.
template <bool kNewton, int kDebye, int kSeries>
ROBUSTDML_HD double vmf_concentration(double norm, double count, const VmfSphere& sphere,
                                      const VmfOrder<double>& order) {
    constexpr double kTiny = kSmallestNormal<double>;
    const double n = count > 1 ? count : 1;
    const double mean = norm / n;
    double square = mean * mean;
    const double others = n - 1 > kTiny ? n - 1 : kTiny;
    const double above = (n * square - 1) / others;
    const double unbiased = above < 0 ? 0 : above;
    // A new x has x.mu' = A mu.mu' on average, and mu' = sum / norm has mu.mu' = A / mean.
    const double predicted = unbiased * unbiased / (square < kTiny ? kTiny : square);
    square = sphere.correction == VmfCorrection::u      ? unbiased
             : sphere.correction == VmfCorrection::none ? square
                                                        : predicted;
    square = square > sphere.largest ? sphere.largest : square;
    const double length = std::sqrt(square);
    const double subtracted = sphere.estimator == VmfEstimator::prism ? length : square;
    const double start = length * (sphere.dim - subtracted) / (1 - square);
    double kappa = start;
    if constexpr (kNewton) {
        // Where the length is within rounding of 1 the excess is noise; the start is as good as the length
        // then.
        const double least = (1 - kBanerjeeError) * start, most = (1 + kBanerjeeError) * start;
        for (int step = 0; step < kNewtonSteps; ++step) {
            const double excess = vmf_function<VmfFunction::ratio, kDebye, kSeries>(kappa, order) - length;
            const double slope = vmf_function<VmfFunction::ratio_derivative, kDebye, kSeries>(kappa, order);
            const double next = kappa - excess / slope;
            kappa = next < least ? least : next > most ? most : next;
        }
    }
    return count > 1 ? kappa : 0;
}

}  // namespace robustdml
