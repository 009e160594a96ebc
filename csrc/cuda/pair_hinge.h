// Epilogue of the pair hinges on the current CUDA device.
#pragma once

#include <cstdint>

#include "pair_chunk.h"

namespace robustdml::cuda {

template <class T>
void pair_hinge(const PairChunk<T, std::int64_t>& chunk, const PairHinge<T>& problem, std::uintptr_t stream);

}  // namespace robustdml::cuda
