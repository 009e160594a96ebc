#include <algorithm>
#include <cmath>

#include "common/cpu/clones.h"
#include "common/cpu/epilogue.h"
#include "common/cpu/parts.h"
#include "math/exp.h"
#include "math/limits.h"
#include "pairs/cpu_hardest.h"
#include "pairs/cpu_relations.h"
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

// Each: exponentials of the negatives take the place of their s.
template <class T, bool Each>
ROBUSTDML_HD SoftmaxSums sums_of(const Row<T>& r, const Ends<T>& ends) {
    SoftmaxSums sums;
    for (int side = 0; side < 2; ++side)
        for (std::int64_t from = r.begin[side]; from < r.end[side]; from += kBlock) {
            const std::int64_t to = std::min(r.end[side], from + kBlock);
            T positive = 0, negative = 0, s_sum = 0, negative_se = 0;
            PairLabel number = 0;
#pragma omp simd reduction(+ : positive, negative, s_sum, number, negative_se)
            for (std::int64_t x = from; x < to; ++x) {
                const bool same = r.labels[x] == r.label;
                const T s = r.s[x];
                const T power = exp2_fast(r.slope * (s - (same ? ends.positive : ends.negative)));
                const T e = r.labels[x] != kAbsent<PairLabel> ? power : T(0);
                positive += same ? e : T(0);
                negative += same ? T(0) : e;
                s_sum += same ? s : T(0);
                number += same ? 1 : 0;
                if (Each) {
                    negative_se += same ? T(0) : s * e;
                    r.s[x] = same ? s : e;
                }
            }
            sums.positive += positive;
            sums.negative += negative;
            sums.s += s_sum;
            sums.number += number;
            sums.negative_se += negative_se;
        }
    return sums;
}

// Results of a row. With upstream gradients dscale and dbias are the sums of s dL/dz and of dL/dz.
struct RowResult {
    double loss = 0, lse = 0, dscale = 0, dbias = 0;
};

template <class T, bool Columns>
ROBUSTDML_HD RowResult softmax_row(const Pairs<T>& c, const PairContrastProblem<T>& problem, const Row<T>& r,
                                   const Ends<T>& ends, const RowUpstream<T>& upstream, T factor) {
    const bool inside = problem.form == static_cast<std::int64_t>(Contrast::inside);
    const SoftmaxRow row = softmax_of_sums(sums_of<T, false>(r, ends), ends.positive, ends.negative, r.slope,
                                           r.bias / kLog2E, inside, upstream);
    RowResult result{row.loss, row.lse};
    if (!c.upstream_positive) return result;
    const T of_positive = T(row.positive), of_negative = T(row.negative), constant = T(row.constant);
    const T log2e = static_cast<T>(kLog2E);
    for (int side = 0; side < 2; ++side)
        for (std::int64_t from = r.begin[side]; from < r.end[side]; from += kBlock) {
            const std::int64_t to = std::min(r.end[side], from + kBlock);
            T dscale = 0, dbias = 0;
#pragma omp simd reduction(+ : dscale, dbias)
            for (std::int64_t x = from; x < to; ++x) {
                const bool same = r.labels[x] == r.label, present = r.labels[x] != kAbsent<PairLabel>;
                const T s = r.s[x];
                const T e = exp2_fast(r.slope * (s - (same ? ends.positive : ends.negative)));
                T dz = same ? e * of_positive - constant : e * of_negative;
                if (Columns)
                    dz += problem.column_upstream[x] *
                          exp2_fast(r.slope * s + r.bias - log2e * problem.column_lse[x]);
                dz = present ? dz : T(0);
                dscale += s * dz;
                dbias += dz;
                r.s[x] = dz * factor;
            }
            result.dscale += dscale;
            result.dbias += dbias;
        }
    return result;
}

