// Otsu's cut of every row, on the current CUDA device: one launch, a block a row.
#pragma once

#include <cstdint>

#include "math/otsu.h"

namespace robustdml::cuda {

// The longest row: it is sorted in shared memory, of which every device has room for 32 KB a block.
template <class T>
constexpr int kOtsuLongest = 32768 / sizeof(T);

template <class T>
void otsu(const T* values,  // (rows, n) in; what is not finite is left out
          std::int64_t rows,
          std::int64_t n,             // at most kOtsuLongest
          std::int64_t min_group,     // least size of a group
          const OtsuOutputs<T>& out,  // (rows,) each
          std::uintptr_t stream);

}  // namespace robustdml::cuda
