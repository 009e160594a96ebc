#include "pairs/cpu_tile.h"

#include <algorithm>

#include "common/cpu/clones.h"
#include "math/limits.h"
#include "pairs/cpu_relations.h"
#include "pairs/cpu_softmax.h"

namespace robustdml::cpu {
namespace {

// Both rows of a pair read the same cosine: a softmax of a large scale would amplify a difference in
// rounding.
template <class T>
ROBUSTDML_HD void cosines_of_row(const Tile<T>& t, std::int64_t row) {
    const T scale = t.rows.inverse_norm[row];
    T* s = t.S + row * t.columns.count;
    const T* scales = t.columns.inverse_norm;
#pragma omp simd
    for (std::int64_t x = 0; x < t.columns.count; ++x) s[x] *= scale * scales[x];
    for (std::int64_t x = 0; t.diagonal && x < row; ++x) s[x] = t.S[x * t.columns.count + row];
}

template <class T>
ROBUSTDML_HD void ends_of_row(const Tile<T>& t, std::int64_t row) {
    const PairLabel label = t.rows.labels[row];
    const T* s = t.S + row * t.columns.count;
    const PairLabel* labels = t.columns.labels;
    T* ends = t.columns.of(kEnd);
    T* negative_ends = t.columns.of(kNegativeEnd);
    T end = -kInfinity<T>, negative_end = -kInfinity<T>;
    for (int side = 0; side < t.sides(); ++side) {
        const std::int64_t from = t.begin(side, row), to = t.end(side, row);
#pragma omp simd reduction(max : end, negative_end)
        for (std::int64_t x = from; x < to; ++x) {
            const bool same = labels[x] == label;
            const T cosine = s[x];
            const T of_positive = same ? cosine : -kInfinity<T>;
            const T of_negative = !same && labels[x] != kAbsent<PairLabel> ? cosine : -kInfinity<T>;
            end = of_positive > end ? of_positive : end;
            negative_end = of_negative > negative_end ? of_negative : negative_end;
            ends[x] = of_positive > ends[x] ? of_positive : ends[x];
            negative_ends[x] = of_negative > negative_ends[x] ? of_negative : negative_ends[x];
        }
    }
    t.rows.of(kEnd)[row] = end;
    t.rows.of(kNegativeEnd)[row] = negative_end;
}

template <class T>
ROBUSTDML_HD void farthest_of_row(const Tile<T>& t, std::int64_t row) {
    const PairLabel label = t.rows.labels[row];
    const T* s = t.S + row * t.columns.count;
    const PairLabel* labels = t.columns.labels;
    T* farthest = t.columns.of(kFarthest);
    T of_row = -kInfinity<T>;
    for (int side = 0; side < t.sides(); ++side) {
        const std::int64_t from = t.begin(side, row), to = t.end(side, row);
#pragma omp simd reduction(max : of_row)
        for (std::int64_t x = from; x < to; ++x) {
            const T of_positive = labels[x] == label ? -s[x] : -kInfinity<T>;
            of_row = of_positive > of_row ? of_positive : of_row;
            farthest[x] = of_positive > farthest[x] ? of_positive : farthest[x];
        }
    }
    t.rows.of(kFarthest)[row] = of_row;
}

template <class T>
ROBUSTDML_HD void sums_of_row(const Tile<T>& t, const Logits<T>& logits, std::int64_t row) {
    const PairLabel label = t.rows.labels[row];
    const T base2 = logits.base2;
    const T end = t.rows.of(kEnd)[row], negative_end = t.rows.of(kNegativeEnd)[row];
    const T* s = t.S + row * t.columns.count;
    const PairLabel* labels = t.columns.labels;
    const T* ends = t.columns.of(kEnd);
    const T* negative_ends = t.columns.of(kNegativeEnd);
    T* E = t.columns.of(kE);
    T* negative_E = t.columns.of(kNegativeE);
    T* cosines = t.columns.of(kCosine);
    T* numbers = t.columns.of(kNumber);
    T e_sum = 0, negative_sum = 0, cosine_sum = 0, number = 0;
    for (int side = 0; side < t.sides(); ++side) {
        const std::int64_t from = t.begin(side, row), to = t.end(side, row);
#pragma omp simd reduction(+ : e_sum, negative_sum, cosine_sum, number)
        for (std::int64_t x = from; x < to; ++x) {
            const bool same = labels[x] == label, present = labels[x] != kAbsent<PairLabel>;
            const T cosine = s[x];
            const T power = exp2_fast(base2 * (cosine - (same ? end : negative_end)));
            const T its_power = exp2_fast(base2 * (cosine - (same ? ends[x] : negative_ends[x])));
            const T e = present ? power : T(0), its = present ? its_power : T(0);
            const T one = same ? T(1) : T(0), of_positive = same ? cosine : T(0);
            e_sum += same ? e : T(0);
            negative_sum += same ? T(0) : e;
            cosine_sum += of_positive;
            number += one;
            E[x] += same ? its : T(0);
            negative_E[x] += same ? T(0) : its;
            cosines[x] += of_positive;
            numbers[x] += one;
        }
    }
    t.rows.of(kE)[row] = e_sum;
    t.rows.of(kNegativeE)[row] = negative_sum;
    t.rows.of(kCosine)[row] = cosine_sum;
    t.rows.of(kNumber)[row] = number;
}

// Contrast::each: of the positives log(1 + e^(constant - z)) and its derivative.
template <class T>
ROBUSTDML_HD void positives_of_row(const Tile<T>& t, const Logits<T>& logits, std::int64_t row) {
    const PairLabel label = t.rows.labels[row];
    const T constant = t.rows.of(kConstant)[row];
    const T* s = t.S + row * t.columns.count;
    const PairLabel* labels = t.columns.labels;
    const T* constants = t.columns.of(kConstant);
    T* losses = t.columns.of(kLoss);
    T* aboves = t.columns.of(kAbove);
    T loss = 0, above = 0;
    for (int side = 0; side < t.sides(); ++side) {
        const std::int64_t from = t.begin(side, row), to = t.end(side, row);
#pragma omp simd reduction(+ : loss, above)
        for (std::int64_t x = from; x < to; ++x) {
            const bool same = labels[x] == label;
            const T z = logits.scale * s[x];
            const Logistic<T> mine = logistic(constant - z), its = logistic(constants[x] - z);
            loss += same ? mine.softplus : T(0);
            above += same ? mine.sigmoid : T(0);
            losses[x] += same ? its.softplus : T(0);
            aboves[x] += same ? its.sigmoid : T(0);
        }
    }
    t.rows.of(kLoss)[row] = loss;
    t.rows.of(kAbove)[row] = above;
}

template <class T, bool Each>
ROBUSTDML_HD void gradient_of_row(const Tile<T>& t, const Logits<T>& logits, std::int64_t row) {
    const PairLabel label = t.rows.labels[row];
    const T gradient = logits.scale * t.rows.inverse_norm[row], base2 = logits.base2;
    const T positive = t.rows.of(kPositiveFactor)[row], negative = t.rows.of(kNegativeFactor)[row];
    const T constant = t.rows.of(kConstant)[row];
    const T start = t.rows.of(kPositiveStart)[row], negative_start = t.rows.of(kNegativeStart)[row];
    T* s = t.S + row * t.columns.count;
    const PairLabel* labels = t.columns.labels;
    const T* scales = t.columns.inverse_norm;
    const T* negatives = t.columns.of(kNegativeFactor);
    const T* positives = t.columns.of(kPositiveFactor);
    const T* constants = t.columns.of(kConstant);
    const T* starts = t.columns.of(kPositiveStart);
    const T* negative_starts = t.columns.of(kNegativeStart);
    T dscale = 0, dbias = 0;
    for (int side = 0; side < t.sides(); ++side) {
        const std::int64_t from = t.begin(side, row), to = t.end(side, row);
#pragma omp simd reduction(+ : dscale, dbias)
        for (std::int64_t x = from; x < to; ++x) {
            const bool same = labels[x] == label;
            const T cosine = s[x];
            const T e = exp2_fast(base2 * (cosine - (same ? start : negative_start)));
            const T its = exp2_fast(base2 * (cosine - (same ? starts[x] : negative_starts[x])));
            const T of_negative = e * negative + its * negatives[x];
            T of_positive;
            if (Each) {
                const T z = logits.scale * cosine;
                of_positive = -(positive * logistic(constant - z).sigmoid +
                                positives[x] * logistic(constants[x] - z).sigmoid);
            } else {
                of_positive = e * positive + its * positives[x] - (constant + constants[x]);
            }
            const T dz = labels[x] == kAbsent<PairLabel> ? T(0) : same ? of_positive : of_negative;
            dscale += dz * cosine;
            dbias += dz;
            s[x] = dz * gradient * scales[x];
        }
    }
    if (t.diagonal) s[row] = T(0);
    // On the diagonal a pair is there from both sides.
    t.rows.of(kDScale)[row] = t.diagonal ? dscale / 2 : dscale;
    t.rows.of(kDBias)[row] = t.diagonal ? dbias / 2 : dbias;
}

// An absent row has sums of 0, and adds nothing to those of the columns.
template <class T>
ROBUSTDML_HD void absent_row(const Tile<T>& t, std::int64_t row, Pass pass) {
    for (int sum = kE; sum < kSums; ++sum) t.rows.of(Sum(sum))[row] = T(0);
    t.rows.of(kEnd)[row] = t.rows.of(kNegativeEnd)[row] = t.rows.of(kFarthest)[row] = -kInfinity<T>;
    if (pass >= kGradient) std::fill_n(t.S + row * t.columns.count, t.columns.count, T(0));
}

template <class T>
ROBUSTDML_HD void pass_of_rows(const Tile<T>& t, const Logits<T>& logits, Pass pass, std::int64_t begin,
                               std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        if (pass == kCosines)
            cosines_of_row(t, row);
        else if (t.rows.labels[row] == kAbsent<PairLabel>)
            absent_row(t, row, pass);
        else if (pass == kEnds)
            ends_of_row(t, row);
        else if (pass == kFarthestPositives)
            farthest_of_row(t, row);
        else if (pass == kExponentials)
            sums_of_row(t, logits, row);
        else if (pass == kPositives)
            positives_of_row(t, logits, row);
        else if (pass == kGradient)
            gradient_of_row<T, false>(t, logits, row);
        else
            gradient_of_row<T, true>(t, logits, row);
    }
}

#define ROBUSTDML_STAMP(T)                                                                    \
    ROBUSTDML_CLONES void pass_clone(const Tile<T>& tile, const Logits<T>& logits, Pass pass, \
                                     std::int64_t begin, std::int64_t end) {                  \
        pass_of_rows(tile, logits, pass, begin, end);                                         \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace

template <class T>
void pass_of_tile(const Tile<T>& tile, const Logits<T>& logits, Pass pass, const TileRelations& related) {
    if (!related.relations || pass == kCosines) return pass_clone(tile, logits, pass, 0, tile.rows.count);
    RowLabels own(*related.relations, tile.columns.labels, related.first_column, tile.columns.count);
    Tile<T> part = tile;
    for (std::int64_t row = 0; row < tile.rows.count; ++row) {
        part.columns.labels = own.begin(related.first_row + row, tile.rows.labels[row]);
        pass_clone(part, logits, pass, row, row + 1);
        own.end();
    }
}

template void pass_of_tile<float>(const Tile<float>&, const Logits<float>&, Pass, const TileRelations&);
template void pass_of_tile<double>(const Tile<double>&, const Logits<double>&, Pass, const TileRelations&);

}  // namespace robustdml::cpu
