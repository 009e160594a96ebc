// Similarities themselves: nearest_update_f32 and nearest_update_f64, for the CPU.
#pragma once

#include "common/bind.h"
#include "similarity/cpu.h"

namespace robustdml {

template <class T>
void bind_similarity_of(py::module_& m, const std::string& suffix) {
    define(m, "nearest_update_" + suffix, cpu::nearest_update<T>, "S", "row_stride", "rows", "columns",
           "first_column", "excluded", "k", "values", "indices", "threads");
}

inline void bind_similarity(py::module_& m) {
    bind_similarity_of<float>(m, "f32");
    bind_similarity_of<double>(m, "f64");
}

}  // namespace robustdml
