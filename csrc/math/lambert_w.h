// The principal branch of Lambert's W, w e^w = x, with e^-w, and what the two methods that
// weigh losses make of it: their sigma.
//
//   x < -1/4   near the branch point -1/e the unknown is d = w + 1, and the equation
//                  (d - 1) e^d + 1 = d^2 (1/2 + d/3 + d^2/8 + ...) = e x + 1,
//              whose two sides are small together: nothing cancels
//   else       Fritsch's iteration from Winitzki's approximation
//   |x| tiny   the power series
//
// All are computed, because a vector holds all kinds; relative error below 3 epsilon in w, 4 in e^-w.
#pragma once

#include <cmath>

#include "math/limits.h"
#include "math/log.h"
#include "math/portable.h"

namespace robustdml {

template <class T>
struct LambertW {
    T w;
    T sigma;  // e^-w = w / x
};

// -1/e rounded to T: the least argument. In float it is below -1/e, and counts as -1/e.
template <class T>
constexpr T kBranchPoint = T(-0.36787944117144232159552377016146);

// (k + 1)/(k + 2)!, the coefficient of d^k in ((d - 1) e^d + 1) / d^2.
template <int k>
inline constexpr double kBranchCoefficient = kBranchCoefficient<k - 1> * (k + 1) / (k * (k + 2.0));
template <>
inline constexpr double kBranchCoefficient<0> = 0.5;

// 1/2 + d/3 + d^2/8 + ... from the term k on, over d^k.
template <int k, int last, class T>
ROBUSTDML_HD T branch_series(T d) {
    constexpr T kCoefficient = T(kBranchCoefficient<k>);
    if constexpr (k == last)
        return kCoefficient;
    else
        return kCoefficient + d * branch_series<k + 1, last>(d);
}

// A step of Halley's method, to be subtracted from d, for the root d of (d - 1) e^d + 1 = eq.
template <class T>
ROBUSTDML_HD T halley_step(T d, T eq) {
    const T value = d * d * branch_series<0, sizeof(T) == 8 ? 16 : 9>(d);
    const T f = value - eq;
    const T exponential = (T(1) - value) / (T(1) - d);
    const T divisor = T(2) * d * d * exponential - f * (d + T(1));
    return divisor > T(0) ? T(2) * f * d / divisor : T(0);
}

// w for x in [-1/e, -1/4]. The 1 goes before the last step: d is not rounded, the small w is.
template <class T>
ROBUSTDML_HD T near_branch(T x) {
    constexpr bool kDouble = sizeof(T) == 8;
    // 1/e is the rounded number and this.
    constexpr T kRest = T(kDouble ? -1.2428753672788363168e-17 : -9.1497551881701012e-9);
    const T q = (x - kBranchPoint<T>)+kRest;
    const T eq = q > T(0) ? q * T(2.7182818284590452354) : T(0);
    const T p = std::sqrt(T(2) * eq);
    T d = p * (T(1) - p * (T(1.0 / 3) - p * (T(11.0 / 72) - p * (T(43.0 / 540) - p * T(769.0 / 17280)))));
    if constexpr (kDouble) d -= halley_step(d, eq);
    return (d - T(1)) - halley_step(d, eq);
}

// One of Fritsch's steps for w.
template <class T>
ROBUSTDML_HD T fritsch_step(T w, T x) {
    const T z = log_normal(x / w, T(0), -w);
    const T s = T(1) + w;
    const T q = T(2) * s * (s + z * T(2.0 / 3));
    return w + w * (z * (q - z) / (s * (q - T(2) * z)));
}

// w for finite x >= -1/4; not for tiny ones.
template <class T>
ROBUSTDML_HD T beyond_branch(T x) {
    // The rounding of 1 + x does not matter here: the first step takes an error of 3.5e-2 to 2e-7.
    const T l = log_normal(T(1) + x, T(0));
    const T w = fritsch_step(l * (T(1) - log_normal(T(1) + l, T(0)) / (T(2) + l)), x);
    if constexpr (sizeof(T) == 8)
        return fritsch_step(w, x);
    else
        return w;
}

// W(x) and e^-W(x). Infinity has its limits; NaN, or kNearBranch and an x below -1/e, gives NaN. Without
// kNearBranch x has to be >= 0.
template <bool kNearBranch, class T>
ROBUSTDML_HD LambertW<T> lambert_w(T x) {
    constexpr T kTiny = T(sizeof(T) == 8 ? 1e-5 : 1e-3);
    constexpr T kLeast = kNearBranch ? kBranchPoint<T> : T(0);
    // Comparisons stand where they are used: a bool that is kept would keep the loop from becoming vector
    // code.
    const T finite = x < kLargest<T> ? x : kLargest<T>;
    const T size = finite < T(0) ? -finite : finite;
    const T usual = size < kTiny ? T(1) : finite;
    T w = beyond_branch(usual < T(-0.25) ? T(1) : usual);
    if constexpr (kNearBranch) w = usual < T(-0.25) ? near_branch(usual) : w;
    const T series = T(1) - x * (T(1) - x * (T(1.5) - x * T(8.0 / 3)));
    w = size < kTiny ? x * series : w;
    w = x > kLargest<T> ? x : w;
    T sigma = size < kTiny ? series : w / finite;
    sigma = x > kLargest<T> ? T(0) : sigma;
    return {x >= kLeast ? w : kNaN<T>, x >= kLeast ? sigma : kNaN<T>};
}

// ProcSim's sigma, exp(-W([(loss - threshold) / 2 lambda]_+)); a threshold of infinity gives 1.
template <class T>
ROBUSTDML_HD T procsim_sigma(T loss, T threshold, T twice_lambda) {
    const T x = loss <= threshold ? T(0) : (loss - threshold) / twice_lambda;  // both may be infinite
    return lambert_w<false>(x).sigma;
}

template <class T>
struct SuperLoss {
    T value;
    T sigma;
};

// The least (loss - tau) sigma + lambda log(sigma)^2 and its sigma. With loss - tau = 2 lambda w e^w and
// sigma = e^-w the minimum is lambda w (w + 2); where 2 lambda x is below -2 lambda / e, sigma stays e.
template <class T>
ROBUSTDML_HD SuperLoss<T> superloss(T loss, T tau, T lambda) {
    const T excess = loss - tau;
    const T x = excess / (T(2) * lambda);
    const LambertW<T> W = lambert_w<true>(x < kBranchPoint<T> ? kBranchPoint<T> : x);
    constexpr T kE = T(2.7182818284590452354);
    return {x < kBranchPoint<T> ? excess * kE + lambda : lambda * W.w * (W.w + T(2)),
            x < kBranchPoint<T> ? kE : W.sigma};
}

}  // namespace robustdml
