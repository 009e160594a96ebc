// Lambert's W and the sigmas made of it: lambert_w_f32 and so on for the CPU, lambert_w_cuda_f32 for the
// current CUDA device. Python calls ProcSim's sigma the confidence, as the paper does; here that word is a
// candidate's (anchor/chunk.h).
#pragma once

#include "common/bind.h"
#include "lambert_w/cpu.h"

#if defined(ROBUSTDML_CUDA)
#include "lambert_w/cuda.h"
#endif

namespace robustdml {

template <class T>
void bind_lambert_w_of(py::module_& m, const std::string& suffix) {
    // Of either device; the last argument is its own: threads, or the stream.
    const auto bind = [&m](const std::string& suffix, const char* last, auto lambert_w, auto procsim_sigma,
                           auto superloss) {
        define(m, "lambert_w_" + suffix, lambert_w, "x", "w", "count", last);
        define(m, "confidence_" + suffix, procsim_sigma, "losses", "thresholds", "stride", "lambda", "sigma",
               "count", last);
        define(m, "superloss_" + suffix, superloss, "losses", "taus", "stride", "lambda", "values", "sigma",
               "count", last);
    };
    bind(suffix, "threads", cpu::lambert_w<T>, cpu::procsim_sigma<T>, cpu::superloss<T>);
#if defined(ROBUSTDML_CUDA)
    bind("cuda_" + suffix, "stream", cuda::lambert_w<T>, cuda::procsim_sigma<T>, cuda::superloss<T>);
#endif
}

inline void bind_lambert_w(py::module_& m) {
    bind_lambert_w_of<float>(m, "f32");
    bind_lambert_w_of<double>(m, "f64");
}

}  // namespace robustdml
