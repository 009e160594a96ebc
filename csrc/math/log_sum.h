// log(1 + sum of w e^x), one x at a time.
#pragma once

#include <cmath>

#include "math/portable.h"

namespace robustdml {

// sum <- sum + w e^(x - shift), where shift becomes the largest x so far. It starts at 0, the exponent of the
// one, so it stays finite however many exponents are -inf. A NaN makes the sum NaN.
//
// One exponential either way: it scales the new term, or all the terms before it.
template <class T>
ROBUSTDML_HD void add_exponential(T& shift, T& sum, T x, T weight) {
    const T above = x - shift;
    const T e = std::exp(-std::abs(above));
    if (above > T(0)) {
        sum = sum * e + weight;
        shift = x;
    } else {
        sum += weight * e;
    }
}

// Without a shift this is log1p: a sum far below 1 must not be rounded away. A sum of 0 is that of an empty
// set, whose shift may be that of a set before mining: e^-shift may be 0 as well, and the logarithm of both
// -inf.
template <class T>
ROBUSTDML_HD T log_one_plus(T shift, T sum) {
    if (sum == T(0)) return T(0);
    return shift == T(0) ? std::log1p(sum) : shift + std::log(std::exp(-shift) + sum);
}

// e^shift / (1 + the whole sum): what turns e^(x - shift) into the gradient of the logarithm. 1 for an empty
// set, which has no term to multiply.
template <class T>
ROBUSTDML_HD T inverse_one_plus(T shift, T sum) {
    if (sum == T(0)) return T(1);
    return T(1) / ((shift == T(0) ? T(1) : std::exp(-shift)) + sum);
}

}  // namespace robustdml
