// The concentration of a von Mises-Fisher distribution from the length of its vectors' sum; docs/numerics.md
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

// Settings of a fit, the same for all classes.
struct VmfSphere {
    double dim;      // D
    double largest;  // upper bound of the squared mean length, below 1
    VmfEstimator estimator;
    VmfCorrection correction;
};

struct VmfStart {
    double length;  // mean length of the vectors' sum, corrected
    double kappa;   // of it, by a quotient
};

// Of `count` unit vectors whose sum has the length `norm`. NaN stays NaN: so are the comparisons put.
ROBUSTDML_HD VmfStart vmf_start(double norm, double count, const VmfSphere& sphere) {
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
    return {length, length * (sphere.dim - subtracted) / (1 - square)};
}

// One step of Newton's iteration for A(kappa) = length. Where the length is within rounding of 1 the excess
// is noise; the start is as good as the length then.
template <int kDebye, int kSeries>
ROBUSTDML_HD double vmf_newton_step(double kappa, const VmfStart& start, const VmfOrder<double>& order) {
    const double least = (1 - kBanerjeeError) * start.kappa, most = (1 + kBanerjeeError) * start.kappa;
    const double excess = vmf_function<VmfFunction::ratio, kDebye, kSeries>(kappa, order) - start.length;
    const double next =
        kappa - excess / vmf_function<VmfFunction::ratio_derivative, kDebye, kSeries>(kappa, order);
    return next < least ? least : next > most ? most : next;
}

}  // namespace robustdml
