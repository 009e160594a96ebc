// Epilogue of the pair hinges: a chunk of similarities becomes two sums and two counts per anchor, and its
// own gradient.
#pragma once

#include "cpu/pair_rows.h"

namespace robustdml::cpu {

template <class T>
void pair_hinge(const Pairs<T>& chunk, const PairHinge<T>& problem, int threads);

}  // namespace robustdml::cpu
