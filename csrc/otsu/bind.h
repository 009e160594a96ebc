// Otsu's cut: otsu_f32 and so on for the CPU, otsu_cuda_f32 for the current CUDA device; with ProcSim's
// sigmas, otsu_confidence_f32 for the CPU.
#pragma once

#include "common/bind.h"
#include "otsu/cpu.h"

#if defined(ROBUSTDML_CUDA)
#include "otsu/cuda.h"
#endif

namespace robustdml {

// The function of one device, whose last argument is its own: threads, or the stream.
template <class T, class Last>
void bind_otsu_on(py::module_& m, const std::string& suffix, const char* last,
                  void (*otsu)(const T*, std::int64_t, std::int64_t, std::int64_t, const OtsuOutputs<T>&,
                               Last)) {
    define(
        m, "otsu_" + suffix,
        [otsu](const T* values, std::int64_t rows, std::int64_t n, std::int64_t min_group, T* threshold,
               T* low_mean, T* high_mean, std::int64_t* index, std::int64_t* excluded, bool* found,
               Last resource) {
            otsu(values, rows, n, min_group, {threshold, low_mean, high_mean, index, excluded, found},
                 resource);
        },
        "values", "rows", "n", "min_group", "threshold", "low_mean", "high_mean", "index", "excluded",
        "found", last);
}

template <class T>
void bind_otsu_of(py::module_& m, const std::string& suffix) {
    bind_otsu_on<T>(m, suffix, "threads", cpu::otsu<T>);
    define(m, "otsu_confidence_" + suffix, cpu::otsu_sigma<T>, "losses", "n", "min_group", "lambda",
           "threshold", "sigma", "threads");
#if defined(ROBUSTDML_CUDA)
    bind_otsu_on<T>(m, "cuda_" + suffix, "stream", cuda::otsu<T>);
#endif
}

inline void bind_otsu(py::module_& m) {
    bind_otsu_of<float>(m, "f32");
    bind_otsu_of<double>(m, "f64");
}

}  // namespace robustdml