template <class T>
ROBUSTDML_HD RowResult each_row(const Row<T>& r, const Ends<T>& ends, T upstream, T factor, std::int64_t m) {
    const SoftmaxSums sums = sums_of<T, true>(r, ends);
    const double log_sum = std::log(sums.negative);
    double loss = 0, above = 0, dscale = 0;
    for (int side = 0; side < 2; ++side)
        for (std::int64_t x = r.begin[side]; x < r.end[side]; ++x) {
            if (r.labels[x] != r.label) continue;
            const double t = r.slope * (double(ends.negative) - r.s[x]) / kLog2E + log_sum;
            const double e = std::exp(-std::abs(t));
            const double sigmoid = (t < 0 ? e : 1.0) / (1.0 + e);
            loss += std::max(t, 0.0) + std::log1p(e);
            above += sigmoid;
            dscale += sigmoid * r.s[x];
            r.s[x] = static_cast<T>(-sigmoid * upstream * factor);
        }
    const double share = above / sums.negative;
    const T of_negative = static_cast<T>(share * upstream * factor);
#pragma omp simd
    for (std::int64_t x = 0; x < m; ++x) r.s[x] *= r.labels[x] == r.label ? T(1) : of_negative;
    return {loss, 0.0, upstream * (share * sums.negative_se - dscale), 0.0};
}

template <class T>
ROBUSTDML_HD RowResult sigmoid_row(const Row<T>& r, T scale, T bias, T upstream, T factor) {
    RowResult result;
    for (int side = 0; side < 2; ++side)
        for (std::int64_t from = r.begin[side]; from < r.end[side]; from += kBlock) {
            const std::int64_t to = std::min(r.end[side], from + kBlock);
            T loss = 0, dscale = 0, dbias = 0;
#pragma omp simd reduction(+ : loss, dscale, dbias)
            for (std::int64_t x = from; x < to; ++x) {
                const bool same = r.labels[x] == r.label, present = r.labels[x] != kAbsent<PairLabel>;
                // A positive is a negative of the opposite logit.
                const T sign = same ? T(-1) : T(1);
                const Logistic<T> pair = logistic(sign * (scale * r.s[x] + bias));
                const T dz = present ? sign * pair.sigmoid * upstream : T(0);
                loss += present ? pair.softplus : T(0);
                dscale += r.s[x] * dz;
                dbias += dz;
                r.s[x] = dz * factor;
            }
            result.loss += loss;
            result.dscale += dscale;
            result.dbias += dbias;
        }
    return result;
}

template <class T>
ROBUSTDML_HD void contrast_row(const Pairs<T>& c, const PairContrastProblem<T>& problem, std::int64_t row) {
    scale_candidates(c, row);
    const RowScale<T> scales = scale_of_row(c, row, c.S + row * c.m, c.m);
    hardest_of_row(c, row, c.S + row * c.m, scales.cosine);
    const Row<T> r = row_of(c, problem, row, scales.cosine);
    const RowUpstream<T> upstream = upstream_of_row(c, row);
    const T scale = problem.coefficients[0], factor = scale * scales.gradient;
    const auto form = static_cast<Contrast>(problem.form);
    const Ends<T> ends = form == Contrast::sigmoid ? Ends<T>{0, 0} : ends_of(r);
    // A loss compares a positive, and with `each` a negative with it.
    const bool compares =
        ends.positive > -kInfinity<T> && (form != Contrast::each || ends.negative > -kInfinity<T>);
    RowResult result;
    if (r.label == kAbsent<PairLabel> || !compares)
        std::fill(r.s, r.s + c.m, T(0));
    else if (form == Contrast::sigmoid)
        result = sigmoid_row(r, scale * scales.cosine, problem.coefficients[1], upstream.positive, factor);
    else if (form == Contrast::each)
        result = each_row(r, ends, upstream.positive, factor, c.m);
    else if (problem.column_lse)
        result = softmax_row<T, true>(c, problem, r, ends, upstream, factor);
    else
        result = softmax_row<T, false>(c, problem, r, ends, upstream, factor);
    c.positive[row] = static_cast<T>(result.loss);
    c.negative[row] = static_cast<T>(result.lse);
    if (problem.dscale) {
        problem.dscale[row] = static_cast<T>(scales.cosine * result.dscale);
        problem.dbias[row] = static_cast<T>(result.dbias);
    }
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
    in_parts(chunk.rows, threads, chunk.rows * chunk.m > 8192, [&](std::int64_t begin, std::int64_t end) {
        if (!chunk.relations) return contrast_clone(chunk, problem, begin, end);
        each_related_row(chunk, begin, end, [&](const Pairs<T>& part, std::int64_t row) {
            contrast_clone(part, problem, row, row + 1);
        });
    });
}

template void pair_sums<float>(const Pairs<float>&, const PairContrastProblem<float>&, int);
template void pair_sums<double>(const Pairs<double>&, const PairContrastProblem<double>&, int);

}  // namespace robustdml::cpu
