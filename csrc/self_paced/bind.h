// The descent of the sample weights, which Python calls a sweep: self_paced_sweep_f32 and _f64. It is
// sequential, so it runs on the host alone.
#pragma once

#include "common/keywords.h"
#include "self_paced/cpu.h"

namespace robustdml {

template <class T>
void bind_self_paced_of(py::module_& m, const std::string& suffix) {
    const std::string name = "self_paced_sweep_" + suffix;
    m.def(name.c_str(), [name, reader = StructReader<SelfPacedProblem<T>>()](const py::kwargs& given) {
        const auto [problem] = read_keywords(name, given, reader);
        py::gil_scoped_release release;
        cpu::self_paced_descent(problem);
    });
}

inline void bind_self_paced(py::module_& m) {
    bind_self_paced_of<float>(m, "f32");
    bind_self_paced_of<double>(m, "f64");
}

}  // namespace robustdml
