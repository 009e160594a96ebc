// The CPU's functions, one set a type: normalize_rows_f32 and so on.
#pragma once

#include "bind.h"
#include "cpu/anchor_lse.h"
#include "cpu/rows.h"

namespace robustdml {

template <class T>
void bind_cpu(py::module_& m, const char* suffix) {
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

}  // namespace robustdml
