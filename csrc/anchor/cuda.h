// Epilogue of the anchor log-sum-exp on the current CUDA device. Every row is shifted by its own maximum:
// whether that is needed depends on values that the host does not see without waiting for the device.
#pragma once

#include <cstdint>
#include <tuple>

#include "common/fields.h"

#include "anchor/chunk.h"
#include "common/cuda/labels.h"

namespace robustdml::cuda {

// Where parts of the rows leave their share of the bias gradients until all are summed in order: no atomics,
// so the same call gives the same bits.
template <class T>
struct BiasPartials {
    T* values;           // (parts, 2, B) scratch; null where no bias gradient is wanted
    std::int64_t parts;  // at most 65535

    static constexpr auto fields() {
        return std::tuple{
            field("partials", &BiasPartials::values),
            field("parts", &BiasPartials::parts),
        };
    }
};

template <class T>
void anchor_lse_labels(const AnchorChunk<T>& chunk, const LabelSets& sets, const BiasPartials<T>& partials,
                       std::uintptr_t stream);

template <class T>
void anchor_lse_confidences(const AnchorChunk<T>& chunk, const ConfidenceSets<T>& sets,
                            const BiasPartials<T>& partials, std::uintptr_t stream);

}  // namespace robustdml::cuda
