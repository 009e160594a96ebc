// Otsu's cut of every row.
#pragma once

#include <cstdint>

#include "math/otsu.h"

namespace robustdml::cpu {

template <class T>
void otsu(const T* values,  // (rows, n) in; what is not finite is left out
          std::int64_t rows, std::int64_t n,
          std::int64_t min_group,     // least size of a group
          const OtsuOutputs<T>& out,  // (rows,) each
          int threads);

}  // namespace robustdml::cpu
