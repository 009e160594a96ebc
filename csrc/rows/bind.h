// Rows of unit length: normalize_rows_f32 and so on for the CPU, normalize_rows_cuda_f32_f32 and so on for
// the current CUDA device.
#pragma once

#include <tuple>
#include <utility>

#include "common/bind.h"
#include "common/cpu/product.h"
#include "common/cpu_bfloat16.h"
#include "rows/cpu.h"

#if defined(ROBUSTDML_CUDA)
#include "rows/cuda.h"
#endif

namespace robustdml {

// Rows are given as (address, row stride, column stride).
template <class T>
struct FromPython<cpu::Rows<T>> {
    using Given = std::tuple<Address, std::int64_t, std::int64_t>;
    static cpu::Rows<T> convert(Given given) {
        return {reinterpret_cast<T*>(std::get<0>(given)), std::get<1>(given), std::get<2>(given)};
    }
};

template <class T>
struct FromPython<const cpu::Rows<T>&> : FromPython<cpu::Rows<T>> {};

template <class T>
void bind_rows_of(py::module_& m, const std::string& suffix) {
    define(m, "inverse_norms_" + suffix, cpu::inverse_norms<T>, "P", "inverse_norm", "rows", "D", "threads");
    define(m, "normalize_rows_" + suffix, cpu::normalize_rows<T>, "P", "U", "inverse_norm", "rows", "D",
           "threads");
    define(m, "normalize_rows_backward_" + suffix, cpu::normalize_rows_backward<T>, "G", "U", "inverse_norm",
           "rows", "D", "threads");
    define(m, "subtract_radial_" + suffix, cpu::subtract_radial<T>, "G", "P", "inverse_norm", "rows", "D",
           "threads");
    define(m, "cosines_at_" + suffix, cpu::cosines_at<T>, "P", "X", "places", "cosines", "count", "rows",
           "each", "D", "threads");
    define(m, "multiply_" + suffix, cpu::multiply<T>, "gemm", "A", "B", "C", "rows", "columns", "inner",
           "add");
}

#if defined(ROBUSTDML_CUDA)
// normalize_rows_cuda_<P>_<U> and normalize_rows_backward_cuda_<U>, for every pair of element types.
inline void bind_cuda_rows(py::module_& m) {
    using cuda::Element;
    constexpr std::pair<const char*, Element> kElements[] = {
        {"f16", Element::f16}, {"bf16", Element::bf16}, {"f32", Element::f32}, {"f64", Element::f64}};
    for (const auto& [U_name, U_type] : kElements) {
        define(
            m, std::string("normalize_rows_backward_cuda_") + U_name,
            [U_type = U_type](void* G, const void* U, const void* inverse_norm, std::int64_t rows,
                              std::int64_t D, std::uintptr_t stream) {
                cuda::normalize_rows_backward(G, U, U_type, inverse_norm, rows, D, stream);
            },
            "G", "U", "inverse_norm", "rows", "D", "stream");
        for (const auto& [P_name, P_type] : kElements) {
            if (P_type == Element::f64 && U_type != Element::f64) continue;
            define(
                m, std::string("normalize_rows_cuda_") + P_name + "_" + U_name,
                [P_type = P_type, U_type = U_type](const void* P, void* U, void* inverse_norm,
                                                   std::int64_t rows, std::int64_t D, std::uintptr_t stream) {
                    cuda::normalize_rows(P, P_type, U, U_type, inverse_norm, rows, D, stream);
                },
                "P", "U", "inverse_norm", "rows", "D", "stream");
        }
    }
}
#endif

inline void bind_rows(py::module_& m) {
    define(m, "multiplies_bfloat16", cpu::multiplies_bfloat16);
    define(m, "bfloat16_is_faster", cpu::bfloat16_is_faster);
    define(m, "bfloat16_products", cpu::bfloat16_products, "brgemm", "brgemm_release", "X", "V", "dS", "B",
           "D", "rows", "S", "dX", "dV");
    define(m, "sort_labels", cpu::sort_labels, "labels", "count", "sorted", "order");
    bind_rows_of<float>(m, "f32");
    bind_rows_of<double>(m, "f64");
#if defined(ROBUSTDML_CUDA)
    bind_cuda_rows(m);
#endif
}

}  // namespace robustdml
