// The special functions of the von Mises-Fisher distribution at a fixed order v and a varying kappa >= 0;
// their derivation is in docs/numerics.md. With r = sqrt(v^2 + kappa^2) they are sums of terms of one sign,
// so each keeps its relative accuracy:
//
//   log_0f1           g = log 0F1(; v + 1; kappa^2 / 4) = log C_D(0) - log C_D(kappa),  v = D/2 - 1
//   peak              h = kappa - g
//   log_i             log I_v(kappa)
//   ratio             A = I_{v+1}(kappa) / I_v(kappa) = g'
//   ratio_derivative  A'
#pragma once

#include <cmath>

#include "math/debye.h"
#include "math/limits.h"
#include "math/log.h"
#include "math/portable.h"

namespace robustdml {

enum class VmfFunction { log_0f1, peak, log_i, ratio, ratio_derivative };

constexpr int kSeriesTerms = 48;

// All that depends on v alone, prepared once a call in double.
template <class T>
struct VmfOrder {
    T v;
    T inverse_base;  // 1 / v, or 1 where v < 1: the series begins at large kappa there
    T excess;        // v / base - 1
    T constant;      // log Gamma(v + 1) - (v log(base) - v + log(2 pi base) / 2)
    T log_scale;     // log Gamma(v + 1) + v log(2)
    T series_below;  // kappa under which the power series serves
    // 1 / (n (v + n)), 1 / (n (v + 1 + n)), 1 / (n (v + 2 + n)) at [.][n]; [.][0] is not used.
    T reciprocals[3][kSeriesTerms + 1];
    int debye_terms;
    int series_terms;
};

template <class T>
VmfOrder<T> vmf_order(double v, double base, double constant, double log_scale, double series_below,
                      int debye_terms, int series_terms) {
    VmfOrder<T> order{T(v), T(1 / base), T((v - base) / base), T(constant), T(log_scale), T(series_below),
                      {},   debye_terms, series_terms};
    for (int shift = 0; shift < 3; ++shift)
        for (int n = 1; n <= kSeriesTerms; ++n) order.reciprocals[shift][n] = T(1 / (n * (v + shift + n)));
    return order;
}

// 1 + z / (n (v + n)) (1 + z / ((n + 1) (v + n + 1)) (...)): the power series of 0F1 from its term n on.
template <int last, int n = 1, class T>
ROBUSTDML_HD T power_series(T z, const T* reciprocals) {
    const T step = z * reciprocals[n];
    if constexpr (n == last)
        return T(1) + step;
    else
        return T(1) + step * power_series<last, n + 1>(z, reciprocals);
}

// The functions by power series, for kappa up to order.series_below.
template <VmfFunction function, int kSeries, class T>
ROBUSTDML_HD T vmf_by_series(T kappa, const VmfOrder<T>& order) {
    const T z = kappa * kappa * T(0.25);
    if constexpr (function == VmfFunction::log_0f1 || function == VmfFunction::peak ||
                  function == VmfFunction::log_i) {
        const T* reciprocals = order.reciprocals[0];
        const T above_one = z * reciprocals[1] * power_series<kSeries, 2>(z, reciprocals);
        return function == VmfFunction::peak ? -log1p_positive(above_one, -kappa) : log1p_positive(above_one);
    } else {
        const T F0 = power_series<kSeries>(z, order.reciprocals[0]);
        const T F1 = power_series<kSeries>(z, order.reciprocals[1]);
        const T ratio_by_kappa = T(0.5) / (order.v + T(1)) * (F1 / F0);
        const T ratio = kappa * ratio_by_kappa;
        if constexpr (function == VmfFunction::ratio) return ratio;
        const T F2 = power_series<kSeries>(z, order.reciprocals[2]);
        const T next_ratio = kappa * T(0.5) / (order.v + T(2)) * (F2 / F1);
        return ratio_by_kappa + ratio * (next_ratio - ratio);
    }
}

// sqrt(v^2 + kappa^2) where the square of kappa may overflow: there it is kappa.
template <class T>
ROBUSTDML_HD T vmf_radius(T v, T kappa) {
    constexpr T kSquarable = T(sizeof(T) == 8 ? 1e150 : 1e18);
    const T squarable = kappa < kSquarable ? kappa : kSquarable;
    return std::sqrt(v * v + squarable * squarable) + (kappa - squarable);
}

// The functions by the logarithm of Debye's series, for kappa from order.series_below on; of log_i what
// stands beside the power of kappa.
template <VmfFunction function, int kTerms, class T>
ROBUSTDML_HD T vmf_by_debye(T kappa, T r, const VmfOrder<T>& order) {
    const T v = order.v;
    const T inverse_r = T(1) / r;
    const T q = (v * inverse_r) * (v * inverse_r);
    if constexpr (function == VmfFunction::log_i) {
        constexpr T kHalfLog2Pi = T(0.91893853320467274178);
        return r - (kHalfLog2Pi + T(0.5) * log_positive(r)) + debye_series<0, kTerms>(inverse_r, q);
    } else if constexpr (function == VmfFunction::ratio) {
        const T first = inverse_r * (T(0.5) + debye_series<1, kTerms>(inverse_r, q));
        return kappa / (v + r) - kappa * inverse_r * first;
    } else if constexpr (function == VmfFunction::ratio_derivative) {
        const T first = inverse_r * inverse_r * (T(0.5) + debye_series<1, kTerms>(inverse_r, q));
        const T slope = kappa * inverse_r * inverse_r;
        return v * inverse_r / (v + r) - first +
               slope * slope * (T(1) + debye_series<2, kTerms>(inverse_r, q));
    } else {
        const T delta = kappa * (kappa / (r + v));
        const T ratio = delta * order.inverse_base;
        const T logs =
            v * log1p_positive(T(0.5) * ratio + order.excess) + T(0.5) * log1p_positive(ratio + order.excess);
        const T rest = debye_series<0, kTerms>(inverse_r, q) + order.constant;
        if constexpr (function == VmfFunction::log_0f1) return delta - logs + rest;
        return T(2) * v / (T(1) + (v + r) / kappa) + logs - rest;
    }
}

// One function of one kappa: infinity has its limit, a negative number or NaN gives NaN. Both branches are
// computed, because a vector holds both kinds.
template <VmfFunction function, int kTerms, int kSeries, class T>
ROBUSTDML_HD T vmf_function(T kappa, const VmfOrder<T>& order) {
    constexpr bool kGrows = function != VmfFunction::ratio && function != VmfFunction::ratio_derivative;
    const T finite = kappa < kLargest<T> ? kappa : kLargest<T>;
    const T limit = order.series_below;
    const bool small = finite < limit;
    const T large_kappa = small ? limit : finite;
    const T r = vmf_radius(order.v, large_kappa);
    const T by_series = vmf_by_series<function, kSeries>(small ? finite : limit, order);
    const T by_debye = vmf_by_debye<function, kTerms>(large_kappa, r, order);
    T value = small ? by_series : by_debye;
    if constexpr (function == VmfFunction::log_i) {
        // The power is (kappa / 2)^v / Gamma(v + 1) beside the power series, (kappa / (v + r))^v beside
        // Debye's.
        const T power = order.v * log_positive(small ? finite : finite / (order.v + r));
        value += (order.v == T(0) ? T(0) : power) - (small ? order.log_scale : T(0));
    }
    if constexpr (kGrows) value += kappa > kLargest<T> ? kappa : T(0);
    return kappa >= T(0) ? value : kNaN<T>;
}

}  // namespace robustdml
