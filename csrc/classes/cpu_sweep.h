// The sweeps of the class log-sum-exp on the CPU, by lanes.
#pragma once

#include "classes/cpu.h"
#include "common/cpu/lanes.h"

namespace robustdml::cpu {

// `whole` is a chunk of all classes without S and inverse_norm; `sweep` has the rows of their sub-centres,
// whole classes in each chunk. Adds all classes to `sums`. True if some row was out of reach: see
// sweep_lanes.
template <class T>
bool class_sweep(const ClassChunk<T>& whole, const LabelSets& labels, const ClassSums<T>& sums,
                 const Sweep<T>& sweep);

// The gradients that `sweep` has room for.
template <class T>
bool class_sweep_backward(const ClassChunk<T>& whole, const LabelSets& labels,
                          const ClassUpstream<T>& upstream, const Sweep<T>& sweep);

}  // namespace robustdml::cpu
