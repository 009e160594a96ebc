// Lengths at the ends of a type's range: where a square overflows or loses its digits.
#pragma once

#include "math/portable.h"

namespace robustdml {

// Lengths whose squares the type holds with all of its digits, and likewise products of such rows with unit
// vectors.
template <class T>
constexpr T kShortest = sizeof(T) == 4 ? T(1e-9) : T(1e-100);
template <class T>
constexpr T kLongest = sizeof(T) == 4 ? T(1e9) : T(1e100);

// A power of two that brings a vector of this squared length, as the type has it, among those; 1 where it is.
template <class T>
ROBUSTDML_HD T near_one_factor(T square) {
    if (square > kShortest<T> * kShortest<T> && square < kLongest<T> * kLongest<T>) return T(1);
    const bool is_short = square < T(1);
    return sizeof(T) == 4 ? static_cast<T>(is_short ? 0x1p80 : 0x1p-80)
                          : static_cast<T>(is_short ? 0x1p600 : 0x1p-600);
}

}  // namespace robustdml
