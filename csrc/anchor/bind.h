// The anchor log-sum-exp: AnchorChunk_f32, anchor_lse_labels_f32 and so on for the CPU,
// anchor_lse_labels_cuda_f32 and so on for the current CUDA device.
#pragma once

#include "anchor/cpu.h"
#include "common/bind.h"

#if defined(ROBUSTDML_CUDA)
#include "anchor/cuda.h"
#endif

namespace robustdml {

template <class T>
void bind_anchor_chunk(py::module_& m, const char* suffix) {
    using py::arg;
    py::class_<AnchorChunk<T>>(m, (std::string("AnchorChunk_") + suffix).c_str(), py::module_local())
        .def(py::init([](Address S, std::int64_t rows, std::int64_t B, T alpha, Address positive_bias,
                         Address negative_bias, Address anchor_bias, bool row_max, Address upstream_positive,
                         Address upstream_negative, std::int64_t upstream_positive_stride,
                         std::int64_t upstream_negative_stride, Address lse_positive, Address lse_negative,
                         Address dpositive_bias, Address dnegative_bias, Address P, Address inverse_norm,
                         std::int64_t D) {
                 return AnchorChunk<T>{at<T>(S),
                                       rows,
                                       B,
                                       alpha,
                                       at<const T>(positive_bias),
                                       at<const T>(negative_bias),
                                       at<const T>(anchor_bias),
                                       row_max,
                                       at<const T>(upstream_positive),
                                       at<const T>(upstream_negative),
                                       upstream_positive_stride,
                                       upstream_negative_stride,
                                       at<T>(lse_positive),
                                       at<T>(lse_negative),
                                       at<T>(dpositive_bias),
                                       at<T>(dnegative_bias),
                                       at<const T>(P),
                                       at<T>(inverse_norm),
                                       D};
             }),
             py::kw_only(), arg("S"), arg("rows"), arg("B"), arg("alpha"), arg("positive_bias"),
             arg("negative_bias"), arg("anchor_bias"), arg("row_max"), arg("upstream_positive"),
             arg("upstream_negative"), arg("upstream_positive_stride"), arg("upstream_negative_stride"),
             arg("lse_positive"), arg("lse_negative"), arg("dpositive_bias"), arg("dnegative_bias"),
             arg("P") = Address(0), arg("inverse_norm") = Address(0), arg("D") = 0);
}

template <class T>
void bind_cpu_anchor_lse(py::module_& m, const char* suffix) {
    using py::arg;
    const auto name = [&](const char* base) { return std::string(base) + "_" + suffix; };
    m.def(
        name("anchor_lse_labels").c_str(),
        [](const AnchorChunk<T>& chunk, Address sorted_labels, Address order, std::int64_t first_label,
           int threads) {
            py::gil_scoped_release release;
            cpu::anchor_lse_labels(
                chunk, {at<const std::int64_t>(sorted_labels), at<const std::int64_t>(order), first_label},
                threads);
        },
        arg("chunk"), py::kw_only(), arg("sorted_labels"), arg("order"), arg("first_label"), arg("threads"));
    m.def(
        name("anchor_lse_confidences").c_str(),
        [](const AnchorChunk<T>& chunk, Address values, std::int64_t anchor_stride,
           std::int64_t candidate_stride, bool logits, T beta, T threshold, int threads) {
            py::gil_scoped_release release;
            cpu::anchor_lse_confidences(
                chunk, {at<const T>(values), anchor_stride, candidate_stride, logits, beta, threshold},
                threads);
        },
        arg("chunk"), py::kw_only(), arg("values"), arg("anchor_stride"), arg("candidate_stride"),
        arg("logits"), arg("beta"), arg("threshold"), arg("threads"));
}

#if defined(ROBUSTDML_CUDA)
template <class T>
void bind_cuda_anchor_lse(py::module_& m, const char* suffix) {
    using py::arg;
    const auto name = [&](const char* base) { return std::string(base) + "_cuda_" + suffix; };
    m.def(
        name("anchor_lse_labels").c_str(),
        [](const AnchorChunk<T>& chunk, Address labels, std::int64_t first_label, Address partials,
           std::int64_t parts, Address stream) {
            cuda::anchor_lse_labels<T>(chunk, {at<const std::int64_t>(labels), first_label},
                                       {at<T>(partials), parts}, stream);
        },
        arg("chunk"), py::kw_only(), arg("labels"), arg("first_label"), arg("partials"), arg("parts"),
        arg("stream"));
    m.def(
        name("anchor_lse_confidences").c_str(),
        [](const AnchorChunk<T>& chunk, Address values, std::int64_t anchor_stride,
           std::int64_t candidate_stride, bool logits, T beta, T threshold, Address partials,
           std::int64_t parts, Address stream) {
            cuda::anchor_lse_confidences<T>(
                chunk, {at<const T>(values), anchor_stride, candidate_stride, logits, beta, threshold},
                {at<T>(partials), parts}, stream);
        },
        arg("chunk"), py::kw_only(), arg("values"), arg("anchor_stride"), arg("candidate_stride"),
        arg("logits"), arg("beta"), arg("threshold"), arg("partials"), arg("parts"), arg("stream"));
}
#endif

template <class T>
void bind_anchor_of(py::module_& m, const char* suffix) {
    bind_anchor_chunk<T>(m, suffix);
    bind_cpu_anchor_lse<T>(m, suffix);
#if defined(ROBUSTDML_CUDA)
    bind_cuda_anchor_lse<T>(m, suffix);
#endif
}

inline void bind_anchor(py::module_& m) {
    bind_anchor_of<float>(m, "f32");
    bind_anchor_of<double>(m, "f64");
}

}  // namespace robustdml
