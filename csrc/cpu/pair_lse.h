// Epilogue of the pair log-sum-exp: a chunk of similarities becomes two log-sum-exps per anchor, and its own
// gradient.
#pragma once

#include "cpu/pair_rows.h"

namespace robustdml::cpu {

template <class T>
void pair_lse(const Pairs<T>& chunk, const PairLSE<T>& problem, int threads);

}  // namespace robustdml::cpu
