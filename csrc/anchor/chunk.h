// One chunk of the anchor log-sum-exp, as the epilogues of both devices see it.
//
//   positive[p] = log(1 + sum over X_p+ of w exp(-alpha s + positive_bias[x]))
//   negative[p] = log(1 + sum over X_p- of w exp(+alpha s + negative_bias[x] + anchor_bias[p]))
#pragma once

#include <cstdint>

namespace robustdml {

template <class T>
struct AnchorChunk {
    T* S;               // (rows, B) in: cosines; out: dL/dS if upstream_positive is given, else undefined
    std::int64_t rows;  // anchors in this chunk
    std::int64_t B;     // candidates
    T alpha;            // scale of the similarities
    const T* positive_bias;  // (B,) in
    const T* negative_bias;  // (B,) in
    const T* anchor_bias;    // (rows,) in, or null: none
    bool row_max;            // shift by each row's maximum: needed where an exponent could overflow

    const T* upstream_positive;             // (rows,) or (1,) in: dL/dpositive; null: no gradients
    const T* upstream_negative;             // (rows,) or (1,) in: dL/dnegative
    std::int64_t upstream_positive_stride;  // 1, or 0 for one value that serves all rows
    std::int64_t upstream_negative_stride;

    T* lse_positive;    // (rows,) out
    T* lse_negative;    // (rows,) out
    T* dpositive_bias;  // (B,) in/out, added to; null: not wanted
    T* dnegative_bias;  // (B,) in/out, added to; null exactly when dpositive_bias is

    // CPU only: the anchors themselves, of any length. S then holds P.x on the way in and dL/d(P.x) on the
    // way out.
    const T* P;       // (rows, D) in; null: S holds cosines
    T* inverse_norm;  // (rows,) out: 1 / |P|, 0 for zero rows; null exactly when P is
    std::int64_t D;
};

// X_p+ = candidates with confidence above the threshold; w = sigmoid(beta |confidence - threshold|) on either
// side, which is w on the positive side and 1 - w on the negative one.
template <class T>
struct ConfidenceSets {
    const T* values;             // (rows, B) in, strided: confidences, or their logits
    std::int64_t anchor_stride;  // elements between anchors
    std::int64_t candidate_stride;
    bool logits;  // values go through the sigmoid first
    T beta;
    T threshold;
};

}  // namespace robustdml
