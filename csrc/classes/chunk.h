// One chunk of the class log-sum-exp, as the epilogues of both devices see it.
//
//   logit[k, x] = scale[k] pool_h(s[k, h, x]) + bias[k]
//   sum[x]      = sum over k that is no label of x, pool_h(s[k, h, x]) <= drop_similar_negatives[x], of
//   exp(logit[k, x]) target[x, j] = logit[label[x, j], x]
//   weighted[x] = sum over k that is no label of x, of logit_weights[k] logit[k, x]
#pragma once

#include <cstdint>
#include <tuple>

#include "common/fields.h"

namespace robustdml {

// Of the similarities with the sub-centres of a class: the only one; the largest; their mean weighted by
// softmax(s / gamma).
enum class Pooling { none, max, softmax };

template <class T>
struct ClassChunk {
    T* S;                  // (classes, centers, B) in: similarities; out: dL/dS in backward, else undefined
    std::int64_t classes;  // in this chunk
    std::int64_t centers;  // of a class; 1 where nothing is pooled
    std::int64_t B;        // samples
    const T* scale;        // (classes,) or (1,) in
    std::int64_t scale_stride;  // 1, or 0 for one value that serves all classes
    const T* bias;              // (classes,) in, -inf: masked; or null: none
    Pooling pooling;
    T gamma;
    const T* drop_similar_negatives;  // (B,) in: similarity above which a class that is no label is left out,
                                      // or null
    std::int64_t labels_each;         // labels of a sample, K
    const T* logit_weights;           // (classes,) in, or null: no `weighted`

    // CPU only, (classes * centers,) in: 1 / |proxy|, 0 for zero rows. S then holds products with the proxies
    // as they are on the way in, and the gradient of those on the way out; null: S holds similarities.
    const T* inverse_norm;

    // `count` of these classes, from `first` on.
    ClassChunk part(std::int64_t first, std::int64_t count) const {
        ClassChunk chunk = *this;
        chunk.classes = count;
        chunk.scale += first * scale_stride;
        if (bias) chunk.bias += first;
        if (logit_weights) chunk.logit_weights += first;
        return chunk;
    }

    static constexpr auto fields() {
        return std::tuple{
            field("S", &ClassChunk::S),
            field("classes", &ClassChunk::classes),
            field("centers", &ClassChunk::centers),
            field("B", &ClassChunk::B),
            field("scale", &ClassChunk::scale),
            field("scale_stride", &ClassChunk::scale_stride),
            field("bias", &ClassChunk::bias),
            field("pooling", &ClassChunk::pooling),
            field("gamma", &ClassChunk::gamma),
            field("drop_similar_negatives", &ClassChunk::drop_similar_negatives),
            field("labels_each", &ClassChunk::labels_each),
            field("logit_weights", &ClassChunk::logit_weights),
            optional_field("inverse_norm", &ClassChunk::inverse_norm),
        };
    }
};

// Sums of the forward sweep, updated chunk by chunk.
template <class T>
struct ClassSums {
    double* shift;  // (B,) in/out: of the exponents so far, about their largest; -inf before the first chunk
    double* total;  // (B,) in/out: sum of exp(logit - shift) over the classes that count
    T* target;      // (B, K) out: logits of the labels, where their classes are in this chunk
    double*
        weighted;  // (B,) in/out: sum of logit_weights * logit over the classes that are no labels, or null
    // All three or none, over the classes that count and are no labels:
    const T* own;   // (B,) in: similarity with the own class
    T* nearest;     // (B,) in/out: largest similarity so far
    double* above;  // (B,) in/out: number of similarities so far above `own`

    static constexpr auto fields() {
        return std::tuple{
            field("shift", &ClassSums::shift),   field("total", &ClassSums::total),
            field("target", &ClassSums::target), field("weighted", &ClassSums::weighted),
            field("own", &ClassSums::own),       field("nearest", &ClassSums::nearest),
            field("above", &ClassSums::above),
        };
    }
};

template <class T>
struct ClassUpstream {
    const T* lse;        // (B,) in: the whole log-sum-exp; +inf: of an empty sum
    const T* dlse;       // (B,) in: dL/dlse
    const T* dlogit;     // (B, K) in: dL/dlogit of the labels
    const T* dweighted;  // (B,) in: dL/dweighted, or null

    static constexpr auto fields() {
        return std::tuple{
            field("lse", &ClassUpstream::lse),
            field("dlse", &ClassUpstream::dlse),
            field("dlogit", &ClassUpstream::dlogit),
            field("dweighted", &ClassUpstream::dweighted),
        };
    }
};

}  // namespace robustdml
