// What the kernels on pairs share: the sets of a pair, and which threads take a row.
#pragma once

#include <cstdint>

#include "cuda/device.h"
#include "cuda/reduce.h"
#include "pair_chunk.h"

namespace robustdml::cuda {

// As torch has them: whether they fit 32 bits is a question to the device.
template <class T>
using Pairs = PairChunk<T, std::int64_t>;

constexpr int kPairThreads = 256;
// Blocks per processor that registers are kept free for. Without a number, ptxas aims higher and spills.
constexpr int kPairBlocks = 2;
// Up to this many candidates a warp takes a row; beyond it a block, or too few threads would be busy.
constexpr std::int64_t kPairWarpCandidates = 512;

// Which of its anchor's sets a candidate is in; neither for itself and where a label is below 0.
struct PairMember {
    bool positive;
    bool negative;
};

template <class T>
__device__ __forceinline__ PairMember member_of(const Pairs<T>& c, std::int64_t row, std::int64_t label,
                                                std::int64_t x) {
    const std::int64_t other = c.candidate_labels[x];
    const bool present = label >= 0 && other >= 0 && !(c.itself >= 0 && x == c.itself + row);
    return {present && other == label, present && other != label};
}

template <int kLanes>
__device__ __forceinline__ std::int64_t row_of_thread() {
    return std::int64_t(blockIdx.x) * (kPairThreads / kLanes) + threadIdx.x / kLanes;
}

template <class Chunk, class Kernel, class... Arguments>
void over_pair_rows(const char* name, const Chunk& chunk, Kernel by_warp, Kernel by_block,
                    std::uintptr_t stream, const Arguments&... arguments) {
    if (chunk.rows == 0) return;
    const bool warps = chunk.m <= kPairWarpCandidates;
    const std::int64_t rows_each = warps ? kPairThreads / kWarp : 1;
    const dim3 grid(static_cast<unsigned>((chunk.rows + rows_each - 1) / rows_each));
    launch(name, warps ? by_warp : by_block, grid, dim3(kPairThreads), stream, chunk, arguments...);
}

}  // namespace robustdml::cuda
