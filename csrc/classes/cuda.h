// Epilogues of the class log-sum-exp on the current CUDA device.
#pragma once

#include <cstdint>

#include "classes/chunk.h"
#include "common/cuda/labels.h"
#include "common/cuda/partials.h"

namespace robustdml::cuda {

// `partials`: largest logit, and sum of exp(logit - largest).
template <class T>
void class_lse(const ClassChunk<T>& chunk, const LabelSets& labels, const ClassSums<T>& sums,
               const Partials<T>& partials, std::uintptr_t stream);

// The classes are taken in as many `parts` as fill the device.
template <class T>
void class_lse_backward(const ClassChunk<T>& chunk, const LabelSets& labels, const ClassUpstream<T>& upstream,
                        std::int64_t parts, std::uintptr_t stream);

}  // namespace robustdml::cuda
