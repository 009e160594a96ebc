#include "pairs/cpu.h"

#include <algorithm>
#include <cmath>

#include "common/cpu/clones.h"
#include "common/cpu/epilogue.h"
#include "common/cpu/parts.h"
#include "math/exp.h"
#include "math/limits.h"
#include "pairs/cpu_hardest.h"
#include "pairs/cpu_hinge.h"
#include "pairs/cpu_relations.h"

namespace robustdml::cpu {
namespace {

// Marks the anchor's own place: in no set, since every comparison with it is false.
template <class T>
ROBUSTDML_HD RowScale<T> begin_row(const Pairs<T>& c, std::int64_t row, T* s) {
    scale_candidates(c, row);
    const RowScale<T> scales = scale_of_row(c, row, s, c.m);
    hardest_of_row(c, row, s, scales.cosine);
    if (c.itself >= 0) s[c.itself + row] = kNaN<T>;
    return scales;
}

// Limits of a row's mining: the extrema of its sets, or limits that keep every pair.
template <class T>
struct Extrema {
    T lowest_positive;
    T highest_negative;
};

template <class T>
ROBUSTDML_HD Extrema<T> extrema_of_row(const Pairs<T>& c, const T* s, PairLabel label, T cosine) {
    const PairLabel* labels = c.candidate_labels;
    T lowest = kInfinity<T>, highest = -kInfinity<T>;
#pragma omp simd reduction(min : lowest) reduction(max : highest)
    for (std::int64_t x = 0; x < c.m; ++x) {
        const bool same = labels[x] == label;
        const T positive = same ? s[x] : kInfinity<T>;
        const T negative = !same && labels[x] != kAbsent<PairLabel> ? s[x] : -kInfinity<T>;
        lowest = positive < lowest ? positive : lowest;
        highest = negative > highest ? negative : highest;
    }
    return {lowest * cosine, highest * cosine};
}

// Mining: whether a pair of a row is informative.
template <class T>
struct Informative {
    PairLabel label;
    T cosine;
    T epsilon;
    Extrema<T> ends;

