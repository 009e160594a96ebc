// Products of a lane with operands rounded to bfloat16 and sums in float32, where the processor has
// instructions for it: oneDNN's kernel inside PyTorch, by address, so this module links none.
//
// The kernel takes its right factor by panels of 64 columns and, in a panel, by pairs of rows. Its code is
// made for each shape and kept by each thread for good, so chunks are padded to whole steps of rows: few
// shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "rows/cpu_norm.h"

namespace robustdml::cpu {

// at::native::cpublas::brgemm: C (M, N) <- A (M, K) B (K, N), plus C where `add`. A and C lie by rows. B has
// `paired` rows: its element (k, n) is B[k / 2 * 2 * B_stride + 2 * n + k % 2].
using Brgemm = void (*)(std::int64_t M, std::int64_t N, std::int64_t K, std::int64_t A_stride,
                        std::int64_t B_stride, std::int64_t C_stride, bool add, const std::uint16_t* A,
                        const std::uint16_t* B, float* C, bool paired);
// at::native::cpublas::brgemm_release: gives back tile registers, where the processor has some.
using BrgemmRelease = void (*)(bool paired);

constexpr std::int64_t kRowStep = 32;
inline std::int64_t whole_steps(std::int64_t rows) {
    return (rows + kRowStep - 1) / kRowStep * kRowStep;
}

// Whether this processor multiplies bfloat16, and whether faster than float32.
bool multiplies_bfloat16();
bool bfloat16_is_faster();

// Memory on lines of the cache, without values.
template <class T>
class Aligned {
  public:
    explicit Aligned(std::int64_t size = 0)
        : data_(size ? static_cast<T*>(::operator new(size * sizeof(T), std::align_val_t(64))) : nullptr) {}
    T* get() const { return data_.get(); }

  private:
    struct Free {
        void operator()(T* data) const { ::operator delete(data, std::align_val_t(64)); }
    };
    std::unique_ptr<T[], Free> data_;
};

// A matrix (rows, columns) as left factor: by rows of an even number of elements.
struct LeftFactor {
    std::int64_t columns = 0;  // of pairs
    Aligned<std::uint32_t> pairs;

    LeftFactor() = default;
    LeftFactor(std::int64_t rows, std::int64_t columns)
        : columns((columns + 1) / 2), pairs(whole_steps(rows) * this->columns) {}
};

// A matrix (rows, columns) as right factor: panels of 64 columns, each by pairs of rows.
struct RightFactor {
    static constexpr std::int64_t kPanel = 64;
    std::int64_t rows = 0;  // pairs
    std::int64_t columns = 0;
    Aligned<std::uint32_t> pairs;

    RightFactor() = default;
    RightFactor(std::int64_t rows, std::int64_t columns)
        : rows(rows), columns(columns), pairs((columns + kPanel - 1) / kPanel * kPanel * rows) {}
    std::uint32_t* panel(std::int64_t column) const { return pairs.get() + column * rows; }
};

// The batch, which all lanes read.
struct BatchFactors {
    RightFactor transposed;  // X^T (D, B)
    RightFactor rows;        // X (B, D), where the rows' gradient is wanted

    BatchFactors(const float* X, std::int64_t B, std::int64_t D, bool rows_wanted);
};

// The factors of one chunk, in the memory of one lane.
class ChunkFactors {
  public:
    ChunkFactors(Brgemm brgemm, BrgemmRelease release, std::int64_t chunk_rows, std::int64_t B,
                 std::int64_t D);

    // S (count, B) <- V X^T, with room for whole steps of rows.
    void similarities(const BatchFactors& batch, const Rows<const float>& V, std::int64_t count, float* S);
    // dX (B, D) <- dS^T V, plus dX where `add`.
    void batch_gradient(const Rows<const float>& V, const float* dS, std::int64_t count, float* dX, bool add);
    // dV (count, D) <- dS X, with room for whole steps of rows.
    void rows_gradient(const BatchFactors& batch, const float* dS, std::int64_t count, float* dV,
                       std::int64_t dV_row_stride);
    void release() const { release_(true); }

  private:
    Brgemm brgemm_;
    BrgemmRelease release_;
    std::int64_t B_, D_;
    LeftFactor V_, dS_, dS_transposed_;
    RightFactor V_right_;

    void multiply(std::int64_t rows, const LeftFactor& A, const RightFactor& B, float* C,
                  std::int64_t C_stride, bool add) const;
};

// The three products of a chunk: S (rows, B), dX (B, D) and dV (rows, D) with room for whole steps of rows,
// out of X (B, D), V (rows, D) and dS (rows, B). All by rows.
void bfloat16_products(Brgemm brgemm, BrgemmRelease release, const float* X, const float* V, const float* dS,
                       std::int64_t B, std::int64_t D, std::int64_t rows, float* S, float* dX, float* dV);

}  // namespace robustdml::cpu
