// The matrix product of the library that PyTorch itself multiplies with, by address: Python looks it up
// there, so this module links none.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rows/cpu_norm.h"

namespace robustdml::cpu {

// BLAS's sgemm_ or dgemm_. Its integers are of 32 or of 64 bits, as it was built: numbers below 2^31 in 64
// bits, lowest byte first, read the same either way.
template <class T>
using Gemm = void (*)(const char* transpose_A, const char* transpose_B, const std::int64_t* rows,
                      const std::int64_t* columns, const std::int64_t* inner, const T* alpha, const T* A,
                      const std::int64_t* A_stride, const T* B, const std::int64_t* B_stride, const T* beta,
                      T* C, const std::int64_t* C_stride);

// How many threads the library's products may take in this thread alone, as MKL counts them; it gives back
// the number before, 0 for none of this thread's own. Null where the library has no such function.
using SetThreads = int (*)(int threads);

// While it lives, products in this thread take no other thread.
class Alone {
  public:
    explicit Alone(SetThreads set_threads)
        : set_threads_(set_threads), before_(set_threads ? set_threads(1) : 0) {}
    ~Alone() {
        if (set_threads_) set_threads_(before_);
    }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

  private:
    SetThreads set_threads_;
    int before_;
};

template <class T>
Rows<T> transposed(const Rows<T>& A) {
    return {A.data, A.column_stride, A.row_stride};
}

// How BLAS, which knows matrices by columns, reads one.
struct Leading {
    bool columns;         // as it is; else its transpose
    std::int64_t stride;  // elements between columns, or between those of the transpose
};

// Of a single column, or row, any stride does, and BLAS asks for one of at least its length.
template <class T>
Leading leading(const Rows<T>& A, std::int64_t rows, std::int64_t columns) {
    if (A.row_stride == 1 && (columns == 1 || A.column_stride >= rows))
        return {true, columns == 1 ? std::max(rows, A.column_stride) : A.column_stride};
    return {false, rows == 1 ? std::max(columns, A.row_stride) : A.row_stride};
}

// C (rows, columns) <- A (rows, inner) B (inner, columns), plus C where it is to be added to. Matrices lie by
// rows or by columns.
template <class T>
void multiply(Gemm<T> gemm, const Rows<const T>& A, const Rows<const T>& B, const Rows<T>& C,
              std::int64_t rows, std::int64_t columns, std::int64_t inner, bool add) {
    const Leading of_C = leading(C, rows, columns);
    // C^T = B^T A^T.
    if (!of_C.columns)
        return multiply(gemm, transposed(B), transposed(A), transposed(C), columns, rows, inner, add);
    const T one = 1, beta = add ? T(1) : T(0);
    const Leading of_A = leading(A, rows, inner), of_B = leading(B, inner, columns);
    gemm(of_A.columns ? "N" : "T", of_B.columns ? "N" : "T", &rows, &columns, &inner, &one, A.data,
         &of_A.stride, B.data, &of_B.stride, &beta, C.data, &of_C.stride);
}

}  // namespace robustdml::cpu
