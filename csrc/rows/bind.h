// Rows of unit length: normalize_rows_f32 and so on for the CPU, normalize_rows_cuda_f32_f32 and so on for
// the current CUDA device.
#pragma once

#include <utility>

#include "common/bind.h"
#include "rows/cpu.h"

#if defined(ROBUSTDML_CUDA)
#include "rows/cuda.h"
#endif

namespace robustdml {

template <class T>
void bind_cpu_rows(py::module_& m, const char* suffix) {
    using py::arg;
    const auto name = [&](const char* base) { return std::string(base) + "_" + suffix; };
    m.def(
        name("normalize_rows").c_str(),
        [](Address P, Address U, Address inverse_norm, std::int64_t rows, std::int64_t D, int threads) {
            py::gil_scoped_release release;
            cpu::normalize_rows(at<const T>(P), at<T>(U), at<T>(inverse_norm), rows, D, threads);
        },
        arg("P"), arg("U"), arg("inverse_norm"), arg("rows"), arg("D"), arg("threads"));
    m.def(
        name("normalize_rows_backward").c_str(),
        [](Address G, Address U, Address inverse_norm, std::int64_t rows, std::int64_t D, int threads) {
            py::gil_scoped_release release;
            cpu::normalize_rows_backward(at<T>(G), at<const T>(U), at<const T>(inverse_norm), rows, D,
                                         threads);
        },
        arg("G"), arg("U"), arg("inverse_norm"), arg("rows"), arg("D"), arg("threads"));
    m.def(
        name("project_rows").c_str(),
        [](Address G, Address P, Address inverse_norm, std::int64_t rows, std::int64_t D, int threads) {
            py::gil_scoped_release release;
            cpu::project_rows(at<T>(G), at<const T>(P), at<const T>(inverse_norm), rows, D, threads);
        },
        arg("G"), arg("P"), arg("inverse_norm"), arg("rows"), arg("D"), arg("threads"));
}

#if defined(ROBUSTDML_CUDA)
// normalize_rows_cuda_<P>_<U> and normalize_rows_backward_cuda_<U>, for every pair of element types.
inline void bind_cuda_rows(py::module_& m) {
    using cuda::Element;
    using py::arg;
    constexpr std::pair<const char*, Element> kElements[] = {
        {"f16", Element::f16}, {"bf16", Element::bf16}, {"f32", Element::f32}, {"f64", Element::f64}};
    for (const auto& [U_name, U_type] : kElements) {
        m.def((std::string("normalize_rows_backward_cuda_") + U_name).c_str(),
              [U_type = U_type](Address G, Address U, Address inverse_norm, std::int64_t rows, std::int64_t D,
                                Address stream) {
                  cuda::normalize_rows_backward(at<void>(G), at<const void>(U), U_type,
                                                at<const void>(inverse_norm), rows, D, stream);
              },
              arg("G"), arg("U"), arg("inverse_norm"), arg("rows"), arg("D"), arg("stream"));
        for (const auto& [P_name, P_type] : kElements) {
            if (P_type == Element::f64 && U_type != Element::f64) continue;
            m.def((std::string("normalize_rows_cuda_") + P_name + "_" + U_name).c_str(),
                  [P_type = P_type, U_type = U_type](Address P, Address U, Address inverse_norm,
                                                     std::int64_t rows, std::int64_t D, Address stream) {
                      cuda::normalize_rows(at<const void>(P), P_type, at<void>(U), U_type,
                                           at<void>(inverse_norm), rows, D, stream);
                  },
                  arg("P"), arg("U"), arg("inverse_norm"), arg("rows"), arg("D"), arg("stream"));
        }
    }
}
#endif

inline void bind_rows(py::module_& m) {
    bind_cpu_rows<float>(m, "f32");
    bind_cpu_rows<double>(m, "f64");
#if defined(ROBUSTDML_CUDA)
    bind_cuda_rows(m);
#endif
}

}  // namespace robustdml
