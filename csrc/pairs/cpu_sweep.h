// The sweeps over pairs of anchors with other candidates on the CPU, by lanes.
#pragma once

#include "common/cpu/lanes.h"
#include "pairs/cpu.h"

namespace robustdml::cpu {

// Anchors are the rows, candidates the batch: what an anchor sums is complete with its row, as mining needs
// it. `whole` is a chunk of all anchors without S and inverse_norm. True if some row was out of reach: see
// sweep_lanes.
template <class T, class Problem>
bool pair_sweep(const Pairs<T>& whole, const Problem& problem, const Sweep<T>& sweep);

// Candidates are the rows, anchors the batch: a hinge's gradient waits for no sum, and of many candidates, as
// a memory bank has, none is normalised beforehand. `whole` is as above, of (n anchors, m candidates);
// candidate_scale (m,) is 1 / |candidate|, out. Its relations are those of the candidates as rows.
template <class T>
bool pair_hinge_sweep(const Pairs<T>& whole, const PairHingeProblem<T>& problem, const Sweep<T>& sweep,
                      T* candidate_scale);

}  // namespace robustdml::cpu
