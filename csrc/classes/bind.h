// The class log-sum-exp: class_lse_f32 and class_lse_backward_f32 for the CPU, class_lse_cuda_f32 and
// class_lse_backward_cuda_f32 for the current CUDA device, and the same in f64.
#pragma once

#include <stdexcept>

#include "classes/chunk.h"
#include "classes/cpu.h"
#include "common/bind.h"

#if defined(ROBUSTDML_CUDA)
#include "classes/cuda.h"
#endif

namespace robustdml {

inline Pooling pooling_of(const std::string& name) {
    if (name == "none") return Pooling::none;
    if (name == "max") return Pooling::max;
    if (name == "softmax") return Pooling::softmax;
    throw std::invalid_argument("pooling " + name + " is unknown");
}

template <class T>
void bind_class_chunk(py::module_& m, const std::string& suffix) {
    using py::arg;
    py::class_<ClassChunk<T>>(m, ("ClassChunk_" + suffix).c_str(), py::module_local())
        .def(py::init([](Address S, std::int64_t classes, std::int64_t centers, std::int64_t B, Address scale,
                         std::int64_t scale_stride, Address bias, const std::string& pooling, T gamma,
                         Address P, Address inverse_norm, std::int64_t D) {
                 return ClassChunk<T>{at<T>(S),
                                      classes,
                                      centers,
                                      B,
                                      at<const T>(scale),
                                      scale_stride,
                                      at<const T>(bias),
                                      pooling_of(pooling),
                                      gamma,
                                      at<const T>(P),
                                      at<T>(inverse_norm),
                                      D};
             }),
             py::kw_only(), arg("S"), arg("classes"), arg("centers"), arg("B"), arg("scale"),
             arg("scale_stride"), arg("bias"), arg("pooling"), arg("gamma"), arg("P") = Address(0),
             arg("inverse_norm") = Address(0), arg("D") = 0);
}

template <class T>
void bind_cpu_class_lse(py::module_& m, const std::string& suffix) {
    using py::arg;
    m.def(("class_lse_" + suffix).c_str(),
          [](const ClassChunk<T>& chunk, Address sorted_labels, Address order, std::int64_t first_label,
             Address shift, Address total, Address target, int threads) {
              py::gil_scoped_release release;
              cpu::class_lse(
                  chunk, {at<const std::int64_t>(sorted_labels), at<const std::int64_t>(order), first_label},
                  {at<double>(shift), at<double>(total), at<T>(target)}, threads);
          },
          arg("chunk"), py::kw_only(), arg("sorted_labels"), arg("order"), arg("first_label"), arg("shift"),
          arg("total"), arg("target"), arg("threads"));
    m.def(("class_lse_backward_" + suffix).c_str(),
          [](const ClassChunk<T>& chunk, Address sorted_labels, Address order, std::int64_t first_label,
             Address lse, Address dlse, Address dlogit, int threads) {
              py::gil_scoped_release release;
              cpu::class_lse_backward(
                  chunk, {at<const std::int64_t>(sorted_labels), at<const std::int64_t>(order), first_label},
                  {at<const T>(lse), at<const T>(dlse), at<const T>(dlogit)}, threads);
          },
          arg("chunk"), py::kw_only(), arg("sorted_labels"), arg("order"), arg("first_label"), arg("lse"),
          arg("dlse"), arg("dlogit"), arg("threads"));
}

#if defined(ROBUSTDML_CUDA)
template <class T>
void bind_cuda_class_lse(py::module_& m, const std::string& suffix) {
    using py::arg;
    m.def(("class_lse_cuda_" + suffix).c_str(),
          [](const ClassChunk<T>& chunk, Address labels, std::int64_t first_label, Address shift,
             Address total, Address target, Address partials, std::int64_t parts, Address stream) {
              cuda::class_lse<T>(chunk, {at<const std::int64_t>(labels), first_label},
                                 {at<double>(shift), at<double>(total), at<T>(target)},
                                 {at<T>(partials), parts}, stream);
          },
          arg("chunk"), py::kw_only(), arg("labels"), arg("first_label"), arg("shift"), arg("total"),
          arg("target"), arg("partials"), arg("parts"), arg("stream"));
    m.def(("class_lse_backward_cuda_" + suffix).c_str(),
          [](const ClassChunk<T>& chunk, Address labels, std::int64_t first_label, Address lse, Address dlse,
             Address dlogit, std::int64_t parts, Address stream) {
              cuda::class_lse_backward<T>(chunk, {at<const std::int64_t>(labels), first_label},
                                          {at<const T>(lse), at<const T>(dlse), at<const T>(dlogit)}, parts,
                                          stream);
          },
          arg("chunk"), py::kw_only(), arg("labels"), arg("first_label"), arg("lse"), arg("dlse"),
          arg("dlogit"), arg("parts"), arg("stream"));
}
#endif

template <class T>
void bind_classes_of(py::module_& m, const std::string& suffix) {
    bind_class_chunk<T>(m, suffix);
    bind_cpu_class_lse<T>(m, suffix);
#if defined(ROBUSTDML_CUDA)
    bind_cuda_class_lse<T>(m, suffix);
#endif
}

inline void bind_classes(py::module_& m) {
    bind_classes_of<float>(m, "f32");
    bind_classes_of<double>(m, "f64");
}

}  // namespace robustdml
