#include "classes/cpu.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "classes/cpu_pooling.h"
#include "classes/cpu_seen.h"
#include "common/cpu/clones.h"
#include "math/exp.h"
#include "math/limits.h"

namespace robustdml::cpu {
namespace {

// Classes between two looks at the maxima; their similarities with kColumns samples stay in L1.
constexpr std::int64_t kRows = 32;

// The logit of a class as a function of s. Not in base 2, although an exponential is cheaper there: where one
// class has all of the weight, its logit minus the log-sum-exp must be 0, not a rounding of their size.
template <class T>
struct Line {
    T slope;
    T offset;
};

template <class T>
ROBUSTDML_HD T scale_of(const ClassChunk<T>& c, std::int64_t k) {
    return c.scale[k * c.scale_stride];
}

template <class T>
ROBUSTDML_HD Line<T> line_of(const ClassChunk<T>& c, std::int64_t k, T cosine) {
    return {scale_of(c, k) * cosine, c.bias ? c.bias[k] : T(0)};
}

template <class T>
ROBUSTDML_HD T logit_at(const Line<T>& line, T s) {
    return line.slope * s + line.offset;
}

// Turns the similarities of one class with the samples from `from` on into logits, -inf above their limits.
// The line of the row is then the identity.
template <class T>
ROBUSTDML_HD void to_logits(const ClassChunk<T>& c, Line<T>& line, T cosine, T* s, std::int64_t from,
                            std::int64_t count) {
    if (c.drop_similar_negatives) {
        const T* limit = c.drop_similar_negatives + from;
#pragma omp simd
        for (std::int64_t x = 0; x < count; ++x) {
            const T logit = logit_at(line, s[x]);
            s[x] = s[x] * cosine > limit[x] ? -kInfinity<T> : logit;
        }
    } else {
#pragma omp simd
        for (std::int64_t x = 0; x < count; ++x) s[x] = logit_at(line, s[x]);
    }
    line = {T(1), T(0)};
}

// Up to kRows classes, `stride` elements apart, into the running sums. Exponentials are taken about the shift
// so far in one pass, and once more about a new one only where a logit exceeds it by more than kReach.
template <class T>
ROBUSTDML_HD void add_rows(const T* rows, std::int64_t stride, const Line<T>* lines, std::int64_t count,
                           std::int64_t B, T* shift, double* total) {
    constexpr T kReach = 40;
    for (std::int64_t from = 0; from < B; from += kColumns) {
        const std::int64_t columns = std::min(kColumns, B - from);
        T about[kColumns], largest[kColumns], sum[kColumns];
        std::copy(shift + from, shift + from + columns, largest);
        bool within;
        do {
            std::copy(largest, largest + columns, about);
            std::fill(sum, sum + columns, T(0));
            for (std::int64_t r = 0; r < count; ++r) {
                const T* s = rows + r * stride + from;
                const Line<T> line = lines[r];
#pragma omp simd
                for (std::int64_t x = 0; x < columns; ++x) {
                    const T logit = logit_at(line, s[x]);
                    largest[x] = std::max(largest[x], logit);
                    sum[x] += exp_clamped(logit - about[x]);
                }
            }
            T rise = 0;
#pragma omp simd reduction(max : rise)
            for (std::int64_t x = 0; x < columns; ++x) rise = std::max(rise, largest[x] - about[x]);
            within = rise <= kReach;
        } while (!within);
#pragma omp simd
        for (std::int64_t x = 0; x < columns; ++x) {
            // Exactly 1 where nothing changed: a rounding a block would add up.
            const T before = shift[from + x];
            const T factor = about[x] == before ? T(1) : exp_fast(before - about[x]);
            // So small a sum is nothing beside the 1 of the logit that the shift is; or all logits are -inf,
            // which exp_clamped makes its least value.
            total[from + x] = total[from + x] * factor + (sum[x] < T(1e-30) ? T(0) : sum[x]);
            shift[from + x] = about[x];
        }
    }
}

// Adds weight * logit of one class to `weighted`, but for the samples whose labels, order[first:last], it is.
template <class T>
ROBUSTDML_HD void add_weighted(const ClassChunk<T>& c, T weight, const Line<T>& line, const T* s,
                               const std::int64_t* order, std::int64_t first, std::int64_t last,
                               double* weighted) {
#pragma omp simd
    for (std::int64_t x = 0; x < c.B; ++x) weighted[x] += double(weight * logit_at(line, s[x]));
    for (std::int64_t p = first; p < last; ++p) {
        const std::int64_t x = order[p] / c.labels_each;
        weighted[x] -= double(weight * logit_at(line, s[x]));
    }
}

template <class T>
ROBUSTDML_HD void forward_range(const ClassChunk<T>& c, const LabelSets& labels, T* target,
                                std::int64_t begin, std::int64_t end, T* shift, double* total,
                                double* weighted, const Seen<T, double>& seen, T* weights) {
    const std::int64_t B = c.B, K = c.labels_each, stride = c.centers * B;
    const std::int64_t* sorted = labels.sorted_labels;
    std::int64_t place = std::lower_bound(sorted, sorted + B * K, labels.first_label + begin) - sorted;
    Line<T> lines[kRows];
    for (std::int64_t from = begin; from < end; from += kRows) {
        const std::int64_t count = std::min(kRows, end - from);
        for (std::int64_t k = from; k < from + count; ++k) {
            T* s = c.S + k * stride;
            T cosine = cosine_factor(c, k);
            if (c.pooling != Pooling::none) {
                cosine = T(1);
                T pooled[kColumns], inverse[kColumns];
                for (std::int64_t x = 0; x < B; x += kColumns) {
                    const std::int64_t columns = std::min(kColumns, B - x);
                    pool(c, k, x, columns, pooled, inverse, weights);
                    std::copy(pooled, pooled + columns, s + x);
                }
            }
            Line<T>& line = lines[k - from];
            line = line_of(c, k, cosine);
            const double bias = c.bias ? double(c.bias[k]) : 0.0;
            const std::int64_t first = place;
            for (; place < B * K && sorted[place] == labels.first_label + k; ++place) {
                const std::int64_t entry = labels.order[place];
                target[entry] = static_cast<T>(double(scale_of(c, k)) * cosine * s[entry / K] + bias);
            }
            if (weighted) add_weighted(c, c.logit_weights[k], line, s, labels.order, first, place, weighted);
            for (std::int64_t x = 0; seen.own && x < B; x += kColumns)
                see_class(c, labels, {first, place}, k, s + x, cosine, x, std::min(kColumns, B - x),
                          Seen<T, double>{seen.own + x, seen.nearest + x, seen.above + x});
            // The row of a class that is somebody's label, as few are, becomes logits, so that one can be
            // taken out whatever the slope is.
            if (place > first || c.drop_similar_negatives) to_logits(c, line, cosine, s, 0, B);
            for (std::int64_t p = first; p < place; ++p) s[labels.order[p] / K] = -kInfinity<T>;
        }
        add_rows(c.S + from * stride, stride, lines, count, B, shift, total);
    }
}

template <class T>
ROBUSTDML_HD void add_scaled(T factor, const T* from, T* to, std::int64_t count) {
#pragma omp simd
    for (std::int64_t x = 0; x < count; ++x) to[x] += factor * from[x];
}

template <class T>
ROBUSTDML_HD void backward_range(const ClassChunk<T>& c, const LabelSets& labels,
                                 const ClassUpstream<T>& upstream, std::int64_t begin, std::int64_t end,
                                 T* weights) {
    const std::int64_t B = c.B, K = c.labels_each;
    const std::int64_t* sorted = labels.sorted_labels;
    std::int64_t place = std::lower_bound(sorted, sorted + B * K, labels.first_label + begin) - sorted;
    for (std::int64_t k = begin; k < end; ++k) {
        T* s = c.S + k * c.centers * B;
        const std::int64_t first = place;
        while (place < B * K && sorted[place] == labels.first_label + k) ++place;
        if (c.pooling == Pooling::none) {
            const T cosine = cosine_factor(c, k);
            Line<T> line = line_of(c, k, cosine);
            const T factor = scale_of(c, k) * cosine;
            if (c.drop_similar_negatives) to_logits(c, line, cosine, s, 0, B);
#pragma omp simd
            for (std::int64_t x = 0; x < B; ++x)
                s[x] = factor * upstream.dlse[x] * exp_fast(logit_at(line, s[x]) - upstream.lse[x]);
            if (upstream.dweighted) add_scaled(factor * c.logit_weights[k], upstream.dweighted, s, B);
            for (std::int64_t p = first; p < place; ++p)
                s[labels.order[p] / K] = factor * upstream.dlogit[labels.order[p]];
            continue;
        }
        const T scale = scale_of(c, k);
        for (std::int64_t from = 0; from < B; from += kColumns) {
            const std::int64_t columns = std::min(kColumns, B - from);
            T pooled[kColumns], inverse[kColumns], gradient[kColumns];
            pool(c, k, from, columns, pooled, inverse, weights);
            Line<T> line = line_of(c, k, T(1));
            std::copy(pooled, pooled + columns, gradient);
            if (c.drop_similar_negatives) to_logits(c, line, T(1), gradient, from, columns);
#pragma omp simd
            for (std::int64_t x = 0; x < columns; ++x)
                gradient[x] = scale * upstream.dlse[from + x] *
                              exp_fast(logit_at(line, gradient[x]) - upstream.lse[from + x]);
            if (upstream.dweighted)
                add_scaled(scale * c.logit_weights[k], upstream.dweighted + from, gradient, columns);
            for (std::int64_t p = first; p < place; ++p) {
                const std::int64_t entry = labels.order[p], x = entry / K - from;
                if (0 <= x && x < columns) gradient[x] = scale * upstream.dlogit[entry];
            }
            if (c.pooling == Pooling::max)
                unpool_max(c, k, from, columns, pooled, gradient);
            else
                unpool_softmax(c, k, from, columns, pooled, inverse, weights, gradient);
        }
    }
}

// target_clones takes no templates: one plain function per type.
#define ROBUSTDML_STAMP(T)                                                                             \
    ROBUSTDML_CLONES void forward_clone(const ClassChunk<T>& c, const LabelSets& labels, T* target,    \
                                        std::int64_t begin, std::int64_t end, T* shift, double* total, \
                                        double* weighted, const Seen<T, double>& seen, T* weights) {   \
        forward_range(c, labels, target, begin, end, shift, total, weighted, seen, weights);           \
    }                                                                                                  \
    ROBUSTDML_CLONES void backward_clone(const ClassChunk<T>& c, const LabelSets& labels,              \
                                         const ClassUpstream<T>& upstream, std::int64_t begin,         \
                                         std::int64_t end, T* weights) {                               \
        backward_range(c, labels, upstream, begin, end, weights);                                      \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

// Each thread takes a fixed range of classes, with scratch of its own.
template <class T, class Kernel>
void over_classes(const ClassChunk<T>& c, int threads, Kernel kernel) {
    const std::int64_t scratch = c.pooling == Pooling::softmax ? c.centers * kColumns : 0;
    std::vector<T> weights(scratch * threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && c.classes * c.B > 8192)
    for (int t = 0; t < threads; ++t)
        kernel(t, c.classes * t / threads, c.classes * (t + 1) / threads, weights.data() + scratch * t);
}

}  // namespace

template <class T>
void class_lse(const ClassChunk<T>& chunk, const LabelSets& labels, const ClassSums<T>& sums, int threads) {
    const std::int64_t B = chunk.B;
    // From the sums so far on: a chunk without a new maximum then takes no exponential to join them. Finite,
    // so that the exponent -inf of a masked class never meets a shift of -inf.
    std::vector<T> shift(B * threads);
    for (std::int64_t i = 0; i < B * threads; ++i)
        shift[i] = std::max(static_cast<T>(sums.shift[i % B]), -kLargest<T>);
    std::vector<double> total(B * threads, 0.0), weighted(sums.weighted ? B * threads : 0, 0.0);
    std::vector<T> nearest(sums.own ? B * threads : 0, -kInfinity<T>);
    std::vector<double> above(nearest.size(), 0.0);
    over_classes(chunk, threads, [&](int t, std::int64_t begin, std::int64_t end, T* weights) {
        Seen<T, double> seen{};
        if (sums.own) seen = {sums.own, nearest.data() + B * t, above.data() + B * t};
        forward_clone(chunk, labels, sums.target, begin, end, shift.data() + B * t, total.data() + B * t,
                      sums.weighted ? weighted.data() + B * t : nullptr, seen, weights);
    });
    for (std::int64_t i = 0; sums.own && i < B * threads; ++i) {
        sums.nearest[i % B] = std::max(sums.nearest[i % B], nearest[i]);
        sums.above[i % B] += above[i];
    }
    const auto factor = [](double from, double to) { return from == to ? 1.0 : std::exp(from - to); };
    // In the order of the threads, so the same call gives the same bits.
    for (std::int64_t x = 0; x < B; ++x) {
        const double before = sums.shift[x];
        double largest = before;
        for (int t = 0; t < threads; ++t) largest = std::max(largest, double(shift[B * t + x]));
        double sum = sums.total[x] * factor(before, largest);
        for (int t = 0; t < threads; ++t) sum += total[B * t + x] * factor(shift[B * t + x], largest);
        sums.shift[x] = largest;
        sums.total[x] = sum;
        for (int t = 0; sums.weighted && t < threads; ++t) sums.weighted[x] += weighted[B * t + x];
    }
}

template <class T>
void class_lse_backward(const ClassChunk<T>& chunk, const LabelSets& labels, const ClassUpstream<T>& upstream,
                        int threads) {
    over_classes(chunk, threads, [&](int, std::int64_t begin, std::int64_t end, T* weights) {
        backward_clone(chunk, labels, upstream, begin, end, weights);
    });
}

template void class_lse<float>(const ClassChunk<float>&, const LabelSets&, const ClassSums<float>&, int);
template void class_lse<double>(const ClassChunk<double>&, const LabelSets&, const ClassSums<double>&, int);
template void class_lse_backward<float>(const ClassChunk<float>&, const LabelSets&,
                                        const ClassUpstream<float>&, int);
template void class_lse_backward<double>(const ClassChunk<double>&, const LabelSets&,
                                         const ClassUpstream<double>&, int);

}  // namespace robustdml::cpu
