// Epilogues of the sums over pairs: a chunk of similarities becomes two log-sum-exps per anchor, two sums of
// hinges and two counts, or a contrast, and its own gradient.
#pragma once

#include <cstdint>

#include "math/portable.h"
#include "pairs/chunk.h"

namespace robustdml::cpu {

// As wide as a float, so that a vector compares as many labels as it exponentiates similarities.
using PairLabel = std::int32_t;
template <class T>
using Pairs = PairChunk<T, PairLabel>;

// A row of products with candidates as they are becomes cosines; its gradient becomes that of the products.
template <class T>
ROBUSTDML_HD void scale_candidates(const Pairs<T>& c, std::int64_t row) {
    if (!c.candidate_inverse_norm) return;
    T* s = c.S + row * c.m;
#pragma omp simd
    for (std::int64_t x = 0; x < c.m; ++x) s[x] *= c.candidate_inverse_norm[x];
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

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairLSEProblem<T>& problem, int threads);

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairHingeProblem<T>& problem, int threads);

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairContrastProblem<T>& problem, int threads);

}  // namespace robustdml::cpu
