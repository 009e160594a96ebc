// Epilogue of the anchor log-sum-exp: a chunk of similarities becomes two log-sum-exps per anchor, and its
// own gradient.
#pragma once

#include <cstdint>

#include "anchor_chunk.h"

namespace robustdml::cpu {

// X_p+ = candidates labelled p; w = 1.
struct LabelSets {
    const std::int64_t* sorted_labels;  // (B,) in, ascending
    const std::int64_t* order;          // (B,) in: candidate at each place of sorted_labels
    std::int64_t first_label;           // label of the chunk's first row
};

template <class T>
void anchor_lse_labels(const AnchorChunk<T>& chunk, const LabelSets& sets, int threads);

template <class T>
void anchor_lse_confidences(const AnchorChunk<T>& chunk, const ConfidenceSets<T>& sets, int threads);

}  // namespace robustdml::cpu
