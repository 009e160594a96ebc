// Contrasts by tiles of S on the CPU: of a batch with itself, and of two towers from either side. A first
// pass sums the exponentials of rows and of columns, a last one makes the gradient of both; nothing has a
// row of S. See ContrastTiles for what that takes.
#pragma once

#include "common/cpu/lanes.h"
#include "pairs/cpu.h"

namespace robustdml::cpu {

// A matrix whose rows have losses over those of the other one.
template <class T>
struct ContrastSide {
    const T* X;               // (n, D) in: by rows, of any length within reach
    const T* inverse_norm;    // (n,) in: 1 / |x|, 0 for zero rows
    const PairLabel* labels;  // (n,) in
    std::int64_t n;
    const T* upstream_positive;             // (n,) or (1,) in: dL/dloss; null: no gradients
    const T* upstream_negative;             // (n,) or (1,) in: dL/dlse
    std::int64_t upstream_positive_stride;  // 1, or 0 for one value that serves all rows
    std::int64_t upstream_negative_stride;
    T* loss;   // (n,) out
    T* lse;    // (n,) out: 0 where the form has none
    T* slope;  // (n,) out, with upstream gradients: sum of s dL/dz
    T* shift;  // (n,) out, with upstream gradients: sum of dL/dz
    T* dX;     // (n, D) out: dL/dX, zeros before; or null

    static constexpr auto fields() {
        return std::tuple{
            field("X", &ContrastSide::X),
            field("inverse_norm", &ContrastSide::inverse_norm),
            field("labels", &ContrastSide::labels),
            field("n", &ContrastSide::n),
            field("upstream_positive", &ContrastSide::upstream_positive),
            field("upstream_negative", &ContrastSide::upstream_negative),
            field("upstream_positive_stride", &ContrastSide::upstream_positive_stride),
            field("upstream_negative_stride", &ContrastSide::upstream_negative_stride),
            field("loss", &ContrastSide::loss),
            field("lse", &ContrastSide::lse),
            field("slope", &ContrastSide::slope),
            field("shift", &ContrastSide::shift),
            field("dX", &ContrastSide::dX),
        };
    }
};

template <class T>
struct ContrastTiles {
    Gemm<T> gemm;
    SetThreads set_threads;
    std::int64_t D;
    std::int64_t form;      // a Contrast, but sigmoid
    const T* coefficients;  // (2,) in: scale and bias
    bool alone;             // rows and columns are one batch, where a row is no candidate of itself
    std::int64_t kept;      // bytes of S that may stay from the first pass to the last
    int threads;

    static constexpr auto fields() {
        return std::tuple{
            field("gemm", &ContrastTiles::gemm),
            field("set_threads", &ContrastTiles::set_threads),
            field("D", &ContrastTiles::D),
            field("form", &ContrastTiles::form),
            field("coefficients", &ContrastTiles::coefficients),
            field("alone", &ContrastTiles::alone),
            field("kept", &ContrastTiles::kept),
            field("threads", &ContrastTiles::threads),
        };
    }
};

// Products of n m D flops: with itself 1 for the first pass and 2 for the gradients, of two towers 2 and 4;
// and the first ones again for what of S has not stayed. `columns` is `rows` where the batch is alone.
template <class T>
void pair_contrast_tiles(const ContrastSide<T>& rows, const ContrastSide<T>& columns,
                         const ContrastTiles<T>& tiles);

}  // namespace robustdml::cpu
