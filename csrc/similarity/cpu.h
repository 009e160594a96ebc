// Similarities themselves, by lanes: all of them are written, or the nearest kept.
#pragma once

#include <cstdint>

#include "common/cpu/lanes.h"

namespace robustdml::cpu {

// Cosines of the unit rows X with the rows of the sweep, which has no gradients.
template <class T>
void similarity_sweep(const Sweep<T>& sweep,
                      T* S);  // (B, rows) out, by rows

// The k largest similarities of every row of the sweep, a query, kept up to date with a further chunk of the
// gallery, which is X. Of equal ones the lower gallery index comes first, so chunks are given in ascending
// order. A NaN, and -inf, is never kept.
template <class T>
void nearest_sweep(const Sweep<T>& sweep,
                   std::int64_t first_column,     // gallery index of X's first row
                   const std::int64_t* excluded,  // (rows,) in: gallery index to skip; or null: none
                   std::int64_t k,                // at least 1
                   T* values,                     // (rows, k) in/out, descending; -inf before the first chunk
                   std::int64_t* indices);  // (rows, k) in/out: of the gallery; -1 before the first chunk

}  // namespace robustdml::cpu
