// Lambert's W and the confidences made of it: lambert_w_f32 and so on for the CPU, lambert_w_cuda_f32 for the
// current CUDA device.
#pragma once

#include "common/bind.h"
#include "lambert_w/cpu.h"

#if defined(ROBUSTDML_CUDA)
#include "lambert_w/cuda.h"
#endif

namespace robustdml {

// The functions of one device, whose last argument is its own: threads, or the stream.
template <class T, class Last, class W, class Confidence, class Super>
void bind_lambert_w_on(py::module_& m, const std::string& suffix, const char* last, W lambert_w,
                       Confidence confidence, Super superloss) {
    using py::arg;
    m.def(("lambert_w_" + suffix).c_str(),
          [lambert_w](Address x, Address w, std::int64_t count, Last resource) {
              py::gil_scoped_release release;
              lambert_w(at<const T>(x), at<T>(w), count, resource);
          },
          arg("x"), arg("w"), arg("count"), arg(last));
    m.def(("confidence_" + suffix).c_str(),
          [confidence](Address losses, Address thresholds, std::int64_t stride, T lambda, Address sigma,
                       std::int64_t count, Last resource) {
              py::gil_scoped_release release;
              confidence(at<const T>(losses), at<const T>(thresholds), stride, lambda, at<T>(sigma), count,
                         resource);
          },
          arg("losses"), arg("thresholds"), arg("stride"), arg("lambda"), arg("sigma"), arg("count"),
          arg(last));
    m.def(("superloss_" + suffix).c_str(),
          [superloss](Address losses, Address taus, std::int64_t stride, T lambda, Address values,
                      Address sigma, std::int64_t count, Last resource) {
              py::gil_scoped_release release;
              superloss(at<const T>(losses), at<const T>(taus), stride, lambda, at<T>(values), at<T>(sigma),
                        count, resource);
          },
          arg("losses"), arg("taus"), arg("stride"), arg("lambda"), arg("values"), arg("sigma"), arg("count"),
          arg(last));
}

template <class T>
void bind_lambert_w_of(py::module_& m, const std::string& suffix) {
    bind_lambert_w_on<T, int>(m, suffix, "threads", cpu::lambert_w<T>, cpu::confidence<T>, cpu::superloss<T>);
#if defined(ROBUSTDML_CUDA)
    bind_lambert_w_on<T, Address>(m, "cuda_" + suffix, "stream", cuda::lambert_w<T>, cuda::confidence<T>,
                                  cuda::superloss<T>);
#endif
}

inline void bind_lambert_w(py::module_& m) {
    bind_lambert_w_of<float>(m, "f32");
    bind_lambert_w_of<double>(m, "f64");
}

}  // namespace robustdml
