// Similarities themselves, for the CPU: similarity_sweep_f32 and so on. They take a Sweep_f32, which
// csrc/pairs/bind.h registers.
#pragma once

#include "common/keywords.h"
#include "similarity/cpu.h"

namespace robustdml {

template <class T>
void bind_similarity_of(py::module_& m, const std::string& suffix) {
    define_epilogue(m, "similarity_sweep_" + suffix, cpu::similarity_sweep<T>, "S");
    define_epilogue(m, "nearest_sweep_" + suffix, cpu::nearest_sweep<T>, "first_column", "excluded", "k",
                    "values", "indices");
}

inline void bind_similarity(py::module_& m) {
    bind_similarity_of<float>(m, "f32");
    bind_similarity_of<double>(m, "f64");
}

}  // namespace robustdml
