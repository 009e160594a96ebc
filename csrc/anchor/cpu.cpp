#include "anchor/cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/cpu/clones.h"
#include "common/cpu/epilogue.h"
#include "math/exp.h"

namespace robustdml::cpu {
namespace {

// Rows whose confidences are gathered together when the candidate index is not the contiguous one: a cache
// line of them.
constexpr std::int64_t kGather = 16;

// The chunk's exponents in base 2, where an exponential is two operations cheaper: scaled once a call.
template <class T>
struct Base2 {
    T alpha;
    const T* positive_bias;  // (B,)
    const T* negative_bias;  // (B,)

    static T scale(T value) { return static_cast<T>(value * kLog2E); }
    // Of a shift in base 2, for the functions of log_sum.h.
    static double natural(T shift) { return double(shift) / kLog2E; }
};

// A similarity far below every exponent that counts, and still finite after the product with alpha.
template <class T>
ROBUSTDML_HD T unseen(const RowScale<T>& scales) {
    return T(-1e20) / scales.cosine;
}

// The few positives of one row, whose places in s hold a similarity that no exponential can see while the
// negatives are summed. Sum and gradient in double: there are B * K of them in all.
template <class T>
ROBUSTDML_HD void positives_of_row(const AnchorChunk<T>& c, std::int64_t row, T* s,
                                   const std::int64_t* members, const T* similarity, std::int64_t count,
                                   T gradient_scale, T* dpositive_bias) {
    c.lse_positive[row] = T(0);
    if (count == 0) return;
    const auto exponent = [&](std::int64_t k) {
        return double(c.positive_bias[members[k] / c.labels_each]) - double(c.alpha) * similarity[k];
    };
    double shift = 0;
    for (std::int64_t k = 0; k < count; ++k) shift = std::max(shift, exponent(k));
    const auto term = [&](std::int64_t k) {
        return (c.label_weights ? double(c.label_weights[members[k]]) : 1.0) * std::exp(exponent(k) - shift);
    };
    double sum = 0;
    for (std::int64_t k = 0; k < count; ++k) sum += term(k);
    c.lse_positive[row] = static_cast<T>(log_one_plus(shift, sum));
    if (!c.upstream_positive) return;
    const double upstream =
        c.upstream_positive[row * c.upstream_positive_stride] * inverse_one_plus(shift, sum);
    for (std::int64_t k = 0; k < count; ++k) {
        const std::int64_t x = members[k] / c.labels_each;
        const double g = upstream * term(k);
        s[x] = static_cast<T>(-c.alpha * g * gradient_scale);
        if (dpositive_bias) dpositive_bias[x] += static_cast<T>(g);
    }
}

// Puts the similarities of a row's negatives that are above their limits out of the exponentials' sight.
template <class T, class IsPositive>
ROBUSTDML_HD void hide_similar(const AnchorChunk<T>& c, const RowScale<T>& scales, T* s,
                               IsPositive is_positive) {
    const T cosine = scales.cosine, hidden = unseen(scales);
    const T* limit = c.drop_similar_negatives;
    if (!limit) return;
#pragma omp simd
    for (std::int64_t x = 0; x < c.B; ++x) {
        const bool hide = (s[x] * cosine > limit[x]) & !is_positive(x);
        s[x] = hide ? hidden : s[x];
    }
}

template <class T>
ROBUSTDML_HD void labels_range(const AnchorChunk<T>& c, const Base2<T>& base2, const LabelSets& sets,
                               std::int64_t begin, std::int64_t end, T* dpositive_bias, T* dnegative_bias,
                               T* similarity) {
    const std::int64_t B = c.B, K = c.labels_each;
    const T* bias = base2.negative_bias;
    const std::int64_t* sorted = sets.sorted_labels;
    std::int64_t place = std::lower_bound(sorted, sorted + B * K, sets.first_label + begin) - sorted;
    for (std::int64_t row = begin; row < end; ++row) {
        T* s = c.S + row * B;
        const RowScale<T> scales = scale_of_row(c, row, s, B);
        const T alpha = base2.alpha * scales.cosine;
        const std::int64_t first = place;
        for (; place < B * K && sorted[place] == sets.first_label + row; ++place) {
            T& own = s[sets.order[place] / K];
            similarity[place - first] = own * scales.cosine;
            own = unseen(scales);
        }
        hide_similar(c, scales, s, [](std::int64_t) { return false; });  // positives are hidden already
        const T anchor = c.anchor_bias ? Base2<T>::scale(c.anchor_bias[row]) : T(0);
        T shift = 0;
        if (c.row_max) {
#pragma omp simd reduction(max : shift)
            for (std::int64_t x = 0; x < B; ++x) shift = std::max(shift, alpha * s[x] + bias[x] + anchor);
        }
        double total = 0;
        for (std::int64_t from = 0; from < B; from += kBlock) {
            const std::int64_t to = std::min(B, from + kBlock);
            T sum = 0;
#pragma omp simd reduction(+ : sum)
            for (std::int64_t x = from; x < to; ++x) {
                const T e = exp2_fast(alpha * s[x] + bias[x] + (anchor - shift));
                s[x] = e;
                sum += e;
            }
            total += sum;
        }
        c.lse_negative[row] = log_sum<T>(Base2<T>::natural(shift), total);
        if (c.upstream_negative) {
            const T g = static_cast<T>(c.upstream_negative[row * c.upstream_negative_stride] *
                                       inverse_one_plus(Base2<T>::natural(shift), total));
            if (dnegative_bias) {
#pragma omp simd
                for (std::int64_t x = 0; x < B; ++x) dnegative_bias[x] += g * s[x];
            }
            const T scale = c.alpha * g * scales.gradient;
#pragma omp simd
            for (std::int64_t x = 0; x < B; ++x) s[x] *= scale;
        }
        positives_of_row(c, row, s, sets.order + first, similarity, place - first, scales.gradient,
                         dpositive_bias);
    }
}

// The logit is clamped where the sigmoid has long been 0: exp2_fast takes no exponent above 127.
template <class T>
ROBUSTDML_HD T sigmoid(T logit) {
    constexpr T kLowest = sizeof(T) == 4 ? T(-87) : T(-700);
    return T(1) / (T(1) + exp2_clamped(static_cast<T>(-kLog2E) * (logit < kLowest ? kLowest : logit)));
}

// One row whose confidences lie next to each other. The sign of what is kept in s tells the sets apart.
template <class T, bool Logits>
ROBUSTDML_HD void confidence_row(const AnchorChunk<T>& c, const Base2<T>& base2,
                                 const ConfidenceSets<T>& sets, std::int64_t row, const T* values,
                                 T* dpositive_bias, T* dnegative_bias) {
    const std::int64_t B = c.B;
    T* s = c.S + row * B;
    const RowScale<T> scales = scale_of_row(c, row, s, B);
    const T alpha = base2.alpha * scales.cosine, beta = Base2<T>::scale(sets.beta),
            threshold = sets.threshold;
    const T *bp = base2.positive_bias, *bn = base2.negative_bias;
    const T anchor = c.anchor_bias ? Base2<T>::scale(c.anchor_bias[row]) : T(0);
    hide_similar(c, scales, s,
                 [=](std::int64_t x) { return (Logits ? sigmoid(values[x]) : values[x]) > threshold; });
    T shift_positive = 0, shift_negative = 0;
    if (c.row_max) {
        // Over both sets at once: an upper bound of each set's own maximum is what keeps exp from
        // overflowing, and the sets differ by 2 alpha at most, so each takes its own.
        for (std::int64_t x = 0; x < B; ++x) {
            const T value = Logits ? sigmoid(values[x]) : values[x];
            if (value > threshold)
                shift_positive = std::max(shift_positive, bp[x] - alpha * s[x]);
            else
                shift_negative = std::max(shift_negative, bn[x] + alpha * s[x] + anchor);
        }
    }
    double total_positive = 0, total_negative = 0;
    for (std::int64_t from = 0; from < B; from += kBlock) {
        const std::int64_t to = std::min(B, from + kBlock);
        T sum_positive = 0, sum_negative = 0;
#pragma omp simd reduction(+ : sum_positive, sum_negative)
        for (std::int64_t x = from; x < to; ++x) {
            const T value = Logits ? sigmoid(values[x]) : values[x];
            const bool positive = value > threshold;
            const T weight = T(1) / (T(1) + exp2_clamped(-beta * std::abs(value - threshold)));
            const T exponent = positive ? (bp[x] - shift_positive) - alpha * s[x]
                                        : (bn[x] + (anchor - shift_negative)) + alpha * s[x];
            const T e = weight * exp2_fast(exponent);
            sum_positive += positive ? e : T(0);
            sum_negative += positive ? T(0) : e;
            s[x] = positive ? -e : e;
        }
        total_positive += sum_positive;
        total_negative += sum_negative;
    }
    const double natural_positive = Base2<T>::natural(shift_positive);
    const double natural_negative = Base2<T>::natural(shift_negative);
    c.lse_positive[row] = log_sum<T>(natural_positive, total_positive);
    c.lse_negative[row] = log_sum<T>(natural_negative, total_negative);
    if (!c.upstream_positive) return;
    const T gp = static_cast<T>(c.upstream_positive[row * c.upstream_positive_stride] *
                                inverse_one_plus(natural_positive, total_positive));
    const T gn = static_cast<T>(c.upstream_negative[row * c.upstream_negative_stride] *
                                inverse_one_plus(natural_negative, total_negative));
    if (dpositive_bias) {
#pragma omp simd
        for (std::int64_t x = 0; x < B; ++x) {
            dpositive_bias[x] -= gp * std::min(s[x], T(0));
            dnegative_bias[x] += gn * std::max(s[x], T(0));
        }
    }
    const T scale = c.alpha * scales.gradient;
#pragma omp simd
    for (std::int64_t x = 0; x < B; ++x) s[x] *= scale * (s[x] < T(0) ? gp : gn);
}

// A block of 4 x 4 numbers turned over its diagonal, in registers where the compiler has vectors of four.
template <class T>
ROBUSTDML_HD void turn_four(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride) {
#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 12)
    using Four __attribute__((vector_size(4 * sizeof(T)))) = T;
    Four row[4];
    for (int i = 0; i < 4; ++i) std::memcpy(&row[i], from + i * from_stride, sizeof(Four));
    const Four low_a = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
    const Four high_a = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
    const Four low_b = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
    const Four high_b = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
    const Four column[4] = {__builtin_shufflevector(low_a, low_b, 0, 1, 4, 5),
                            __builtin_shufflevector(low_a, low_b, 2, 3, 6, 7),
                            __builtin_shufflevector(high_a, high_b, 0, 1, 4, 5),
                            __builtin_shufflevector(high_a, high_b, 2, 3, 6, 7)};
    for (int i = 0; i < 4; ++i) std::memcpy(to + i * to_stride, &column[i], sizeof(Four));
#else
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) to[j * to_stride + i] = from[i * from_stride + j];
#endif
}

template <class T, bool Logits>
ROBUSTDML_HD void confidences_range(const AnchorChunk<T>& c, const Base2<T>& base2,
                                    const ConfidenceSets<T>& sets, std::int64_t begin, std::int64_t end,
                                    T* dpositive_bias, T* dnegative_bias, T* gathered) {
    for (std::int64_t from = begin; from < end; from += kGather) {
        const std::int64_t rows = std::min(kGather, end - from);
        const std::int64_t following = std::min(kGather, end - from - rows);
        const T* values = sets.values + from * sets.anchor_stride;
        const T* const last_following = values + (rows + following - 1) * sets.anchor_stride;
        std::int64_t stride = sets.anchor_stride;
        if (sets.candidate_stride != 1) {
            // (B, C) memory: read each cache line once, for the 16 anchors it holds.
            const bool whole = rows == kGather && stride == 1;
            const std::int64_t fours = whole ? c.B / 4 * 4 : 0;
            for (std::int64_t x = 0; x < fours; x += 4)
                for (std::int64_t r = 0; r < kGather; r += 4)
                    turn_four(values + x * sets.candidate_stride + r, sets.candidate_stride,
                              gathered + r * c.B + x, c.B);
            for (std::int64_t x = fours; x < c.B; ++x)
                for (std::int64_t r = 0; r < rows; ++r)
                    gathered[r * c.B + x] = values[x * sets.candidate_stride + r * stride];
            values = gathered;
            stride = c.B;
        }
        for (std::int64_t r = 0; r < rows; ++r) {
            // Each line of the next anchors is on a page of its own, where no hardware looks for it
            // beforehand.
            for (std::int64_t x = c.B * r / rows; values == gathered && following && x < c.B * (r + 1) / rows;
                 ++x)
                __builtin_prefetch(last_following + x * sets.candidate_stride);
            confidence_row<T, Logits>(c, base2, sets, from + r, values + r * stride, dpositive_bias,
                                      dnegative_bias);
        }
    }
}

// target_clones takes no templates: one plain function per type and variant.
#define ROBUSTDML_STAMP(T)                                                                                  \
    ROBUSTDML_CLONES void labels_clone(const AnchorChunk<T>& c, const Base2<T>& base2,                      \
                                       const LabelSets& sets, std::int64_t begin, std::int64_t end, T* dp,  \
                                       T* dn, T* scratch) {                                                 \
        labels_range(c, base2, sets, begin, end, dp, dn, scratch);                                          \
    }                                                                                                       \
    ROBUSTDML_CLONES void confidences_clone(const AnchorChunk<T>& c, const Base2<T>& base2,                 \
                                            const ConfidenceSets<T>& sets, std::int64_t begin,              \
                                            std::int64_t end, T* dp, T* dn, T* scratch) {                   \
        confidences_range<T, false>(c, base2, sets, begin, end, dp, dn, scratch);                           \
    }                                                                                                       \
    ROBUSTDML_CLONES void logits_clone(const AnchorChunk<T>& c, const Base2<T>& base2,                      \
                                       const ConfidenceSets<T>& sets, std::int64_t begin, std::int64_t end, \
                                       T* dp, T* dn, T* scratch) {                                          \
        confidences_range<T, true>(c, base2, sets, begin, end, dp, dn, scratch);                            \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

// Each thread takes a fixed range of rows and sums bias gradients on its own; the sums meet in the order of
// the threads, so the same call gives the same bits.
template <class T, class Kernel>
void over_rows(const AnchorChunk<T>& chunk, std::int64_t scratch_size, int threads, Kernel kernel) {
    const std::int64_t B = chunk.B;
    const bool biases = chunk.dpositive_bias != nullptr;
    std::vector<T> biases2(2 * B);
    for (std::int64_t x = 0; x < B; ++x) {
        biases2[x] = Base2<T>::scale(chunk.positive_bias[x]);
        biases2[B + x] = Base2<T>::scale(chunk.negative_bias[x]);
    }
    const Base2<T> base2{Base2<T>::scale(chunk.alpha), biases2.data(), biases2.data() + B};
    std::vector<T> scratch(scratch_size * threads);
    std::vector<T> partial(biases ? 2 * B * threads : 0, T(0));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && chunk.rows * B > 8192)
    for (int t = 0; t < threads; ++t) {
        T* dpositive = biases ? partial.data() + 2 * B * t : nullptr;
        kernel(base2, chunk.rows * t / threads, chunk.rows * (t + 1) / threads, dpositive,
               biases ? dpositive + B : nullptr, scratch.data() + scratch_size * t);
    }
    for (int t = 0; biases && t < threads; ++t) {
        const T* dpositive = partial.data() + 2 * B * t;
        for (std::int64_t x = 0; x < B; ++x) {
            chunk.dpositive_bias[x] += dpositive[x];
            chunk.dnegative_bias[x] += dpositive[B + x];
        }
    }
}

}  // namespace

