// What the bindings of both devices share: addresses, and the chunk they are handed.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "anchor_chunk.h"

namespace robustdml {

namespace py = pybind11;
using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

template <class T>
void bind_chunk(py::module_& m, const char* suffix) {
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

}  // namespace robustdml