    ROBUSTDML_HD bool operator()(T s, PairLabel other) const {
        const T value = s * cosine;
        return other == label ? value - epsilon < ends.highest_negative
                              : (other != kAbsent<PairLabel>)&(value + epsilon > ends.lowest_positive);
    }
};

// Mean weight of the informative candidates, by side; 0 for an empty set.
template <class T>
ROBUSTDML_HD RowUpstream<T> mean_weights(const Pairs<T>& c, const PairLSEProblem<T>& problem, const T* s,
                                         const Informative<T>& informative) {
    const T* weights = problem.candidate_weights;
    if (!weights) return {T(1), T(1)};
    double positive = 0, negative = 0;
    std::int64_t positives = 0, negatives = 0;
    for (std::int64_t from = 0; from < c.m; from += kBlock) {
        const std::int64_t to = std::min(c.m, from + kBlock);
        T positive_sum = 0, negative_sum = 0;
        PairLabel positive_count = 0, negative_count = 0;
#pragma omp simd reduction(+ : positive_sum, negative_sum, positive_count, negative_count)
        for (std::int64_t x = from; x < to; ++x) {
            const bool same = c.candidate_labels[x] == informative.label,
                       mined = informative(s[x], c.candidate_labels[x]);
            positive_sum += mined && same ? weights[x] : T(0);
            negative_sum += mined && !same ? weights[x] : T(0);
            positive_count += mined && same ? 1 : 0;
            negative_count += mined && !same ? 1 : 0;
        }
        positive += positive_sum;
        negative += negative_sum;
        positives += positive_count;
        negatives += negative_count;
    }
    return {static_cast<T>(positives ? positive / positives : 0),
            static_cast<T>(negatives ? negative / negatives : 0)};
}

template <class T>
ROBUSTDML_HD void pair_lse_row(const Pairs<T>& c, const PairLSEProblem<T>& problem, std::int64_t row) {
    T* s = c.S + row * c.m;
    const PairLabel label = c.labels[row];
    const PairLabel* labels = c.candidate_labels;
    const RowScale<T> scales = begin_row(c, row, s);
    if (label == kAbsent<PairLabel>) {
        c.positive[row] = c.negative[row] = T(0);
        std::fill(s, s + c.m, T(0));
        return;
    }
    Extrema<T> ends{-kInfinity<T>, kInfinity<T>};
    if (problem.mining || problem.row_max) ends = extrema_of_row(c, s, label, scales.cosine);
    const Informative<T> informative{label, scales.cosine, problem.epsilon,
                                     problem.mining ? ends : Extrema<T>{-kInfinity<T>, kInfinity<T>}};
    const RowUpstream<T> means = mean_weights(c, problem, s, informative);

    // In base 2, where an exponential is two operations cheaper. The ends of the sets are the largest
    // exponents, mined or not: an extreme pair stays if any does. An empty set has an end of -inf.
    const T alpha = static_cast<T>(problem.alpha * kLog2E), beta = static_cast<T>(problem.beta * kLog2E);
    T positive_shift = 0, negative_shift = 0;
    if (problem.row_max) {
        positive_shift = std::max(T(0), alpha * (problem.base - ends.lowest_positive));
        negative_shift = std::max(T(0), beta * (ends.highest_negative - problem.base));
    }
    const T positive_start = alpha * problem.base - positive_shift, positive_slope = -alpha * scales.cosine;
    const T negative_start = -beta * problem.base - negative_shift, negative_slope = beta * scales.cosine;
    double positive_total = 0, negative_total = 0;
    for (std::int64_t from = 0; from < c.m; from += kBlock) {
        const std::int64_t to = std::min(c.m, from + kBlock);
        T positive_sum = 0, negative_sum = 0;
#pragma omp simd reduction(+ : positive_sum, negative_sum)
        for (std::int64_t x = from; x < to; ++x) {
            const bool same = labels[x] == label;
            const T exponent =
                (same ? positive_start : negative_start) + (same ? positive_slope : negative_slope) * s[x];
            const T power = exp2_fast(exponent);
            const T e = informative(s[x], labels[x]) ? power : T(0);
            positive_sum += same ? e : T(0);
            negative_sum += same ? T(0) : e;
            s[x] = same ? -e : e;  // the sign tells the sets apart
        }
        positive_total += positive_sum;
        negative_total += negative_sum;
    }
    const double positive_natural = positive_shift / kLog2E, negative_natural = negative_shift / kLog2E;
    c.positive[row] = means.positive * log_sum<T>(positive_natural, positive_total);
    c.negative[row] = means.negative * log_sum<T>(negative_natural, negative_total);
    if (!c.upstream_positive) return;
    const RowUpstream<T> upstream = upstream_of_row(c, row);
    const T positive_factor =
        static_cast<T>(problem.alpha * scales.gradient * means.positive * upstream.positive *
                       inverse_one_plus(positive_natural, positive_total));
    const T negative_factor =
        static_cast<T>(problem.beta * scales.gradient * means.negative * upstream.negative *
                       inverse_one_plus(negative_natural, negative_total));
#pragma omp simd
    for (std::int64_t x = 0; x < c.m; ++x) s[x] *= s[x] < T(0) ? positive_factor : negative_factor;
    scale_candidates(c, row);
}

template <class T, bool Euclidean>
ROBUSTDML_HD void pair_hinge_row(const Pairs<T>& c, const PairHingeProblem<T>& problem, std::int64_t row) {
    T* s = c.S + row * c.m;
    const PairLabel label = c.labels[row];
    const PairLabel* labels = c.candidate_labels;
    const RowScale<T> scales = begin_row(c, row, s);
    if (label == kAbsent<PairLabel>) {
        c.positive[row] = c.negative[row] = T(0);
        problem.positive_count[row] = problem.negative_count[row] = 0;
        std::fill(s, s + c.m, T(0));
        return;
    }
    const RowUpstream<T> upstream = upstream_of_row(c, row);
    const HingeRow<T> anchor{s, scales.cosine, scales.gradient, label, 1};
    const PairHingeProblem<T> settings = problem;
    double positive_total = 0, negative_total = 0;
    std::int64_t positives = 0, negatives = 0;
    for (std::int64_t from = 0; from < c.m; from += kBlock) {
        const std::int64_t to = std::min(c.m, from + kBlock);
        if (Euclidean) take_distances(problem, row, s, from, to, scales.cosine);
        T positive_sum = 0, negative_sum = 0;
        PairLabel positive_count = 0, negative_count = 0;
#pragma omp simd reduction(+ : positive_sum, negative_sum, positive_count, negative_count)
        for (std::int64_t x = from; x < to; ++x) {
            HingeTerms<T> terms{0, 0, 0, 0};
            const HingeColumn<T> candidate{labels[x], -upstream.positive, upstream.negative};
            add_pair<T, Euclidean>(settings, anchor, candidate, x, terms);
            positive_sum += terms.positive;
            negative_sum += terms.negative;
            positive_count += terms.positives;
            negative_count += terms.negatives;
        }
        positive_total += positive_sum;
        negative_total += negative_sum;
        positives += positive_count;
        negatives += negative_count;
    }
    c.positive[row] = static_cast<T>(positive_total);
    c.negative[row] = static_cast<T>(negative_total);
    problem.positive_count[row] = positives;
    problem.negative_count[row] = negatives;
    if (c.upstream_positive) scale_candidates(c, row);
}

// target_clones takes no templates: plain functions of both types.
#define ROBUSTDML_STAMP(T)                                                                                   \
    ROBUSTDML_CLONES void lse_clone(const Pairs<T>& c, const PairLSEProblem<T>& problem, std::int64_t begin, \
                                    std::int64_t end) {                                                      \
        for (std::int64_t row = begin; row < end; ++row) pair_lse_row(c, problem, row);                      \
    }                                                                                                        \
    ROBUSTDML_CLONES void cosine_hinge_clone(const Pairs<T>& c, const PairHingeProblem<T>& problem,          \
                                             std::int64_t begin, std::int64_t end) {                         \
        for (std::int64_t row = begin; row < end; ++row) pair_hinge_row<T, false>(c, problem, row);          \
    }                                                                                                        \
    ROBUSTDML_CLONES void euclidean_hinge_clone(const Pairs<T>& c, const PairHingeProblem<T>& problem,       \
                                                std::int64_t begin, std::int64_t end) {                      \
        for (std::int64_t row = begin; row < end; ++row) pair_hinge_row<T, true>(c, problem, row);           \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairLSEProblem<T>& problem, int threads) {
    in_parts(chunk.rows, threads, chunk.rows * chunk.m > 8192, [&](std::int64_t begin, std::int64_t end) {
        if (!chunk.relations) return lse_clone(chunk, problem, begin, end);
        each_related_row(chunk, begin, end, [&](const Pairs<T>& part, std::int64_t row) {
            lse_clone(part, problem, row, row + 1);
        });
    });
}

template void pair_sums<float>(const Pairs<float>&, const PairLSEProblem<float>&, int);
template void pair_sums<double>(const Pairs<double>&, const PairLSEProblem<double>&, int);

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairHingeProblem<T>& problem, int threads) {
    in_parts(chunk.rows, threads, chunk.rows * chunk.m > 8192, [&](std::int64_t begin, std::int64_t end) {
        const auto sums = [&](const Pairs<T>& part, std::int64_t first, std::int64_t last) {
            if (problem.euclidean)
                euclidean_hinge_clone(part, problem, first, last);
            else
                cosine_hinge_clone(part, problem, first, last);
        };
        if (!chunk.relations) return sums(chunk, begin, end);
        each_related_row(chunk, begin, end,
                         [&](const Pairs<T>& part, std::int64_t row) { sums(part, row, row + 1); });
    });
}

template void pair_sums<float>(const Pairs<float>&, const PairHingeProblem<float>&, int);
template void pair_sums<double>(const Pairs<double>&, const PairHingeProblem<double>&, int);

}  // namespace robustdml::cpu
