// One chunk of the anchor log-sum-exp, as the epilogues of both devices see it.
//
//   positive[p] = log(1 + sum over X_p+ of w exp(-alpha s + positive_bias[x]))
//   negative[p] = log(1 + sum over X_p- of w exp(+alpha s + negative_bias[x] + anchor_bias[p])), s <=
//   drop_similar_negatives[x]
//
// With labels, w is that of the label in X_p+ and 1 in X_p-.
#pragma once

#include <cstdint>
#include <tuple>

#include "common/fields.h"

namespace robustdml {

template <class T>
struct AnchorChunk {
    T* S;               // (rows, B) in: cosines; out: dL/dS if upstream_positive is given, else undefined
    std::int64_t rows;  // anchors in this chunk
    std::int64_t B;     // candidates
    T alpha;            // scale of the similarities
    const T* drop_similar_negatives;  // (B,) in: negatives of a larger cosine are left out; null: none are
    std::int64_t labels_each;         // labels of a candidate, K, where labels tell the sets
    const T* label_weights;           // (B, K) in, or null: 1
    const T* positive_bias;           // (B,) in
    const T* negative_bias;           // (B,) in
    const T* anchor_bias;             // (rows,) in, or null: none
    bool row_max;  // CPU only: shift by each row's maximum, needed where an exponent could overflow

    const T* upstream_positive;             // (rows,) or (1,) in: dL/dpositive; null: no gradients
    const T* upstream_negative;             // (rows,) or (1,) in: dL/dnegative
    std::int64_t upstream_positive_stride;  // 1, or 0 for one value that serves all rows
    std::int64_t upstream_negative_stride;

    T* lse_positive;    // (rows,) out
    T* lse_negative;    // (rows,) out
    T* dpositive_bias;  // (B,) in/out, added to; null: not wanted
    T* dnegative_bias;  // (B,) in/out, added to; null exactly when dpositive_bias is

    // CPU only, (rows,) in: 1 / |anchor|, 0 for zero rows. S then holds products with the anchors as they are
    // on the way in, and the gradient of those on the way out; null: S holds cosines.
    const T* inverse_norm;

    static constexpr auto fields() {
        return std::tuple{
            field("S", &AnchorChunk::S),
            field("rows", &AnchorChunk::rows),
            field("B", &AnchorChunk::B),
            field("alpha", &AnchorChunk::alpha),
            field("drop_similar_negatives", &AnchorChunk::drop_similar_negatives),
            field("labels_each", &AnchorChunk::labels_each),
            field("label_weights", &AnchorChunk::label_weights),
            field("positive_bias", &AnchorChunk::positive_bias),
            field("negative_bias", &AnchorChunk::negative_bias),
            field("anchor_bias", &AnchorChunk::anchor_bias),
            field("row_max", &AnchorChunk::row_max),
            field("upstream_positive", &AnchorChunk::upstream_positive),
            field("upstream_negative", &AnchorChunk::upstream_negative),
            field("upstream_positive_stride", &AnchorChunk::upstream_positive_stride),
            field("upstream_negative_stride", &AnchorChunk::upstream_negative_stride),
            field("lse_positive", &AnchorChunk::lse_positive),
            field("lse_negative", &AnchorChunk::lse_negative),
            field("dpositive_bias", &AnchorChunk::dpositive_bias),
            field("dnegative_bias", &AnchorChunk::dnegative_bias),
            optional_field("inverse_norm", &AnchorChunk::inverse_norm),
        };
    }
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

    static constexpr auto fields() {
        return std::tuple{
            field("values", &ConfidenceSets::values),
            field("anchor_stride", &ConfidenceSets::anchor_stride),
            field("candidate_stride", &ConfidenceSets::candidate_stride),
            field("logits", &ConfidenceSets::logits),
            field("beta", &ConfidenceSets::beta),
            field("threshold", &ConfidenceSets::threshold),
        };
    }
};

}  // namespace robustdml
