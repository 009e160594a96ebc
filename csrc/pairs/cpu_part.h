// Some anchors of a chunk of all.
#pragma once

#include "pairs/cpu.h"

namespace robustdml::cpu {

template <class T>
Pairs<T> part_of(const Pairs<T>& whole, std::int64_t first, std::int64_t count, T* S) {
    Pairs<T> part = whole;
    part.S = S;
    part.rows = count;
    part.labels += first;
    part.relations_row += first;
    if (whole.itself >= 0) part.itself += first;
    part.positive += first;
    part.negative += first;
    if (whole.hardest_positive) {
        part.hardest_positive += first;
        part.hardest_negative += first;
    }
    if (whole.upstream_positive) {
        part.upstream_positive += first * whole.upstream_positive_stride;
        part.upstream_negative += first * whole.upstream_negative_stride;
    }
    return part;
}

template <class T>
PairLSEProblem<T> part_of(const PairLSEProblem<T>& problem, std::int64_t) {
    return problem;
}

template <class T>
PairHingeProblem<T> part_of(const PairHingeProblem<T>& problem, std::int64_t first) {
    PairHingeProblem<T> part = problem;
    part.positive_count += first;
    part.negative_count += first;
    if (problem.euclidean) part.anchors = static_cast<const T*>(problem.anchors) + first * problem.D;
    return part;
}

template <class T>
PairContrastProblem<T> part_of(const PairContrastProblem<T>& problem, std::int64_t first) {
    PairContrastProblem<T> part = problem;
    if (problem.dscale) {
        part.dscale += first;
        part.dbias += first;
    }
    return part;
}

}  // namespace robustdml::cpu
