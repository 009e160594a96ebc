// Epilogues of the class log-sum-exp on the current CUDA device.
#pragma once

#include <cstdint>
#include <tuple>

#include "common/fields.h"

#include "classes/chunk.h"
#include "common/cuda/labels.h"

namespace robustdml::cuda {

// Where parts of the classes leave their sums until all are added in order: no atomics, so the same call
// gives the same bits.
template <class T>
struct ClassPartials {
    T* values;           // (parts, 2, B) scratch: largest logit, and sum of exp(logit - largest)
    std::int64_t parts;  // at most 65535

    static constexpr auto fields() {
        return std::tuple{
            field("partials", &ClassPartials::values),
            field("parts", &ClassPartials::parts),
        };
    }
};

template <class T>
void class_lse(const ClassChunk<T>& chunk, const LabelSets& labels, const ClassSums<T>& sums,
               const ClassPartials<T>& partials, std::uintptr_t stream);

// The classes are taken in as many `parts` as fill the device.
template <class T>
void class_lse_backward(const ClassChunk<T>& chunk, const LabelSets& labels, const ClassUpstream<T>& upstream,
                        std::int64_t parts, std::uintptr_t stream);

}  // namespace robustdml::cuda
