// How a C++ function becomes one of Python's: Python gives addresses where C++ takes pointers, and the GIL is
// free while the function runs.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <string>

namespace robustdml {

namespace py = pybind11;
using Address = std::uintptr_t;

// The type that Python gives for a parameter of type V, and its conversion to V.
template <class V>
struct FromPython {
    using Given = V;
    static V convert(V given) { return given; }
};

template <class V>
struct FromPython<V*> {
    using Given = Address;
    static V* convert(Address given) { return reinterpret_cast<V*>(given); }
};

template <class Result, class... Parameters, class... Names>
void define_function(py::module_& m, const std::string& name, std::function<Result(Parameters...)> function,
                     Names... names) {
    static_assert(sizeof...(Parameters) == sizeof...(Names), "every parameter has a name");
    m.def(
        name.c_str(),
        [function = std::move(function)](typename FromPython<Parameters>::Given... given) {
            py::gil_scoped_release release;
            return function(FromPython<Parameters>::convert(given)...);
        },
        py::arg(names)...);
}

// `function`, a function or a lambda, as m.<name>(<names>...); its arguments go by place or by name.
template <class Function, class... Names>
void define(py::module_& m, const std::string& name, Function function, Names... names) {
    define_function(m, name, std::function(std::move(function)), names...);
}

}  // namespace robustdml
