// Limits that host and device share; those of the floating types because device code can't call
// std::numeric_limits.
#pragma once

#include <limits>

namespace robustdml {

template <class T>
constexpr T kLargest = std::numeric_limits<T>::max();
template <class T>
constexpr T kSmallestNormal = std::numeric_limits<T>::min();
template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T>
constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

}  // namespace robustdml
