// What is done with similarities themselves: the nearest are kept.
#pragma once

#include <cstdint>

namespace robustdml::cpu {

// The k largest similarities of every query, kept up to date with a further chunk of the gallery. Of equal
// ones the lower gallery index comes first, so chunks are given in ascending order. A NaN, and -inf, is never
// kept.
template <class T>
void nearest_update(
    const T* S,               // (rows, columns) in: of queries with a chunk of the gallery
    std::int64_t row_stride,  // elements between the rows of S
    std::int64_t rows, std::int64_t columns,
    std::int64_t first_column,     // gallery index of the first column
    const std::int64_t* excluded,  // (rows,) in: gallery index to skip, -1: none; or null: none
    std::int64_t k,                // at least 1
    T* values,                     // (rows, k) in/out, descending; -inf before the first chunk
    std::int64_t* indices,         // (rows, k) in/out: of the gallery; -1 before the first chunk
    int threads);

}  // namespace robustdml::cpu
