// A step of a softmax over classes on the CPU in one call: from embeddings and proxies to the loss and both
// gradients, in three products.
#pragma once

#include "classes/cpu_terms.h"

namespace robustdml::cpu {

// How a margin m moves the label's cosine s = cos t.
//   cosine:   f(s) = s - m
//   angle:    f(s) = cos(t + m) where t <= pi - m, else s - m sin m, as ArcFace has it
//   quality:  f(s) = cos(t - m z) - m (1 + z), with t - m z within 0.001 ... pi - 0.001, as AdaFace has it;
//             z is the quality of the sample
enum class Margin { cosine, angle, quality };

// What a step has beside its matrices; the loss of a sample is log sum_k exp(logit_k) - logit_y, with
// logit_k = scale s_k, and logit_y = scale f(s_y).
template <class T>
struct ClassStep {
    Gemm<T> gemm;
    SetThreads set_threads;
    std::int64_t B;
    std::int64_t C;
    std::int64_t H;  // centres of a class
    std::int64_t D;
    std::int64_t P_row_stride;  // of P (C H, D), by rows or by columns, and of its gradient
    std::int64_t P_column_stride;
    T scale;  // at most 64
    Margin margin_kind;
    T margin;             // m, where `margins` does not have it
    T margin_unit;        // of `margins`
    bool class_margins;   // whether `margins` has one for each class
    bool exclude_target;  // whether the sum leaves the label out
    Pooling pooling;
    T gamma;
    std::int64_t kept;  // rows of the terms E
    std::int64_t chunk_rows;
    int threads;

    static constexpr auto fields() {
        return std::tuple{
            field("gemm", &ClassStep::gemm),
            field("set_threads", &ClassStep::set_threads),
            field("B", &ClassStep::B),
            field("C", &ClassStep::C),
            field("H", &ClassStep::H),
            field("D", &ClassStep::D),
            field("P_row_stride", &ClassStep::P_row_stride),
            field("P_column_stride", &ClassStep::P_column_stride),
            field("scale", &ClassStep::scale),
            field("margin_kind", &ClassStep::margin_kind),
            field("margin", &ClassStep::margin),
            field("margin_unit", &ClassStep::margin_unit),
            field("class_margins", &ClassStep::class_margins),
            field("exclude_target", &ClassStep::exclude_target),
            field("pooling", &ClassStep::pooling),
            field("gamma", &ClassStep::gamma),
            field("kept", &ClassStep::kept),
            field("chunk_rows", &ClassStep::chunk_rows),
            field("threads", &ClassStep::threads),
        };
    }
};

// The weighted sum of the losses over the number of samples of positive weight. False where a value needs
// another way or an error: a label out of range, NaN, a weight or margin that is none, rows of extreme
// length.
template <class T>
bool class_step(const ClassStep<T>& step,
                const T* X,                  // (B, D) in, by rows
                const T* P,                  // (C H, D) in
                const std::int64_t* labels,  // (B,) in
                const T* weights,            // (B,) in, or null: 1
                const T* margins,            // (B,) or (C,) in: m, or z of each sample; or null: step.margin
                T* E,                        // (kept, B) out, or null: dL/dP is not wanted
                T* dX,                       // (B, D) out, or null
                T* dP,                       // (C H, D) out, or null
                T* loss);                    // () out

}  // namespace robustdml::cpu
