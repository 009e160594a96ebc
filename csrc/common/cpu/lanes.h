// A sweep on the CPU: each thread is a lane that takes chunks of rows on its own, from the first product to
// the gradient of its rows, and all wait for each other once, at the end.
//
// A chunk's similarities fit the cache of one core, and its products run on that core alone. So no thread
// waits for another between the steps of a chunk: a thread that the machine has put aside holds up the end,
// and nothing else. Chunks in a row make a block. Whichever thread is free takes the next block; what blocks
// sum up is kept by block and added in a fixed order, so the bits don't depend on who did what.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "common/cpu/block_sums.h"
#include "common/cpu/product.h"
#include "common/cpu/spread.h"
#include "common/cpu_bfloat16.h"
#include "common/fields.h"
#include "math/bfloat16.h"
#include "optim/cpu.h"
#include "rows/cpu.h"

namespace robustdml::cpu {

template <class T>
struct Sweep {
    Gemm<T> gemm;
    SetThreads set_threads;
    Brgemm brgemm;  // products of operands rounded to bfloat16, of a float sweep by rows; null: those of gemm
    BrgemmRelease brgemm_release;
    const T* X;  // (B, D) in: unit rows of the batch
    std::int64_t B;
    std::int64_t D;
    const void* P;  // (rows, D), or more rows in: proxies or anchors, by rows or by columns
    bool bfloat16;  // whether P and dP are; else T
    std::int64_t P_row_stride;
    std::int64_t P_column_stride;
    std::int64_t rows;             // number of rows of the sweep
    const std::int64_t* selected;  // (rows,) in: which rows of P they are, distinct; null: the first ones
    bool normalize;                // whether they are scaled to length 1
    T* dX;                         // (B, D) out: dL/dX, or null
    void* dP;                      // (rows, D) out: dL/dP, or null
    std::int64_t dP_row_stride;
    std::int64_t dP_column_stride;
    std::int64_t chunk_rows;
    int threads;
    const ProxyUpdate<T>*
        update;  // what is done with dL/dP of a chunk, which then goes nowhere else; or null

    static constexpr auto fields() {
        return std::tuple{
            field("gemm", &Sweep::gemm),
            field("set_threads", &Sweep::set_threads),
            optional_field("brgemm", &Sweep::brgemm),
            optional_field("brgemm_release", &Sweep::brgemm_release),
            field("X", &Sweep::X),
            field("B", &Sweep::B),
            field("D", &Sweep::D),
            field("P", &Sweep::P),
            optional_field("bfloat16", &Sweep::bfloat16),
            field("P_row_stride", &Sweep::P_row_stride),
            field("P_column_stride", &Sweep::P_column_stride),
            field("rows", &Sweep::rows),
            optional_field("selected", &Sweep::selected),
            field("normalize", &Sweep::normalize),
            optional_field("dX", &Sweep::dX),
            optional_field("dP", &Sweep::dP),
            optional_field("dP_row_stride", &Sweep::dP_row_stride),
            optional_field("dP_column_stride", &Sweep::dP_column_stride),
            field("chunk_rows", &Sweep::chunk_rows),
            field("threads", &Sweep::threads),
            optional_field("update", &Sweep::update),
        };
    }

    bool differentiates() const { return dX || dP || update; }
    std::int64_t chunks() const { return (rows + chunk_rows - 1) / chunk_rows; }
    // Enough of them that a thread which comes late leaves little to wait for, and few sums of dX.
    std::int64_t blocks() const { return std::min<std::int64_t>(chunks(), 32 * std::int64_t(threads)); }
    int lanes() const { return static_cast<int>(std::min<std::int64_t>(threads, blocks())); }
    // Where P holds elements of type E.
    template <class E = T>
    Rows<const E> proxies(std::int64_t first) const {
        return {static_cast<const E*>(P) + first * P_row_stride, P_row_stride, P_column_stride};
    }
    // Rows that a lane has room for.
    std::int64_t room() const { return brgemm ? whole_steps(chunk_rows) : chunk_rows; }
    // Where dL/dP of a chunk goes, if its elements have type E.
    template <class E = T>
    Rows<E> gradient(std::int64_t first) const {
        return {static_cast<E*>(dP) + first * dP_row_stride, dP_row_stride, dP_column_stride};
    }
    // Whether dL/dP of a chunk is made where it goes, and not in a lane's room.
    bool in_place(std::int64_t count) const {
        return !update && !bfloat16 && (!brgemm || count == whole_steps(count));
    }
};

// A chunk of the similarities, for its epilogue.
template <class T>
struct Chunk {
    int lane;
    std::int64_t block;
    std::int64_t first;     // row
    std::int64_t count;     // rows
    T* S;                   // (count, B) in: products with the rows; out: dL/dS
    const T* scale;         // (count,) in: cosines = S * scale, dL/dS = dL/dcosine * scale; null: 1
    const T* inverse_norm;  // (count,) in: 1 / |row|; without values where rows are not normalised
};

// Buffers of a lane.
template <class T>
struct LaneMemory {
    Buffer<T> room, inverse_norm, P, U, dP;
    T* S;                                 // similarities of a chunk: in `room`, or where they are kept
    std::optional<ChunkFactors> factors;  // of products in bfloat16

