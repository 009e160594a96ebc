// One chunk of anchors and all their candidates, as the epilogues of both devices see it.
//
// P = candidates of the anchor's label, N = those of another. A label below 0 is in no set and has none.
#pragma once

#include <cstdint>

namespace robustdml {

template <class T, class Label>
struct PairChunk {
    T* S;                 // (rows, m) in: cosines; out: dL/dS if upstream_positive is given, else undefined
    std::int64_t rows;    // anchors in this chunk
    std::int64_t m;       // candidates
    const Label* labels;  // (rows,) in
    const Label* candidate_labels;  // (m,) in
    std::int64_t itself;  // candidate that is the first row's anchor, the next is the next's; -1: none is

    const T* upstream_positive;             // (rows,) or (1,) in: dL/dpositive; null: no gradients
    const T* upstream_negative;             // (rows,) or (1,) in: dL/dnegative
    std::int64_t upstream_positive_stride;  // 1, or 0 for one value that serves all rows
    std::int64_t upstream_negative_stride;

    T* positive;  // (rows,) out
    T* negative;  // (rows,) out

    // CPU only: the anchors themselves, of any length. S then holds P.x on the way in and dL/d(P.x) on the
    // way out.
    const T* P;       // (rows, D) in; null: S holds cosines
    T* inverse_norm;  // (rows,) out: 1 / |P|, 0 for zero rows; null exactly when P is
    std::int64_t D;
};

// positive = log(1 + sum over the mined P of exp(-alpha (s - base))), negative = log(1 + sum over the mined N
// of exp(beta (s - base))), each times the mean weight of its candidates if there are weights.
template <class T>
struct PairLSE {
    T alpha;
    T beta;
    T base;
    T epsilon;                   // n stays if s + epsilon > min over P, p if s - epsilon < max over N
    bool mining;                 // otherwise all stay
    bool row_max;                // shift by each row's maximum: needed where an exponent could overflow
    const T* candidate_weights;  // (m,) in, or null
};

// positive = sum over P of (positive_margin - t) where above 0, negative = sum over N of (t -
// negative_margin) where above 0, each such term plus its offset. t = s, or minus the distance of unit
// vectors.
template <class T>
struct PairHinge {
    T positive_margin;
    T negative_margin;
    T positive_offset;
    T negative_offset;
    bool euclidean;
    std::int64_t* positive_count;  // (rows,) out: terms above 0
    std::int64_t* negative_count;  // (rows,) out
};

}  // namespace robustdml
