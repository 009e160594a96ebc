// Otsu's cut of every row, and ProcSim's sigmas of one row that follow from it.
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

template <class T>
void otsu_sigma(const T* losses,  // (n,) in
                std::int64_t n,
                std::int64_t min_group,  // least size of a group
                T lambda,
                T* threshold,  // one, out
                T* sigma,      // (n,) out
                int threads);

}  // namespace robustdml::cpu
