// Epilogues of the class log-sum-exp: a chunk of similarities is added to the sums of each sample, or becomes
// its own gradient.
#pragma once

#include "classes/chunk.h"
#include "common/cpu/labels.h"

namespace robustdml::cpu {

template <class T>
void class_lse(const ClassChunk<T>& chunk, const LabelSets& labels, const ClassSums<T>& sums, int threads);

template <class T>
void class_lse_backward(const ClassChunk<T>& chunk, const LabelSets& labels, const ClassUpstream<T>& upstream,
                        int threads);

}  // namespace robustdml::cpu
