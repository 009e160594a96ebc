// Epilogues of the sums over pairs on the current CUDA device.
#pragma once

#include <cstdint>

#include "pairs/chunk.h"

namespace robustdml::cuda {

// Labels as torch has them: whether they fit 32 bits is a question to the device.
template <class T>
using Pairs = PairChunk<T, std::int64_t>;

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairLSEProblem<T>& problem, std::uintptr_t stream);

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairHingeProblem<T>& problem, std::uintptr_t stream);

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairContrastProblem<T>& problem, std::uintptr_t stream);

}  // namespace robustdml::cuda
