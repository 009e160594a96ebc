// The functions that run on the current CUDA device, in the stream given by its address.
#pragma once

#include <utility>

#include "bind.h"
#include "cuda/anchor_lse.h"
#include "cuda/rows.h"

namespace robustdml {

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

}  // namespace robustdml
