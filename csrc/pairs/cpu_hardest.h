// The hardest pairs of anchors: the least cosine with a candidate of their label, the largest with another.
#pragma once

#include <algorithm>
#include <cstdint>

#include "math/limits.h"
#include "pairs/cpu.h"

namespace robustdml::cpu {

// Whether a candidate is positive or negative, and what its cosine is compared as.
template <class T>
struct HardestPair {
    T positive;
    T negative;
};

template <class T>
ROBUSTDML_HD HardestPair<T> hardest_pair(T cosine, PairLabel label, PairLabel other) {
    const bool same = other == label;
    return {same ? cosine : kInfinity<T>, !same && other != kAbsent<PairLabel> ? cosine : -kInfinity<T>};
}

// Of one anchor, whose row of S holds cosines / `cosine`. NaN in its own place is in no set.
template <class T>
ROBUSTDML_HD void hardest_of_row(const Pairs<T>& c, std::int64_t row, const T* s, T cosine) {
    if (!c.hardest_positive) return;
    const PairLabel label = c.labels[row];
    const std::int64_t own = c.itself >= 0 ? c.itself + row : c.m;
    const std::int64_t begins[] = {0, std::min(own + 1, c.m)}, ends[] = {own, c.m};
    T lowest = kInfinity<T>, highest = -kInfinity<T>;
    for (int side = 0; side < 2 && label != kAbsent<PairLabel>; ++side) {
#pragma omp simd reduction(min : lowest) reduction(max : highest)
        for (std::int64_t x = begins[side]; x < ends[side]; ++x) {
            const HardestPair<T> pair = hardest_pair(s[x], label, c.candidate_labels[x]);
            lowest = pair.positive < lowest ? pair.positive : lowest;
            highest = pair.negative > highest ? pair.negative : highest;
        }
    }
    c.hardest_positive[row] = lowest * cosine;
    c.hardest_negative[row] = highest * cosine;
}

// The same with candidates as rows begin ... end - 1 and anchors as columns: (m,) in/out.
template <class T>
ROBUSTDML_HD void hardest_of_columns(const Pairs<T>& c, std::int64_t begin, std::int64_t end, T* lowest,
                                     T* highest) {
    for (std::int64_t row = begin; row < end; ++row) {
        const PairLabel label = c.labels[row];
        if (label == kAbsent<PairLabel>) continue;
        const T* s = c.S + row * c.m;
        const T cosine = c.inverse_norm ? c.inverse_norm[row] : T(1);
        const std::int64_t own = c.itself >= 0 ? std::min(c.itself + row, c.m) : c.m;
        const std::int64_t begins[] = {0, std::min(own + 1, c.m)}, ends[] = {own, c.m};
        for (int side = 0; side < 2; ++side) {
#pragma omp simd
            for (std::int64_t x = begins[side]; x < ends[side]; ++x) {
                const HardestPair<T> pair = hardest_pair(s[x] * cosine, label, c.candidate_labels[x]);
                lowest[x] = pair.positive < lowest[x] ? pair.positive : lowest[x];
                highest[x] = pair.negative > highest[x] ? pair.negative : highest[x];
            }
        }
    }
}

}  // namespace robustdml::cpu
