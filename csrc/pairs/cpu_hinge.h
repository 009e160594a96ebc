// Hinges of a pair, and distances of a row out of its cosines, of both sweeps.
#pragma once

#include <cmath>

#include "math/limits.h"
#include "math/unit_distance.h"
#include "pairs/cpu.h"

namespace robustdml::cpu {

template <class T>
ROBUSTDML_HD T near_distance(const PairHingeProblem<T>& problem, std::int64_t row, std::int64_t x) {
    const std::int64_t D = problem.D;
    const T* p = static_cast<const T*>(problem.anchors) + row * D;
    const T* q = static_cast<const T*>(problem.candidates) + x * D;
    T p_largest = 0, q_largest = 0;
#pragma omp simd reduction(max : p_largest, q_largest)
    for (std::int64_t d = 0; d < D; ++d) {
        const T p_size = std::abs(p[d]), q_size = std::abs(q[d]);
        p_largest = p_size > p_largest ? p_size : p_largest;
        q_largest = q_size > q_largest ? q_size : q_largest;
    }
    const double p_scale = 1.0 / p_largest, q_scale = 1.0 / q_largest;
    double difference = 0, radial = 0, square = 0;
#pragma omp simd reduction(+ : difference, radial, square)
    for (std::int64_t d = 0; d < D; ++d) {
        const double u = p[d] * p_scale, v = q[d] * q_scale;
        difference += (u - v) * (u - v);
        radial += (u - v) * (u + v);
        square += u * u;
    }
    return static_cast<T>(unit_distance({difference, radial, square}));
}

// s <- minus the distances, of some of a row's candidates.
template <class T>
ROBUSTDML_HD void take_distances(const PairHingeProblem<T>& problem, std::int64_t row, T* s,
                                 std::int64_t from, std::int64_t to, T cosine) {
    T highest = -kInfinity<T>;
#pragma omp simd reduction(max : highest)
    for (std::int64_t x = from; x < to; ++x) {
        const T square = T(2) - T(2) * (s[x] * cosine);
        // The root of what rounding has left below 0 would be NaN; an anchor's own place is to stay one.
        const T t = -std::sqrt(square < T(0) ? T(0) : square);
        highest = t > highest ? t : highest;
        s[x] = t;
    }
    if (!(highest > -problem.near)) return;
    for (std::int64_t x = from; x < to; ++x)
        if (s[x] > -problem.near) s[x] = -near_distance(problem, row, x);
}

// A row of S, of an anchor or of a candidate.
template <class T>
struct HingeRow {
    T* s;
    T cosine;
    T gradient;
    PairLabel label;
    PairLabel takes_part;
};

// A candidate.
template <class T>
struct HingeColumn {
    PairLabel label;
    T attraction;  // dL/ds of a positive
    T repulsion;
};

// Terms of one anchor.
template <class T>
struct HingeTerms {
    T positive;
    T negative;
    PairLabel positives;
    PairLabel negatives;
};

// Adds the terms of one pair, and replaces S by dL/dS.
template <class T, bool Euclidean>
ROBUSTDML_HD void add_pair(const PairHingeProblem<T>& problem, const HingeRow<T>& row,
                           const HingeColumn<T>& column, std::int64_t x, HingeTerms<T>& terms) {
    const T t = Euclidean ? row.s[x] : row.s[x] * row.cosine;
    // dt/ds.
    const T slope = !Euclidean ? row.gradient : t < -problem.resolution ? -row.gradient / t : T(0);
    const bool same = column.label == row.label;
    const bool present = (column.label != kAbsent<PairLabel>)&(row.takes_part != 0);
    const bool attracts = present & same & (t < problem.positive_margin);
    const bool repels = present & !same & (t > problem.negative_margin);
    terms.positive += attracts ? problem.positive_margin + problem.positive_offset - t : T(0);
    terms.negative += repels ? t - (problem.negative_margin - problem.negative_offset) : T(0);
    terms.positives += attracts ? 1 : 0;
    terms.negatives += repels ? 1 : 0;
    row.s[x] = (attracts ? column.attraction : repels ? column.repulsion : T(0)) * slope;
}

}  // namespace robustdml::cpu
