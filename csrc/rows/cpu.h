// Rows of unit length and the way back through them.
//
// Matrices are (rows, D), each by rows or by columns: one of its two strides is 1. Those of one call are
// alike.
#pragma once

#include <cstdint>

#include "rows/cpu_norm.h"

namespace robustdml::cpu {

// inverse_norm[i] = 1 / |P[i]|; 0 for a zero row, shorter than the smallest normal number. False where some
// row is out of reach for products with P as it is: see out_of_reach.
template <class T>
bool inverse_norms(Rows<const T> P,  // (rows, D) in
                   T* inverse_norm,  // (rows,) out
                   std::int64_t rows, std::int64_t D, int threads);

// U[i] = P[i] / |P[i]| and inverse_norm[i] = 1 / |P[i]|; a zero row gives U[i] = 0,
// inverse_norm[i] = 0. False where some row is out of reach.
template <class T>
bool normalize_rows(Rows<const T> P,  // (rows, D) in
                    Rows<T> U,        // (rows, D) out
                    T* inverse_norm,  // (rows,) out
                    std::int64_t rows, std::int64_t D, int threads);

// dP[i] = (G[i] - (G[i].U[i]) U[i]) * inverse_norm[i]: the Jacobian of the above applied to G, in place.
template <class T>
void normalize_rows_backward(Rows<T> G,              // (rows, D) in: dL/dU, out: dL/dP
                             Rows<const T> U,        // (rows, D) in
                             const T* inverse_norm,  // (rows,) in
                             std::int64_t rows, std::int64_t D, int threads);

// G[i] -= (G[i].u) u with u = P[i] / |P[i]|: the Jacobian of the normalisation where the products ran on P
// itself, and the factor 1 / |P[i]| is in G already.
template <class T>
void subtract_radial(Rows<T> G,              // (rows, D) in/out
                     Rows<const T> P,        // (rows, D) in
                     const T* inverse_norm,  // (rows,) in
                     std::int64_t rows, std::int64_t D, int threads);

// cosines[i, j] = cosine of X[i] with P[places[i, j]]: 0 where one of them is a zero row, infinity instead of
// NaN, -infinity where the place is none.
template <class T>
void cosines_at(Rows<const T> P,             // (count, D) in; of both matrices any strides
                Rows<const T> X,             // (rows, D) in
                const std::int64_t* places,  // (rows, each) in
                T* cosines,                  // (rows, each) out
                std::int64_t count, std::int64_t rows, std::int64_t each, std::int64_t D, int threads);

}  // namespace robustdml::cpu
