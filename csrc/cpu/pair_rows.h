// The loop over the anchors of a chunk of pairs, and what a row starts with.
#pragma once

#include "cpu/epilogue.h"
#include "math/limits.h"
#include "pair_chunk.h"

namespace robustdml::cpu {

// As wide as a float, so that a vector compares as many labels as it exponentiates similarities.
using PairLabel = std::int32_t;
template <class T>
using Pairs = PairChunk<T, PairLabel>;

// Marks the anchor's own place: in no set, since every comparison with it is false.
template <class T>
ROBUSTDML_HD RowScale<T> begin_row(const Pairs<T>& c, std::int64_t row, T* s) {
    const RowScale<T> scales = scale_of_row(c, row, s, c.m);
    if (c.itself >= 0) s[c.itself + row] = kNaN<T>;
    return scales;
}

// Upstream gradients of a row; zeros where none is wanted.
template <class T>
struct RowUpstream {
    T positive;
    T negative;
};

template <class T>
ROBUSTDML_HD RowUpstream<T> upstream_of_row(const Pairs<T>& c, std::int64_t row) {
    if (!c.upstream_positive) return {T(0), T(0)};
    return {c.upstream_positive[row * c.upstream_positive_stride],
            c.upstream_negative[row * c.upstream_negative_stride]};
}

// Each thread takes a fixed range of rows, and no sum crosses rows: the same call gives the same bits.
template <class T, class Kernel>
void over_pair_rows(const Pairs<T>& c, int threads, Kernel kernel) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && c.rows * c.m > 8192)
    for (int t = 0; t < threads; ++t) kernel(c.rows * t / threads, c.rows * (t + 1) / threads);
}

}  // namespace robustdml::cpu