template <class T>
void anchor_lse_labels(const AnchorChunk<T>& chunk, const LabelSets& sets, int threads) {
    over_rows(chunk, chunk.B * chunk.labels_each, threads,
              [&](const Base2<T>& base2, std::int64_t begin, std::int64_t end, T* dp, T* dn, T* scratch) {
                  labels_clone(chunk, base2, sets, begin, end, dp, dn, scratch);
              });
}

template <class T>
void anchor_lse_confidences(const AnchorChunk<T>& chunk, const ConfidenceSets<T>& sets, int threads) {
    const std::int64_t scratch = sets.candidate_stride == 1 ? 0 : kGather * chunk.B;
    over_rows(chunk, scratch, threads,
              [&](const Base2<T>& base2, std::int64_t begin, std::int64_t end, T* dp, T* dn, T* gathered) {
                  if (sets.logits)
                      logits_clone(chunk, base2, sets, begin, end, dp, dn, gathered);
                  else
                      confidences_clone(chunk, base2, sets, begin, end, dp, dn, gathered);
              });
}

template void anchor_lse_labels<float>(const AnchorChunk<float>&, const LabelSets&, int);
template void anchor_lse_labels<double>(const AnchorChunk<double>&, const LabelSets&, int);
template void anchor_lse_confidences<float>(const AnchorChunk<float>&, const ConfidenceSets<float>&, int);
template void anchor_lse_confidences<double>(const AnchorChunk<double>&, const ConfidenceSets<double>&, int);

}  // namespace robustdml::cpu