    explicit LaneMemory(const Sweep<T>& sweep)
        : room(sweep.room() * sweep.B),
          inverse_norm(sweep.chunk_rows),
          P(sweep.selected || sweep.bfloat16 ? sweep.chunk_rows * sweep.D : 0),
          S(room.get()) {
        if (sweep.brgemm)
            factors.emplace(sweep.brgemm, sweep.brgemm_release, sweep.chunk_rows, sweep.B, sweep.D);
    }
};

// The batch in bfloat16, which all lanes read; none where products are not in bfloat16.
using SharedFactors = std::optional<BatchFactors>;

// Rows of a chunk as the products take them.
template <class T>
struct ChunkRows {
    Rows<const T> V;  // as they are, or unit rows
    bool as_they_are;
};

// The selected rows of a chunk, copied from where they are in elements of type E.
template <class T, class E, class Convert>
Rows<const T> rows_copied(const Sweep<T>& sweep, T* own, std::int64_t first, std::int64_t count,
                          Convert convert) {
    const std::int64_t* selected = sweep.selected ? sweep.selected + first : nullptr;
    const Rows<const E> P = sweep.template proxies<E>(selected ? 0 : first);
    if (P.by_columns()) {
        for (std::int64_t d = 0; d < sweep.D; ++d) {
            const E* column = P.column(d);
            T* to = own + d * sweep.chunk_rows;
            if (selected)
                std::transform(selected, selected + count, to,
                               [=](std::int64_t row) { return convert(column[row]); });
            else
                std::transform(column, column + count, to, convert);
        }
        return {own, 1, sweep.chunk_rows};
    }
    for (std::int64_t i = 0; i < count; ++i) {
        const E* row = P.row(selected ? selected[i] : i);
        std::transform(row, row + sweep.D, own + i * sweep.D, convert);
    }
    return {own, sweep.D, 1};
}

// The selected rows of a chunk, side by side in the type of the sweep: where they are, or copied.
template <class T>
Rows<const T> selected_rows(const Sweep<T>& sweep, T* own, std::int64_t first, std::int64_t count) {
    if (sweep.bfloat16)
        return rows_copied<T, std::uint16_t>(sweep, own, first, count,
                                             [](std::uint16_t bits) { return T(from_bfloat16(bits)); });
    if (sweep.selected) return rows_copied<T, T>(sweep, own, first, count, [](T value) { return value; });
    return sweep.proxies(first);
}

// Unit rows of a chunk, which lie as the rows themselves do.
template <class T>
Rows<const T> unit_rows(const Sweep<T>& sweep, LaneMemory<T>& lane, const Rows<const T>& P,
                        std::int64_t count) {
    if (!lane.U.get()) lane.U = Buffer<T>(sweep.chunk_rows * sweep.D);
    const Rows<T> U =
        P.by_columns() ? Rows<T>{lane.U.get(), 1, sweep.chunk_rows} : Rows<T>{lane.U.get(), sweep.D, 1};
    normalize_rows(P, U, lane.inverse_norm.get(), count, sweep.D, 1);
    return {U.data, U.row_stride, U.column_stride};
}

// S = V X^T.
template <class T>
void multiply_batch(const Sweep<T>& sweep, const SharedFactors& shared, LaneMemory<T>& lane,
                    const Rows<const T>& V, std::int64_t count) {
    if constexpr (std::is_same_v<T, float>)
        if (shared) return lane.factors->similarities(*shared, V, count, lane.S);
    const Rows<const T> X{sweep.X, sweep.D, 1};
    multiply(sweep.gemm, V, transposed(X), {lane.S, sweep.B, 1}, count, sweep.B, sweep.D, false);
}

template <class T>
ChunkRows<T> similarities(const Sweep<T>& sweep, const SharedFactors& shared, LaneMemory<T>& lane,
                          std::int64_t first, std::int64_t count, std::atomic<bool>& out_of_reach) {
    const Rows<const T> P = selected_rows(sweep, lane.P.get(), first, count);
    multiply_batch(sweep, shared, lane, P, count);
    // Norms come after the product: it brings the rows into the cache at no cost in time.
    if (!sweep.normalize || inverse_norms(P, lane.inverse_norm.get(), count, sweep.D, 1))
        return {P, sweep.normalize};
    out_of_reach = true;
    const Rows<const T> V = unit_rows(sweep, lane, P, count);
    multiply_batch(sweep, shared, lane, V, count);
    return {V, false};
}

// dX = dS^T V, plus dX where `add`.
template <class T>
void multiply_into_batch(const Sweep<T>& sweep, LaneMemory<T>& lane, const Rows<const T>& V,
                         std::int64_t count, T* dX, bool add) {
    if constexpr (std::is_same_v<T, float>)
        if (lane.factors) return lane.factors->batch_gradient(V, lane.S, count, dX, add);
    const Rows<const T> dS{lane.S, sweep.B, 1};
    multiply(sweep.gemm, transposed(dS), V, {dX, sweep.D, 1}, sweep.B, sweep.D, count, add);
}

// dV = dS X.
template <class T>
void multiply_into_rows(const Sweep<T>& sweep, const SharedFactors& shared, LaneMemory<T>& lane,
                        std::int64_t count, const Rows<T>& dV) {
    if constexpr (std::is_same_v<T, float>)
        if (shared) return lane.factors->rows_gradient(*shared, lane.S, count, dV.data, dV.row_stride);
    const Rows<const T> dS{lane.S, sweep.B, 1}, X{sweep.X, sweep.D, 1};
    multiply(sweep.gemm, dS, X, dV, count, sweep.D, sweep.B, false);
}

// `to` = convert(`from`) for `count` rows, which lie alike.
template <class T, class E, class Convert>
void store_rows(const Rows<T>& from, const Rows<E>& to, std::int64_t count, std::int64_t D, Convert convert) {
    if (from.by_columns())
        for (std::int64_t d = 0; d < D; ++d)
            std::transform(from.column(d), from.column(d) + count, to.column(d), convert);
    else
        for (std::int64_t i = 0; i < count; ++i)
            std::transform(from.row(i), from.row(i) + D, to.row(i), convert);
}

// dL/dS of a chunk into the gradients that are wanted. `first_of_block`: dX has no values yet. `complete(dV)`
// may add to the gradient of the rows as they were multiplied. An update of the rows comes last, when nobody
// reads them any more.
template <class T, class Complete>
void gradients(const Sweep<T>& sweep, const SharedFactors& shared, LaneMemory<T>& lane,
               const ChunkRows<T>& rows, std::int64_t first, std::int64_t count, T* dX, bool first_of_block,
               Complete complete) {
    if (dX) multiply_into_batch(sweep, lane, rows.V, count, dX, !first_of_block);
    if (!sweep.dP && !sweep.update) return;
    const bool in_place = sweep.in_place(count);
    if (!in_place && !lane.dP.get()) lane.dP = Buffer<T>(sweep.room() * sweep.D);
    const Rows<T> own = sweep.P_column_stride == 1 ? Rows<T>{lane.dP.get(), sweep.D, 1}
                                                   : Rows<T>{lane.dP.get(), 1, sweep.chunk_rows};
    const Rows<T> dP = in_place ? sweep.gradient(first) : own;
    multiply_into_rows(sweep, shared, lane, count, dP);
    complete(dP);
    if (sweep.normalize && rows.as_they_are)
        subtract_radial(dP, rows.V, lane.inverse_norm.get(), count, sweep.D, 1);
    else if (sweep.normalize)
        normalize_rows_backward(dP, rows.V, lane.inverse_norm.get(), count, sweep.D, 1);
    if (sweep.update) {
        const Rows<const T> G{dP.data, dP.row_stride, dP.column_stride};
        sweep.update->skipped[first / sweep.chunk_rows] =
            !update_rows(*sweep.update, G, sweep.proxies(0), first, sweep.selected, count, sweep.D);
    } else if (sweep.bfloat16) {
        store_rows(dP, sweep.template gradient<std::uint16_t>(first), count, sweep.D,
                   [](T value) { return to_bfloat16(float(value)); });
    } else if (!in_place) {
        store_rows(dP, sweep.gradient(first), count, sweep.D, [](T value) { return value; });
    }
}

// run(lane, task) for the tasks 0 ... count, each by whichever of `lanes` threads is free. A lane alone opens
// no parallel region: in one that has no other thread the library's products would make threads of their own
// for each call.
template <class Run>
void in_lanes(std::int64_t count, int lanes, SetThreads set_threads, Run run) {
    if (lanes == 1) {
        const Alone alone(set_threads);
        for (std::int64_t task = 0; task < count; ++task) run(0, task);
        return;
    }
    std::atomic<std::int64_t> next{0};
    Spread spread(lanes);
    std::exception_ptr error;
    std::mutex error_lock;
#pragma omp parallel num_threads(lanes)
    {
        int lane = 0;
#if defined(_OPENMP)
        lane = omp_get_thread_num();
#endif
        try {
            for (std::int64_t task; (task = next++) < count;) {
                spread.settle(lane);
                run(lane, task);
            }
        } catch (...) {
            const std::lock_guard<std::mutex> hold(error_lock);
            error = std::current_exception();
            next = count;
        }
        spread.leave(lane);
    }
    if (error) std::rethrow_exception(error);
}

// take(lane's memory, lane, block, first row, rows, dX, whether dX has no values yet) for all chunks, in
// which lanes are free to use any thread; dX is null where `sweep` has none.
template <class T, class Take>
void take_chunks(const Sweep<T>& sweep, Take take) {
    const std::int64_t blocks = sweep.blocks(), chunks = sweep.chunks();
    BlockSums<T> sums(blocks, sweep.B * sweep.D, sweep.dX);
    std::vector<LaneMemory<T>> memory;
    for (int lane = 0; lane < sweep.lanes(); ++lane) memory.emplace_back(sweep);
    in_lanes(blocks, sweep.lanes(), sweep.set_threads, [&](int lane, std::int64_t block) {
        LaneMemory<T>& own = memory[lane];
        T* dX = sums.start(block);
        const std::int64_t begin = chunks * block / blocks, end = chunks * (block + 1) / blocks;
        for (std::int64_t chunk = begin; chunk < end; ++chunk) {
            const std::int64_t first = chunk * sweep.chunk_rows;
            const std::int64_t count = std::min(sweep.chunk_rows, sweep.rows - first);
            take(own, lane, block, first, count, dX, chunk == begin);
        }
        sums.finish(block);
        if (own.factors) own.factors->release();
    });
}

// The batch X (B, D) in bfloat16, where products are; `rows`: whether a gradient of the rows multiplies it.
template <class T>
SharedFactors shared_factors(const Sweep<T>& sweep, const T* X, bool rows) {
    SharedFactors shared;
    if constexpr (std::is_same_v<T, float>)
        if (sweep.brgemm) shared.emplace(X, sweep.B, sweep.D, rows);
    return shared;
}

// All chunks, each with `epilogue(chunk)`. True if some row was out of reach for products with the
// rows as they are, so that its gradient may be beyond the type.
template <class T, class Epilogue>
bool sweep_lanes(const Sweep<T>& sweep, Epilogue epilogue) {
    const SharedFactors shared = shared_factors(sweep, sweep.X, sweep.dP || sweep.update);
    std::atomic<bool> out_of_reach{false};
    take_chunks(sweep, [&](LaneMemory<T>& own, int lane, std::int64_t block, std::int64_t first,
                           std::int64_t count, T* dX, bool first_of_block) {
        const ChunkRows<T> rows = similarities(sweep, shared, own, first, count, out_of_reach);
        const T* scale = rows.as_they_are ? own.inverse_norm.get() : nullptr;
        epilogue(Chunk<T>{lane, block, first, count, own.S, scale, own.inverse_norm.get()});
        gradients(sweep, shared, own, rows, first, count, dX, first_of_block, [](const Rows<T>&) {});
    });
    return out_of_reach;
}

}  // namespace robustdml::cpu
