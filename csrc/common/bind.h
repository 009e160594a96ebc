// What the bindings share.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

namespace robustdml {

namespace py = pybind11;
using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

}  // namespace robustdml
