// The functions of the von Mises-Fisher distribution, elementwise.
#pragma once

#include <cstdint>

#include "math/vmf.h"

namespace robustdml::cpu {

template <class T>
void vmf(VmfFunction function, const VmfOrder<T>& order,
         const T* kappa,  // (count,) in
         T* out,          // (count,) out; may be kappa
         std::int64_t count, int threads);

}  // namespace robustdml::cpu
