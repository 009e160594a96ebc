// Epilogue of the anchor log-sum-exp on the current CUDA device. Every row is shifted by its own maximum:
// whether that is needed depends on values that the host does not see without waiting for the device.
#pragma once

#include <cstdint>

#include "anchor/chunk.h"
#include "common/cuda/labels.h"
#include "common/cuda/partials.h"

namespace robustdml::cuda {

// `partials`: gradients of both biases; their address is null where these are not wanted.
template <class T>
void anchor_lse_labels(const AnchorChunk<T>& chunk, const LabelSets& sets, const Partials<T>& partials,
                       std::uintptr_t stream);

template <class T>
void anchor_lse_confidences(const AnchorChunk<T>& chunk, const ConfidenceSets<T>& sets,
                            const Partials<T>& partials, std::uintptr_t stream);

}  // namespace robustdml::cuda
