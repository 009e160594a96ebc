// Rows of unit length and the way back through them, on the current CUDA device.
#pragma once

#include <cstdint>

namespace robustdml::cuda {

// Element types of the matrices. The arithmetic, and inverse_norm, are double where U is double, else float.
enum class Element { f16, bf16, f32, f64 };

// U[i] = P[i] / |P[i]| and inverse_norm[i] = 1 / |P[i]|; a zero row, shorter than the smallest normal number,
// gives U[i] = 0 and inverse_norm[i] = 0.
void normalize_rows(const void* P,       // (rows, D) in
                    Element P_type,      // f64 only where U_type is
                    void* U,             // (rows, D) out
                    Element U_type,      //
                    void* inverse_norm,  // (rows,) out
                    std::int64_t rows, std::int64_t D, std::uintptr_t stream);

// dP[i] = (G[i] - (G[i].U[i]) U[i]) * inverse_norm[i]: the Jacobian of the above applied to G, in place.
void normalize_rows_backward(void* G,                   // (rows, D) in: dL/dU, out: dL/dP
                             const void* U,             // (rows, D) in
                             Element U_type,            //
                             const void* inverse_norm,  // (rows,) in
                             std::int64_t rows, std::int64_t D, std::uintptr_t stream);

}  // namespace robustdml::cuda
