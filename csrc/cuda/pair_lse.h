// Epilogue of the pair log-sum-exp on the current CUDA device.
#pragma once

#include <cstdint>

#include "pair_chunk.h"

namespace robustdml::cuda {

template <class T>
void pair_lse(const PairChunk<T, std::int64_t>& chunk, const PairLSE<T>& problem, std::uintptr_t stream);

}  // namespace robustdml::cuda
