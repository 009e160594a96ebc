// An optimiser's step within a sweep: ProxyUpdate_f32 and ProxyUpdate_f64, which a sweep on the CPU takes as
// its argument `update`.
#pragma once

#include <stdexcept>
#include <string>

#include "common/keywords.h"
#include "optim/update.h"

namespace robustdml {

template <>
struct FromPython<UpdateKind> {
    using Given = std::string;
    static UpdateKind convert(const std::string& name) {
        if (name == "adamw") return UpdateKind::adamw;
        if (name == "sgd") return UpdateKind::sgd;
        if (name == "adagrad") return UpdateKind::adagrad;
        throw std::invalid_argument("kind '" + name + "': expected 'adamw', 'sgd' or 'adagrad'");
    }
};

// An object of Python's, or None for null; who calls keeps it alive.
template <class T>
struct FromPython<const ProxyUpdate<T>*> {
    using Given = ProxyUpdate<T>*;
    static const ProxyUpdate<T>* convert(Given given) { return given; }
};

inline void bind_optim(py::module_& m) {
    define_struct<ProxyUpdate<float>>(m, "ProxyUpdate_f32");
    define_struct<ProxyUpdate<double>>(m, "ProxyUpdate_f64");
}

}  // namespace robustdml
