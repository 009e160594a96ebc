// What a sweep over classes sees of each sample beside its sums: its largest similarity with another class,
// and the number of those that exceed that with its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "classes/cpu_pooling.h"
#include "common/cpu/labels.h"

namespace robustdml::cpu {

// Where labels of a class are among the sorted ones.
struct LabelRange {
    std::int64_t begin, end;
};

// Of some samples in a row.
template <class T, class Count>
struct Seen {
    const T* own;
    T* nearest;
    Count* above;
};

// Adds a class with similarities s[x] cosine, x < columns <= kColumns, for the samples from `from` on. Its
// labels `own`, and samples that leave it out, do not count.
template <class T, class Count>
ROBUSTDML_HD void see_class(const ClassChunk<T>& c, const LabelSets& labels, const LabelRange& own,
                            std::int64_t k, const T* s, T cosine, std::int64_t from, std::int64_t columns,
                            const Seen<T, Count>& seen) {
    if (c.bias && c.bias[k] == -kInfinity<T>) return;
    T others[kColumns];
    const bool some = own.begin < own.end || c.drop_similar_negatives;
    if (some) {
#pragma omp simd
        for (std::int64_t x = 0; x < columns; ++x) others[x] = s[x] * cosine;
        for (std::int64_t x = 0; c.drop_similar_negatives && x < columns; ++x)
            if (others[x] > c.drop_similar_negatives[from + x]) others[x] = -kInfinity<T>;
        for (std::int64_t p = own.begin; p < own.end; ++p) {
            const std::int64_t x = labels.order[p] / c.labels_each - from;
            if (0 <= x && x < columns) others[x] = -kInfinity<T>;
        }
    }
    const T* values = some ? others : s;
    const T factor = some ? T(1) : cosine;
    const T* limit = seen.own;
    T* nearest = seen.nearest;
    Count* above = seen.above;
#pragma omp simd
    for (std::int64_t x = 0; x < columns; ++x) {
        const T value = values[x] * factor;
        nearest[x] = value > nearest[x] ? value : nearest[x];
        above[x] += value > limit[x] ? Count(1) : Count(0);
    }
}

}  // namespace robustdml::cpu
