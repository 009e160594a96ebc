// The whole sweep of the anchor log-sum-exp on the CPU, by lanes.
#pragma once

#include "anchor/cpu.h"
#include "common/cpu/lanes.h"

namespace robustdml::cpu {

// Confidences by their logits hidden weight^T + bias, made for each chunk: the factors of
// `ConfidenceSets::values`.
template <class T>
struct ConfidenceFactors {
    const T* hidden;  // (B, K) in, by rows; null: the confidences are given as a matrix
    const T* weight;  // (rows, K) in, by rows
    const T* bias;    // (rows,) in
    std::int64_t K;

    static constexpr auto fields() {
        return std::tuple{
            field("hidden", &ConfidenceFactors::hidden),
            field("weight", &ConfidenceFactors::weight),
            field("bias", &ConfidenceFactors::bias),
            field("K", &ConfidenceFactors::K),
        };
    }
};

// `whole` is a chunk of all anchors without S and inverse_norm. Its lse may be null: only their sum
// upstream_positive . lse_positive + upstream_negative . lse_negative is wanted, which is added to `total`
// where there is an upstream. The gradients that are wanted are those that `sweep` and the biases' have room
// for. True if some row was out of reach: see sweep_lanes.
template <class T>
bool anchor_sweep_labels(const AnchorChunk<T>& whole, const LabelSets& sets, const Sweep<T>& sweep,
                         double* total);

template <class T>
bool anchor_sweep_confidences(const AnchorChunk<T>& whole, const ConfidenceSets<T>& sets,
                              const ConfidenceFactors<T>& factors, const Sweep<T>& sweep, double* total);

// A step of Proxy-Anchor, or of Adaptive Proxy-Anchor where there are margins: from embeddings X (B, D) and
// proxies P (C, D), both by rows, to the loss and both gradients, in one call. False where a value needs
// another way or an error, which that way has.
template <class T>
bool anchor_step(Gemm<T> gemm, SetThreads set_threads, const T* X,
                 const std::int64_t* labels,  // (B,) in
                 const T* weights,            // (B,) in, or null: 1
                 const T* P, std::int64_t B, std::int64_t D, std::int64_t C, double alpha, double bias,
                 const T* margins,           // (1,) or (C,) in: learnt, instead of `bias`; or null
                 std::int64_t margin_count,  // 1 or C
                 double regularization,      // lambda of lambda / mean(margins)
                 std::int64_t chunk_rows, int threads,
                 T* dX,        // (B, D) out, or null
                 T* dP,        // (C, D) out, or null
                 T* dmargins,  // (margin_count,) out, or null
                 T* loss);     // () out

}  // namespace robustdml::cpu
