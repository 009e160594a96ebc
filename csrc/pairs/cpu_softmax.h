// A row of the contrasts outside and inside, out of sums over its positives and negatives.
#pragma once

#include <algorithm>
#include <cmath>

#include "math/exp.h"
#include "math/limits.h"

namespace robustdml::cpu {

// Sums over both sets of a row, of e = 2^(slope (s - end)) and of s e, and of the positives' s and number.
struct SoftmaxSums {
    double positive = 0, negative = 0, positive_slope = 0, negative_slope = 0, s = 0, number = 0;
};

struct SoftmaxUpstream {
    double loss;
    double lse;
};

// Loss, log-sum-exp, sums of s dL/dz and of dL/dz; and what turns e into dL/dz: positives e * positive -
// constant, negatives e * negative.
struct SoftmaxRow {
    double loss, lse, slope, shift, positive, negative, constant;
};

// `end` is the largest s of the positives, -inf where there are none; logits are slope s to the base 2, and
// bias.
inline SoftmaxRow softmax_of_sums(const SoftmaxSums& sums, double end, double negative_end, double slope,
                                  double bias, bool inside, const SoftmaxUpstream& upstream) {
    if (end == -kInfinity<double>) return {};
    const double largest = std::max(end, negative_end);
    const double of_positive = std::exp2(slope * (end - largest));
    const double of_negative = std::exp2(slope * (negative_end - largest));
    const double total = sums.positive * of_positive + sums.negative * of_negative;
    // Of differences: a loss near 0 keeps its digits.
    const double above = largest - (inside ? end : sums.s / sums.number);
    const double share = (upstream.loss + upstream.lse) / total;
    SoftmaxRow row;
    row.loss =
        slope * above / kLog2E + std::log(total) - (inside ? std::log(sums.positive / sums.number) : 0.0);
    row.lse = slope * largest / kLog2E + bias + std::log(total);
    row.positive = share * of_positive - (inside ? upstream.loss / sums.positive : 0.0);
    row.negative = share * of_negative;
    row.constant = inside ? 0.0 : upstream.loss / sums.number;
    row.slope =
        row.positive * sums.positive_slope + row.negative * sums.negative_slope - row.constant * sums.s;
    row.shift = row.positive * sums.positive + row.negative * sums.negative - row.constant * sums.number;
    return row;
}

}  // namespace robustdml::cpu
