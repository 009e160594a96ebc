// The distance of two vectors' directions where their cosine is so near 1 that 2 - 2s has no right digit
// left.
#pragma once

#include <cmath>

#include "math/portable.h"

namespace robustdml {

// Sums over the elements of u and v, the two vectors each over its largest element: |u - v|^2,
// |u|^2 - |v|^2 = (u - v).(u + v), and |u|^2.
struct NearSums {
    double difference;
    double radial;
    double square;
};

// With d = | u / |u| - v / |v| |: d^2 |u||v| = |u - v|^2 - (|u| - |v|)^2. The quotients u and v are rounded,
// so below 1e-14 the rest is rounding, and the directions are one.
ROBUSTDML_HD double unit_distance(const NearSums& sums) {
    const double u = std::sqrt(sums.square), v = std::sqrt(sums.square - sums.radial);
    const double radial = sums.radial / (u + v);
    const double square = (sums.difference - radial * radial) / (u * v);
    return square > 1e-28 ? std::sqrt(square) : 0.0;
}

}  // namespace robustdml
