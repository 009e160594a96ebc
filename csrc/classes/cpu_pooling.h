// The similarity of samples with a whole class out of those with its sub-centres, and the way back, for a few
// columns at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "classes/chunk.h"
#include "math/exp.h"
#include "math/limits.h"

namespace robustdml::cpu {

// Columns that are worked on together: what a class brings of them stays in L1.
constexpr std::int64_t kColumns = 128;

// Cosine / s for the centre in this row: 1 where S holds similarities.
template <class T>
ROBUSTDML_HD T cosine_factor(const ClassChunk<T>& c, std::int64_t row) {
    return c.inverse_norm ? c.inverse_norm[row] : T(1);
}

// Largest similarity.
template <class T>
ROBUSTDML_HD void pool_max(const ClassChunk<T>& c, std::int64_t k, std::int64_t from, std::int64_t count,
                           T* pooled) {
    const T* s = c.S + k * c.centers * c.B + from;
    // 0, or NaN where a similarity is NaN, which std::max may drop.
    T poison[kColumns];
    std::fill(pooled, pooled + count, -kInfinity<T>);
    std::fill(poison, poison + count, T(0));
    for (std::int64_t h = 0; h < c.centers; ++h) {
        const T factor = cosine_factor(c, k * c.centers + h);
#pragma omp simd
        for (std::int64_t x = 0; x < count; ++x) {
            const T value = s[h * c.B + x] * factor;
            pooled[x] = std::max(pooled[x], value);
            poison[x] += value * T(0);
        }
    }
#pragma omp simd
    for (std::int64_t x = 0; x < count; ++x) pooled[x] += poison[x];
}

// dL/dS of up to kColumns columns of one class. The first of equal centres takes all, by arithmetic: GCC
// makes a branch, and no vector code, of two choices by one comparison.
template <class T>
ROBUSTDML_HD void unpool_max(const ClassChunk<T>& c, std::int64_t k, std::int64_t from, std::int64_t count,
                             const T* pooled, const T* gradient) {
    T left[kColumns];
    std::fill(left, left + count, T(1));
    for (std::int64_t h = 0; h < c.centers; ++h) {
        T* row = c.S + (k * c.centers + h) * c.B + from;
        const T factor = cosine_factor(c, k * c.centers + h);
#pragma omp simd
        for (std::int64_t x = 0; x < count; ++x) {
            const T share = row[x] * factor == pooled[x] ? left[x] : T(0);
            left[x] -= share;
            row[x] = factor * gradient[x] * share;
        }
    }
}

// Mean similarity with the weights e^((s - shift) / gamma), which are left in `weights`, (centers, kColumns),
// and 1 / (their sum) in `inverse`.
template <class T>
ROBUSTDML_HD void pool_softmax(const ClassChunk<T>& c, std::int64_t k, std::int64_t from, std::int64_t count,
                               T* pooled, T* inverse, T* weights) {
    const T* s = c.S + k * c.centers * c.B + from;
    const T inverse_gamma = T(1) / c.gamma;
    T shift[kColumns], total[kColumns];
    std::fill(shift, shift + count, T(0));
    // Cosines over 1/40 and more stay within the exponential's range, and need no look at their maximum.
    if (!c.inverse_norm || inverse_gamma > T(40)) {
        std::fill(shift, shift + count, -kLargest<T>);
        for (std::int64_t h = 0; h < c.centers; ++h) {
            const T factor = cosine_factor(c, k * c.centers + h);
#pragma omp simd
            for (std::int64_t x = 0; x < count; ++x) shift[x] = std::max(shift[x], s[h * c.B + x] * factor);
        }
    }
    std::fill(total, total + count, T(0));
    std::fill(pooled, pooled + count, T(0));
    for (std::int64_t h = 0; h < c.centers; ++h) {
        const T factor = cosine_factor(c, k * c.centers + h);
        T* weight = weights + h * kColumns;
#pragma omp simd
        for (std::int64_t x = 0; x < count; ++x) {
            const T value = s[h * c.B + x] * factor;
            const T e = exp_fast((value - shift[x]) * inverse_gamma);
            weight[x] = e;
            total[x] += e;
            pooled[x] += e * value;
        }
    }
#pragma omp simd
    for (std::int64_t x = 0; x < count; ++x) {
        inverse[x] = T(1) / total[x];
        pooled[x] *= inverse[x];
    }
}

template <class T>
ROBUSTDML_HD void unpool_softmax(const ClassChunk<T>& c, std::int64_t k, std::int64_t from,
                                 std::int64_t count, const T* pooled, const T* inverse, const T* weights,
                                 const T* gradient) {
    const T inverse_gamma = T(1) / c.gamma;
    for (std::int64_t h = 0; h < c.centers; ++h) {
        T* row = c.S + (k * c.centers + h) * c.B + from;
        const T factor = cosine_factor(c, k * c.centers + h);
        const T* weight = weights + h * kColumns;
#pragma omp simd
        for (std::int64_t x = 0; x < count; ++x) {
            const T slope = T(1) + (row[x] * factor - pooled[x]) * inverse_gamma;
            row[x] = factor * gradient[x] * (weight[x] * inverse[x]) * slope;
        }
    }
}

template <class T>
ROBUSTDML_HD void pool(const ClassChunk<T>& c, std::int64_t k, std::int64_t from, std::int64_t count,
                       T* pooled, T* inverse, T* weights) {
    if (c.pooling == Pooling::max)
        pool_max(c, k, from, count, pooled);
    else
        pool_softmax(c, k, from, count, pooled, inverse, weights);
}

}  // namespace robustdml::cpu
