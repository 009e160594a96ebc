// A row of the contrasts outside and inside, out of sums over its positives and negatives; and logistic
// terms.
#pragma once

#include <algorithm>
#include <cmath>

#include "math/exp.h"
#include "math/limits.h"
#include "math/log.h"
#include "pairs/cpu.h"

namespace robustdml::cpu {

// Sums over both sets of a row, of e = 2^(slope (s - end)); of the positives' s and number; and, of
// Contrast::each, of the negatives' s e.
struct SoftmaxSums {
    double positive = 0, negative = 0, s = 0, number = 0, negative_se = 0;
};

// Loss, log-sum-exp, and what turns e into dL/dz: positives e * positive - constant, negatives e * negative.
struct SoftmaxRow {
    double loss, lse, positive, negative, constant;
};

// `end` is the largest s of the positives, -inf where there are none; logits are slope s to the base 2, and
// bias.
template <class T>
SoftmaxRow softmax_of_sums(const SoftmaxSums& sums, double end, double negative_end, double slope,
                           double bias, bool inside, const RowUpstream<T>& upstream) {
    if (end == -kInfinity<double>) return {};
    const double largest = std::max(end, negative_end);
    const double of_positive = std::exp2(slope * (end - largest));
    const double of_negative = std::exp2(slope * (negative_end - largest));
    const double total = sums.positive * of_positive + sums.negative * of_negative;
    // Of differences: a loss near 0 keeps its digits.
    const double above = largest - (inside ? end : sums.s / sums.number);
    const double share = (double(upstream.positive) + upstream.negative) / total;
    SoftmaxRow row;
    row.loss =
        slope * above / kLog2E + std::log(total) - (inside ? std::log(sums.positive / sums.number) : 0.0);
    row.lse = slope * largest / kLog2E + bias + std::log(total);
    row.positive = share * of_positive - (inside ? upstream.positive / sums.positive : 0.0);
    row.negative = share * of_negative;
    row.constant = inside ? 0.0 : upstream.positive / sums.number;
    return row;
}

// 1 / (1 + e^-t) and log(1 + e^t).
template <class T>
struct Logistic {
    T sigmoid;
    T softplus;
};

template <class T>
ROBUSTDML_HD Logistic<T> logistic(T t) {
    const T e = exp_fast(t < T(0) ? t : -t);
    return {(t < T(0) ? e : T(1)) / (T(1) + e), log1p_positive(e, t < T(0) ? T(0) : t)};
}

}  // namespace robustdml::cpu
