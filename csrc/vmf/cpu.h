// The functions of the von Mises-Fisher distribution, elementwise.
#pragma once

#include <cstdint>

#include "math/vmf.h"
#include "vmf/classes.h"

namespace robustdml::cpu {

template <class T>
void vmf(VmfFunction function, const VmfOrder<T>& order,
         const T* kappa,  // (count,) in
         T* out,          // (count,) out; may be kappa
         std::int64_t count, int threads);

// Length of the sum, concentration and log-density at the mean direction of every class.
template <class T>
void vmf_fit(const VmfClasses<T>& classes, const VmfOrder<double>& order, const VmfOrder<T>& order_of_peak,
             int threads);

}  // namespace robustdml::cpu
