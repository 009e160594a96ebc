// Rows of unit length and the way back through them.
#pragma once

#include <cstdint>

namespace robustdml::cpu {

// U[i] = P[i] / |P[i]| and inverse_norm[i] = 1 / |P[i]|; a row shorter than kTinyNorm gives U[i] = 0,
// inverse_norm[i] = 0.
template <class T>
void normalize_rows(const T* P,       // (rows, D) in
                    T* U,             // (rows, D) out
                    T* inverse_norm,  // (rows,) out
                    std::int64_t rows, std::int64_t D, int threads);

// dP[i] = (G[i] - (G[i].U[i]) U[i]) * inverse_norm[i]: the Jacobian of the above applied to G, in place.
template <class T>
void normalize_rows_backward(T* G,                   // (rows, D) in: dL/dU, out: dL/dP
                             const T* U,             // (rows, D) in
                             const T* inverse_norm,  // (rows,) in
                             std::int64_t rows, std::int64_t D, int threads);

// G[i] -= (G[i].u) u with u = P[i] / |P[i]|: the Jacobian of the normalisation where the products ran on P
// itself, and the factor 1 / |P[i]| is in G already.
template <class T>
void project_rows(T* G,                   // (rows, D) in/out
                  const T* P,             // (rows, D) in
                  const T* inverse_norm,  // (rows,) in
                  std::int64_t rows, std::int64_t D, int threads);

}  // namespace robustdml::cpu
