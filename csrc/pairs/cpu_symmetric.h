// A batch with itself on the CPU, by lanes: S is symmetric, so half of it is multiplied, and one product
// makes the gradient of a row as anchor and as candidate.
#pragma once

#include "common/cpu/lanes.h"
#include "pairs/cpu.h"

namespace robustdml::cpu {

template <class T>
struct Batch {
    Gemm<T> gemm;
    SetThreads set_threads;
    const T* U;  // (n, D) in: unit rows, by rows
    std::int64_t n;
    std::int64_t D;
    T* S;          // (n, n): cosines, then dL/dS
    T* dU;         // (n, D) out: (dS + dS^T) U; or null
    bool average;  // hinges: dU is divided, each side by the number of its terms above 0
    int threads;
};

// `whole` is a chunk of all anchors, with its S that of the batch.
template <class T, class Problem>
void pair_symmetric(const Pairs<T>& whole, const Problem& problem, const Batch<T>& batch);

}  // namespace robustdml::cpu
