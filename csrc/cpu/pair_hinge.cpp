#include "cpu/pair_hinge.h"

#include <cmath>

#include "cpu/clones.h"

namespace robustdml::cpu {
namespace {

template <class T, bool Euclidean>
ROBUSTDML_HD void pair_hinge_row(const Pairs<T>& c, const PairHinge<T>& problem, std::int64_t row) {
    T* s = c.S + row * c.m;
    const PairLabel label = c.labels[row];
    const PairLabel* labels = c.candidate_labels;
    const RowScale<T> scales = begin_row(c, row, s);
    const RowUpstream<T> upstream = upstream_of_row(c, row);
    const T cosine = scales.cosine;
    const T positive_gradient = -upstream.positive * scales.gradient;
    const T negative_gradient = upstream.negative * scales.gradient;
    // What a term is, of a pair above its margin.
    const T positive_top = problem.positive_margin + problem.positive_offset;
    const T negative_bottom = problem.negative_margin - problem.negative_offset;
    double positive_total = 0, negative_total = 0;
    std::int64_t positives = 0, negatives = 0;
    for (std::int64_t from = 0; from < c.m; from += kBlock) {
        const std::int64_t to = std::min(c.m, from + kBlock);
        T positive_sum = 0, negative_sum = 0;
        PairLabel positive_count = 0, negative_count = 0;
#pragma omp simd reduction(+ : positive_sum, negative_sum, positive_count, negative_count)
        for (std::int64_t x = from; x < to; ++x) {
            const T value = s[x] * cosine;
            // The root of what rounding has left below 0 would be NaN; an anchor's own place is to stay one.
            const T square = T(2) - T(2) * value;
            const T distance = Euclidean ? std::sqrt(square < T(0) ? T(0) : square) : T(0);
            const T t = Euclidean ? -distance : value;
            // dt/ds: equal vectors have none.
            const T slope = !Euclidean ? T(1) : distance > T(0) ? T(1) / distance : T(0);
            const bool same = labels[x] == label, present = labels[x] >= 0;
            const bool attracts = present & same & (t < problem.positive_margin);
            const bool repels = present & !same & (t > problem.negative_margin);
            positive_sum += attracts ? positive_top - t : T(0);
            negative_sum += repels ? t - negative_bottom : T(0);
            positive_count += attracts ? 1 : 0;
            negative_count += repels ? 1 : 0;
            s[x] = (attracts ? positive_gradient : repels ? negative_gradient : T(0)) * slope;
        }
        positive_total += positive_sum;
        negative_total += negative_sum;
        positives += positive_count;
        negatives += negative_count;
    }
    const bool present = label >= 0;
    c.positive[row] = present ? static_cast<T>(positive_total) : T(0);
    c.negative[row] = present ? static_cast<T>(negative_total) : T(0);
    problem.positive_count[row] = present ? positives : 0;
    problem.negative_count[row] = present ? negatives : 0;
    if (!present) std::fill(s, s + c.m, T(0));
}

// target_clones takes no templates: one plain function per type and distance.
#define ROBUSTDML_STAMP(T, NAME, EUCLIDEAN)                                                                \
    ROBUSTDML_CLONES void NAME##_clone(const Pairs<T>& c, const PairHinge<T>& problem, std::int64_t begin, \
                                       std::int64_t end) {                                                 \
        for (std::int64_t row = begin; row < end; ++row) pair_hinge_row<T, EUCLIDEAN>(c, problem, row);    \
    }
ROBUSTDML_STAMP(float, cosine, false)
ROBUSTDML_STAMP(double, cosine, false)
ROBUSTDML_STAMP(float, euclidean, true)
ROBUSTDML_STAMP(double, euclidean, true)
#undef ROBUSTDML_STAMP

}  // namespace

template <class T>
void pair_hinge(const Pairs<T>& chunk, const PairHinge<T>& problem, int threads) {
    over_pair_rows(chunk, threads, [&](std::int64_t begin, std::int64_t end) {
        if (problem.euclidean)
            euclidean_clone(chunk, problem, begin, end);
        else
            cosine_clone(chunk, problem, begin, end);
    });
}

template void pair_hinge<float>(const Pairs<float>&, const PairHinge<float>&, int);
template void pair_hinge<double>(const Pairs<double>&, const PairHinge<double>&, int);

}  // namespace robustdml::cpu
