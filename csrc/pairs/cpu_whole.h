// A whole sweep over pairs on the CPU in one call: rows, sums and gradients.
#pragma once

#include "common/cpu/product.h"
#include "pairs/cpu.h"

namespace robustdml::cpu {

// Which sweep it is.
enum class PairWay : std::int64_t {
    batch,       // pair_symmetric, of a batch with itself
    tiles,       // pair_contrast_tiles
    anchors,     // pair_sweep
    candidates,  // pair_hinge_sweep
};

// What all sweeps over matrices of the same shapes have in common.
template <class T>
struct PairShape {
    Gemm<T> gemm;
    SetThreads set_threads;
    std::int64_t n;           // anchors
    std::int64_t m;           // candidates
    std::int64_t D;           // columns
    std::int64_t way;         // a PairWay
    std::int64_t chunk_rows;  // of lanes
    std::int64_t S_bytes;     // of tiles
    bool average;             // of a batch: hinges are divided, each side by the number of its terms above 0
    bool bfloat16;            // whether candidates, of their own way, and their gradient are; else T
    int threads;

    static constexpr auto fields() {
        return std::tuple{
            field("gemm", &PairShape::gemm),
            field("set_threads", &PairShape::set_threads),
            field("n", &PairShape::n),
            field("m", &PairShape::m),
            field("D", &PairShape::D),
            field("way", &PairShape::way),
            field("chunk_rows", &PairShape::chunk_rows),
            field("S_bytes", &PairShape::S_bytes),
            field("average", &PairShape::average),
            field("bfloat16", &PairShape::bfloat16),
            field("threads", &PairShape::threads),
        };
    }
};

// `rows` and `columns` are chunks without S of all anchors, and of all candidates as anchors; of a way other
// than tiles the columns are not read. Relations are those of the anchors as rows, or, by candidates, of the
// candidates. False, with sums and gradients of no meaning, where a row has NaN or
// inf, or a length whose square the type does not hold.
template <class T, class Problem>
bool pair_whole_sweep(const PairShape<T>& shape, const Problem& problem, const Pairs<T>& rows,
                      const Pairs<T>& columns,
                      const T* X,              // (n, D) in
                      const void* candidates,  // (m, D) in; null: the anchors
                      T* dX,                   // (n, D) out, or null
                      void* dcandidates);      // (m, D) out, or null

}  // namespace robustdml::cpu
