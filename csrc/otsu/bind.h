// Otsu's cut: otsu_f32 and so on for the CPU, otsu_cuda_f32 for the current CUDA device; with the
// confidences, otsu_confidence_f32 for the CPU.
#pragma once

#include "common/bind.h"
#include "otsu/cpu.h"

#if defined(ROBUSTDML_CUDA)
#include "otsu/cuda.h"
#endif

namespace robustdml {

// The function of one device, whose last argument is its own: threads, or the stream.
template <class T, class Last, class Otsu>
void bind_otsu_on(py::module_& m, const std::string& suffix, const char* last, Otsu otsu) {
    using py::arg;
    m.def(("otsu_" + suffix).c_str(),
          [otsu](Address values, std::int64_t rows, std::int64_t n, std::int64_t min_group, Address threshold,
                 Address low_mean, Address high_mean, Address index, Address excluded, Address found,
                 Last resource) {
              py::gil_scoped_release release;
              otsu(at<const T>(values), rows, n, min_group,
                   {at<T>(threshold), at<T>(low_mean), at<T>(high_mean), at<std::int64_t>(index),
                    at<std::int64_t>(excluded), at<bool>(found)},
                   resource);
          },
          arg("values"), arg("rows"), arg("n"), arg("min_group"), arg("threshold"), arg("low_mean"),
          arg("high_mean"), arg("index"), arg("excluded"), arg("found"), arg(last));
}

template <class T>
void bind_otsu_of(py::module_& m, const std::string& suffix) {
    using py::arg;
    bind_otsu_on<T, int>(m, suffix, "threads", cpu::otsu<T>);
    m.def(("otsu_confidence_" + suffix).c_str(),
          [](Address losses, std::int64_t n, std::int64_t min_group, T lambda, Address threshold,
             Address sigma, int threads) {
              py::gil_scoped_release release;
              cpu::otsu_confidence(at<const T>(losses), n, min_group, lambda, at<T>(threshold), at<T>(sigma),
                                   threads);
          },
          arg("losses"), arg("n"), arg("min_group"), arg("lambda"), arg("threshold"), arg("sigma"),
          arg("threads"));
#if defined(ROBUSTDML_CUDA)
    bind_otsu_on<T, Address>(m, "cuda_" + suffix, "stream", cuda::otsu<T>);
#endif
}

inline void bind_otsu(py::module_& m) {
    bind_otsu_of<float>(m, "f32");
    bind_otsu_of<double>(m, "f64");
}

}  // namespace robustdml
