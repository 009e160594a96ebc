#include <algorithm>
#include <cmath>

#include "common/cpu/clones.h"
#include "common/cpu/epilogue.h"
#include "common/cpu/parts.h"
#include "math/exp.h"
#include "math/limits.h"
#include "math/log.h"
#include "pairs/cpu.h"
#include "pairs/cpu_softmax.h"

namespace robustdml::cpu {
namespace {

// One anchor: its row of S, its label, its logits slope s + bias in base 2, and where its own place divides
// the candidates.
template <class T>
struct Row {
    T* s;
    const PairLabel* labels;
    PairLabel label;
    T slope;
    T bias;
    std::int64_t begin[2];
    std::int64_t end[2];
};

template <class T>
ROBUSTDML_HD Row<T> row_of(const Pairs<T>& c, const PairContrastProblem<T>& problem, std::int64_t row,
                           T cosine) {
    const std::int64_t own = c.itself >= 0 ? c.itself + row : c.m;
    const T log2e = static_cast<T>(kLog2E);
    return {c.S + row * c.m,
            c.candidate_labels,
            c.labels[row],
            problem.coefficients[0] * cosine * log2e,
            problem.coefficients[1] * log2e,
            {0, std::min(own + 1, c.m)},
            {own, c.m}};
}

// The largest s of both sets; -inf for an empty one. Exponents are slope (s - end): a difference of cosines
// has digits that one of logits has lost.
template <class T>
struct Ends {
    T positive;
    T negative;
};

template <class T>
ROBUSTDML_HD Ends<T> ends_of(const Row<T>& r) {
    T positive = -kInfinity<T>, negative = -kInfinity<T>;
    for (int side = 0; side < 2; ++side) {
#pragma omp simd reduction(max : positive, negative)
        for (std::int64_t x = r.begin[side]; x < r.end[side]; ++x) {
            const bool same = r.labels[x] == r.label;
            const T of_positive = same ? r.s[x] : -kInfinity<T>;
            const T of_negative = !same && r.labels[x] != kAbsent<PairLabel> ? r.s[x] : -kInfinity<T>;
            positive = of_positive > positive ? of_positive : positive;
            negative = of_negative > negative ? of_negative : negative;
        }
    }
    return {positive, negative};
}

// Exponentials take the place of S, of positives too if Positives, unless the columns need S once more.
template <class T, bool Positives, bool Keep>
ROBUSTDML_HD SoftmaxSums sums_of(const Row<T>& r, const Ends<T>& ends) {
    SoftmaxSums sums;
    for (int side = 0; side < 2; ++side)
        for (std::int64_t from = r.begin[side]; from < r.end[side]; from += kBlock) {
            const std::int64_t to = std::min(r.end[side], from + kBlock);
            T positive = 0, negative = 0, positive_slope = 0, negative_slope = 0, s_sum = 0;
            PairLabel number = 0;
#pragma omp simd reduction(+ : positive, negative, positive_slope, negative_slope, s_sum, number)
            for (std::int64_t x = from; x < to; ++x) {
                const bool same = r.labels[x] == r.label;
                const T s = r.s[x];
                const T power = exp2_fast(r.slope * (s - (same ? ends.positive : ends.negative)));
                const T e = r.labels[x] != kAbsent<PairLabel> ? power : T(0);
                positive += same ? e : T(0);
                negative += same ? T(0) : e;
                positive_slope += same ? s * e : T(0);
                negative_slope += same ? T(0) : s * e;
                s_sum += same ? s : T(0);
                number += same ? 1 : 0;
                if (!Keep) r.s[x] = same && !Positives ? s : e;
            }
            sums.positive += positive;
            sums.negative += negative;
            sums.positive_slope += positive_slope;
            sums.negative_slope += negative_slope;
            sums.s += s_sum;
            sums.number += number;
        }
    return sums;
}

// What turns exponentials into dL/dz: positives e * positive - constant, negatives e * negative.
template <class T>
struct Factors {
    T positive;
    T negative;
    T constant;
};

// Results of a row: loss, log-sum-exp, and with upstream gradients sums of s dL/dz and dL/dz.
template <class T>
ROBUSTDML_HD void store(const Pairs<T>& c, const PairContrastProblem<T>& problem, std::int64_t row,
                        double loss, double lse, double slope, double shift) {
    c.positive[row] = static_cast<T>(loss);
    c.negative[row] = static_cast<T>(lse);
    if (!problem.slope) return;
    problem.slope[row] = static_cast<T>(slope);
    problem.shift[row] = static_cast<T>(shift);
}

template <class T, bool Columns>
ROBUSTDML_HD void softmax_row(const Pairs<T>& c, const PairContrastProblem<T>& problem, const Row<T>& r,
                              const RowScale<T>& scales, T upstream, T lse_upstream, std::int64_t row) {
    const Ends<T> ends = ends_of(r);
    if (ends.positive == -kInfinity<T>) {
        std::fill(r.s, r.s + c.m, T(0));
        return store(c, problem, row, 0.0, 0.0, 0.0, 0.0);
    }
    const SoftmaxSums sums = sums_of<T, true, Columns>(r, ends);
    const SoftmaxRow of_row = softmax_of_sums(sums, ends.positive, ends.negative, r.slope, r.bias / kLog2E,
                                              problem.form == static_cast<std::int64_t>(Contrast::inside),
                                              {upstream, lse_upstream});
    if (!Columns || !c.upstream_positive)
        store(c, problem, row, of_row.loss, of_row.lse, scales.cosine * of_row.slope, of_row.shift);
    if (!c.upstream_positive) return;
    const T factor = problem.coefficients[0] * scales.gradient;
    if (!Columns) {
        const Factors<T> f{T(of_row.positive * factor), T(of_row.negative * factor),
                           T(of_row.constant * factor)};
#pragma omp simd
        for (std::int64_t x = 0; x < c.m; ++x) {
            const bool same = r.labels[x] == r.label;
            r.s[x] = r.s[x] * (same ? f.positive : f.negative) - (same ? f.constant : T(0));
        }
        return;
    }
    const Factors<T> f{T(of_row.positive), T(of_row.negative), T(of_row.constant)};
    const T log2e = static_cast<T>(kLog2E);
    double slope = 0, shift = 0;
    for (int side = 0; side < 2; ++side)
        for (std::int64_t from = r.begin[side]; from < r.end[side]; from += kBlock) {
            const std::int64_t to = std::min(r.end[side], from + kBlock);
            T slope_sum = 0, shift_sum = 0;
#pragma omp simd reduction(+ : slope_sum, shift_sum)
            for (std::int64_t x = from; x < to; ++x) {
                const bool same = r.labels[x] == r.label, present = r.labels[x] != kAbsent<PairLabel>;
                const T s = r.s[x], z = r.slope * s + r.bias;
                const T e = exp2_fast(r.slope * (s - (same ? ends.positive : ends.negative)));
                const T of_column = problem.column_upstream[x] * exp2_fast(z - log2e * problem.column_lse[x]);
                const T of_its_row = same ? e * f.positive - f.constant : e * f.negative;
                const T dz = present ? of_its_row + of_column : T(0);
                slope_sum += s * dz;
                shift_sum += dz;
                r.s[x] = dz * factor;
            }
            slope += slope_sum;
            shift += shift_sum;
        }
    store(c, problem, row, of_row.loss, of_row.lse, scales.cosine * slope, shift);
}

template <class T>
ROBUSTDML_HD void each_row(const Pairs<T>& c, const PairContrastProblem<T>& problem, const Row<T>& r,
                           const RowScale<T>& scales, T upstream, std::int64_t row) {
    const Ends<T> ends = ends_of(r);
    if (ends.positive == -kInfinity<T> || ends.negative == -kInfinity<T>) {
        std::fill(r.s, r.s + c.m, T(0));
        return store(c, problem, row, 0.0, 0.0, 0.0, 0.0);
    }
    const SoftmaxSums sums = sums_of<T, false, false>(r, ends);
    const double log_sum = std::log(sums.negative);
    const T factor = problem.coefficients[0] * scales.gradient;
    double loss = 0, above = 0, slope = 0;
    for (int side = 0; side < 2; ++side)
        for (std::int64_t x = r.begin[side]; x < r.end[side]; ++x) {
            if (r.labels[x] != r.label) continue;
            const double t = r.slope * (double(ends.negative) - r.s[x]) / kLog2E + log_sum;
            const double e = std::exp(-std::abs(t));
            const double sigmoid = (t < 0 ? e : 1.0) / (1.0 + e);
            loss += std::max(t, 0.0) + std::log1p(e);
            above += sigmoid;
            slope += sigmoid * r.s[x];
            r.s[x] = static_cast<T>(-sigmoid * upstream * factor);
        }
    const double share = above / sums.negative;
    store(c, problem, row, loss, 0.0, upstream * scales.cosine * (share * sums.negative_slope - slope), 0.0);
    if (!c.upstream_positive) return;
    const T of_negative = static_cast<T>(share * upstream * factor);
#pragma omp simd
    for (std::int64_t x = 0; x < c.m; ++x) r.s[x] *= r.labels[x] == r.label ? T(1) : of_negative;
}

template <class T>
ROBUSTDML_HD void sigmoid_row(const Pairs<T>& c, const PairContrastProblem<T>& problem, const Row<T>& r,
                              const RowScale<T>& scales, T upstream, std::int64_t row) {
    const T scale = problem.coefficients[0] * scales.cosine, bias = problem.coefficients[1];
    const T factor = upstream * problem.coefficients[0] * scales.gradient;
    double loss = 0, slope = 0, shift = 0;
    for (int side = 0; side < 2; ++side)
        for (std::int64_t from = r.begin[side]; from < r.end[side]; from += kBlock) {
            const std::int64_t to = std::min(r.end[side], from + kBlock);
            T loss_sum = 0, slope_sum = 0, shift_sum = 0;
#pragma omp simd reduction(+ : loss_sum, slope_sum, shift_sum)
            for (std::int64_t x = from; x < to; ++x) {
                const bool same = r.labels[x] == r.label, present = r.labels[x] != kAbsent<PairLabel>;
                // A positive is a negative of the opposite logit.
                const T sign = same ? T(-1) : T(1), z = sign * (scale * r.s[x] + bias);
                const T e = exp_fast(z < T(0) ? z : -z);
                const T sigmoid = (z < T(0) ? e : T(1)) / (T(1) + e);
                const T dz = present ? sign * sigmoid : T(0);
                loss_sum += present ? log1p_positive(e, z < T(0) ? T(0) : z) : T(0);
                slope_sum += dz * r.s[x];
                shift_sum += dz;
                r.s[x] = dz * factor;
            }
            loss += loss_sum;
            slope += slope_sum;
            shift += shift_sum;
        }
    store(c, problem, row, loss, 0.0, upstream * scales.cosine * slope, upstream * shift);
}

template <class T>
ROBUSTDML_HD void contrast_row(const Pairs<T>& c, const PairContrastProblem<T>& problem, std::int64_t row) {
    scale_candidates(c, row);
    const RowScale<T> scales = scale_of_row(c, row, c.S + row * c.m, c.m);
    const Row<T> r = row_of(c, problem, row, scales.cosine);
    if (r.label == kAbsent<PairLabel>) {
        std::fill(r.s, r.s + c.m, T(0));
        return store(c, problem, row, 0.0, 0.0, 0.0, 0.0);
    }
    T upstream = 0, lse_upstream = 0;
    if (c.upstream_positive) {
        upstream = c.upstream_positive[row * c.upstream_positive_stride];
        lse_upstream = c.upstream_negative[row * c.upstream_negative_stride];
    }
    if (problem.form == static_cast<std::int64_t>(Contrast::sigmoid))
        sigmoid_row(c, problem, r, scales, upstream, row);
    else if (problem.form == static_cast<std::int64_t>(Contrast::each))
        each_row(c, problem, r, scales, upstream, row);
    else if (problem.column_lse)
        softmax_row<T, true>(c, problem, r, scales, upstream, lse_upstream, row);
    else
        softmax_row<T, false>(c, problem, r, scales, upstream, lse_upstream, row);
    if (r.begin[1] > r.end[0]) r.s[r.end[0]] = T(0);
    if (c.upstream_positive) scale_candidates(c, row);
}

#define ROBUSTDML_STAMP(T)                                                                         \
    ROBUSTDML_CLONES void contrast_clone(const Pairs<T>& c, const PairContrastProblem<T>& problem, \
                                         std::int64_t begin, std::int64_t end) {                   \
        for (std::int64_t row = begin; row < end; ++row) contrast_row(c, problem, row);            \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairContrastProblem<T>& problem, int threads) {
    in_parts(chunk.rows, threads, chunk.rows * chunk.m > 8192,
             [&](std::int64_t begin, std::int64_t end) { contrast_clone(chunk, problem, begin, end); });
}

template void pair_sums<float>(const Pairs<float>&, const PairContrastProblem<float>&, int);
template void pair_sums<double>(const Pairs<double>&, const PairContrastProblem<double>&, int);

}  // namespace robustdml::cpu
