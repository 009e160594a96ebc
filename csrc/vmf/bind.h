// The special functions of the von Mises-Fisher distribution: vmf_<function>_f32 and so on for the CPU,
// vmf_<function>_cuda_f32 for the current CUDA device; VmfClasses_f32, vmf_fit_f32 and vmf_fit_cuda_f32.
#pragma once

#include <utility>

#include "common/keywords.h"
#include "vmf/cpu.h"

#if defined(ROBUSTDML_CUDA)
#include "vmf/cuda.h"
#endif

namespace robustdml {

template <class T>
void bind_vmf_of(py::module_& m, const std::string& suffix) {
    using py::arg;
    py::class_<VmfOrder<T>>(m, ("VmfOrder_" + suffix).c_str(), py::module_local())
        .def(py::init(&vmf_order<T>), py::kw_only(), arg("v"), arg("base"), arg("constant"), arg("log_scale"),
             arg("series_below"), arg("debye_terms"), arg("series_terms"));
    constexpr std::pair<const char*, VmfFunction> kFunctions[] = {
        {"log_0f1", VmfFunction::log_0f1},
        {"peak", VmfFunction::peak},
        {"log_i", VmfFunction::log_i},
        {"ratio", VmfFunction::ratio},
        {"ratio_derivative", VmfFunction::ratio_derivative}};
    for (const auto& [function_name, function] : kFunctions) {
        if (function == VmfFunction::log_i && sizeof(T) == 4)
            continue;  // it crosses zero: computed in double
        const std::string name = std::string("vmf_") + function_name;
        define(
            m, name + "_" + suffix,
            [function = function](const VmfOrder<T>& order, const T* kappa, T* out, std::int64_t count,
                                  int threads) { cpu::vmf(function, order, kappa, out, count, threads); },
            "order", "kappa", "out", "count", "threads");
#if defined(ROBUSTDML_CUDA)
        define(
            m, name + "_cuda_" + suffix,
            [function = function](const VmfOrder<T>& order, const T* kappa, T* out, std::int64_t count,
                                  std::uintptr_t stream) {
                cuda::vmf(function, order, kappa, out, count, stream);
            },
            "order", "kappa", "out", "count", "stream");
#endif
    }
    define_struct<VmfClasses<T>>(m, "VmfClasses_" + suffix);
    define(m, "vmf_fit_" + suffix, cpu::vmf_fit<T>, "classes", "order", "order_of_peak", "threads");
#if defined(ROBUSTDML_CUDA)
    define(m, "vmf_fit_cuda_" + suffix, cuda::vmf_fit<T>, "classes", "order", "order_of_peak", "stream");
#endif
}

inline void bind_vmf(py::module_& m) {
    bind_vmf_of<float>(m, "f32");
    bind_vmf_of<double>(m, "f64");
}

}  // namespace robustdml
