// One chunk of anchors and all their candidates, as the epilogues of both devices see it.
//
// P = candidates of the anchor's label, N = those of another. A label kAbsent is in no set and has none.
#pragma once

#include <cstdint>
#include <limits>
#include <tuple>

#include "common/fields.h"

namespace robustdml {

namespace cpu {
struct Relations;
}

// Of a row that takes no part; every other number is a class.
template <class Label>
constexpr Label kAbsent = std::numeric_limits<Label>::min();

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

    // CPU only, (rows,) in: 1 / |anchor|, 0 for zero rows. S then holds products with the anchors as they are
    // on the way in, and the gradient of those on the way out; null: S holds cosines.
    const T* inverse_norm;
    // CPU only, (m,) in: 1 / |candidate|, in the same way; null: the candidates are unit rows.
    const T* candidate_inverse_norm;
    // CPU only, in: several labels and ids; null: there are none. On a GPU Triton's kernels alone know them.
    const cpu::Relations* relations;
    std::int64_t relations_row;  // of the first row
    // CPU only, (rows,) out, both or none: least cosine over P, +inf without any; largest over N, or -inf.
    T* hardest_positive;
    T* hardest_negative;

    static constexpr auto fields() {
        return std::tuple{
            field("S", &PairChunk::S),
            field("rows", &PairChunk::rows),
            field("m", &PairChunk::m),
            field("labels", &PairChunk::labels),
            field("candidate_labels", &PairChunk::candidate_labels),
            field("itself", &PairChunk::itself),
            field("upstream_positive", &PairChunk::upstream_positive),
            field("upstream_negative", &PairChunk::upstream_negative),
            field("upstream_positive_stride", &PairChunk::upstream_positive_stride),
            field("upstream_negative_stride", &PairChunk::upstream_negative_stride),
            field("positive", &PairChunk::positive),
            field("negative", &PairChunk::negative),
            optional_field("inverse_norm", &PairChunk::inverse_norm),
            optional_field("candidate_inverse_norm", &PairChunk::candidate_inverse_norm),
            optional_field("relations", &PairChunk::relations),
            optional_field("relations_row", &PairChunk::relations_row),
            optional_field("hardest_positive", &PairChunk::hardest_positive),
            optional_field("hardest_negative", &PairChunk::hardest_negative),
        };
    }
};

// positive = log(1 + sum over the mined P of exp(-alpha (s - base))), negative = log(1 + sum over the mined N
// of exp(beta (s - base))), each times the mean weight of its candidates if there are weights.
template <class T>
struct PairLSEProblem {
    T alpha;
    T beta;
    T base;
    T epsilon;                   // n stays if s + epsilon > min over P, p if s - epsilon < max over N
    bool mining;                 // otherwise all stay
    bool row_max;                // shift by each row's maximum: needed where an exponent could overflow
    const T* candidate_weights;  // (m,) in, or null

    static constexpr auto fields() {
        return std::tuple{
            field("alpha", &PairLSEProblem::alpha),
            field("beta", &PairLSEProblem::beta),
            field("base", &PairLSEProblem::base),
            field("epsilon", &PairLSEProblem::epsilon),
            field("mining", &PairLSEProblem::mining),
            field("row_max", &PairLSEProblem::row_max),
            field("candidate_weights", &PairLSEProblem::candidate_weights),
        };
    }
};

// positive = sum over P of (positive_margin - t) where above 0, negative = sum over N of (t -
// negative_margin) where above 0, each such term plus its offset. t = s, or minus the distance of unit
// vectors.
template <class T>
struct PairHingeProblem {
    T positive_margin;
    T negative_margin;
    T positive_offset;
    T negative_offset;
    bool euclidean;
    std::int64_t* positive_count;  // (rows,) out: terms above 0
    std::int64_t* negative_count;  // (rows,) out

    // Euclidean only: the rows as they were given, of any length.
    T near;                        // below this a distance is made of the rows
    T resolution;                  // up to this a distance has no gradient: its direction is rounding
    const void* anchors;           // (rows, D) in
    const void* candidates;        // (m, D) in
    std::int64_t D;                // columns
    std::int64_t anchors_element;  // a cuda::Element; on the CPU rows are of type T
    std::int64_t candidates_element;

    static constexpr auto fields() {
        return std::tuple{
            field("positive_margin", &PairHingeProblem::positive_margin),
            field("negative_margin", &PairHingeProblem::negative_margin),
            field("positive_offset", &PairHingeProblem::positive_offset),
            field("negative_offset", &PairHingeProblem::negative_offset),
            field("euclidean", &PairHingeProblem::euclidean),
            field("positive_count", &PairHingeProblem::positive_count),
            field("negative_count", &PairHingeProblem::negative_count),
            optional_field("near", &PairHingeProblem::near),
            optional_field("resolution", &PairHingeProblem::resolution),
            optional_field("anchors", &PairHingeProblem::anchors),
            optional_field("candidates", &PairHingeProblem::candidates),
            optional_field("D", &PairHingeProblem::D),
            optional_field("anchors_element", &PairHingeProblem::anchors_element),
            optional_field("candidates_element", &PairHingeProblem::candidates_element),
        };
    }
};

// How a contrast compares an anchor's positives with its negatives.
enum class Contrast : std::int64_t {
    outside,  // positive = log(sum over P and N of exp(z)) - mean of z over P
    inside,   // the same - log(mean of exp(z) over P)
    each,     // positive = sum over P of log(exp(z) + sum over N of exp(z)) - z
    sigmoid,  // positive = sum over P of log(1 + exp(-z)) + sum over N of log(1 + exp(z))
};

// Losses of logits z = scale s + bias; negative is the logarithm of outside and inside, else 0. Without
// positives both are 0, but of sigmoid.
template <class T>
struct PairContrastProblem {
    std::int64_t form;         // a Contrast
    const T* coefficients;     // (2,) in: scale and bias
    T* dscale;                 // (rows,) out, with upstream gradients: sum of s dL/dz; or null
    T* dbias;                  // (rows,) out, with upstream gradients: sum of dL/dz
    const T* column_lse;       // (m,) in: log-sum-exps of the candidates over all anchors, or null
    const T* column_upstream;  // (m,) in: dL/dcolumn_lse; both join dL/dS of anchors that have positives

    static constexpr auto fields() {
        return std::tuple{
            field("form", &PairContrastProblem::form),
            field("coefficients", &PairContrastProblem::coefficients),
            field("dscale", &PairContrastProblem::dscale),
            field("dbias", &PairContrastProblem::dbias),
            field("column_lse", &PairContrastProblem::column_lse),
            field("column_upstream", &PairContrastProblem::column_upstream),
        };
    }
};

}  // namespace robustdml
