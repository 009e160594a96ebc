// Contrasts by tiles of S on the CPU: of a batch with itself, and of two towers from either side. A first
// pass sums the exponentials of rows and of columns, a last one makes the gradient of both; nothing has a
// row of S. See ContrastTiles for what that takes.
#pragma once

#include "common/cpu/lanes.h"
#include "pairs/cpu.h"

namespace robustdml::cpu {

template <class T>
struct ContrastTiles {
    Gemm<T> gemm;
    SetThreads set_threads;
    std::int64_t D;
    const T* X;            // (n, D) in: anchors by rows, of any length within reach
    const T* others;       // (m, D) in: candidates
    T* dX;                 // (n, D) out: dL/dX, zeros before; or null
    T* dothers;            // (m, D) out: likewise
    bool alone;            // rows and columns are one batch, where a row is no candidate of itself
    std::int64_t S_bytes;  // memory for tiles of S, which then stay from the first pass to the last
    int threads;
};

// Losses of the anchors, and of the candidates as anchors, each a chunk of all rows without S; of a batch
// alone those of the first. With upstream gradients the sums of dscale and of dbias, not each entry, are of
// all pairs from either side. Products of n m D flops: with itself 1 for the first pass and 2 for the
// gradients, of two towers 2 and 4; and the first ones again for what of S has not stayed.
template <class T>
void pair_contrast_tiles(const Pairs<T>& rows, const Pairs<T>& columns, const PairContrastProblem<T>& problem,
                         const ContrastTiles<T>& tiles);

}  // namespace robustdml::cpu
