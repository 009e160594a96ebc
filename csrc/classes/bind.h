// The class log-sum-exp: ClassChunk_f32, class_lse_f32 and class_lse_backward_f32 for the CPU,
// class_lse_cuda_f32 and class_lse_backward_cuda_f32 for the current CUDA device, and the same in f64.
#pragma once

#include <stdexcept>

#include "classes/cpu.h"
#include "classes/cpu_step.h"
#include "classes/cpu_sweep.h"
#include "classes/cpu_terms.h"
#include "common/keywords.h"
#include "optim/bind.h"

#if defined(ROBUSTDML_CUDA)
#include "classes/cuda.h"
#endif

namespace robustdml {

template <>
struct FromPython<Pooling> {
    using Given = std::string;
    static Pooling convert(const std::string& name) {
        if (name == "none") return Pooling::none;
        if (name == "max") return Pooling::max;
        if (name == "softmax") return Pooling::softmax;
        throw std::invalid_argument("pooling '" + name + "': expected 'none', 'max' or 'softmax'");
    }
};

template <>
struct FromPython<cpu::Margin> {
    using Given = std::string;
    static cpu::Margin convert(const std::string& name) {
        if (name == "cosine") return cpu::Margin::cosine;
        if (name == "angle") return cpu::Margin::angle;
        if (name == "quality") return cpu::Margin::quality;
        throw std::invalid_argument("margin_kind '" + name + "': expected 'cosine', 'angle' or 'quality'");
    }
};

template <class T>
void bind_classes_of(py::module_& m, const std::string& suffix) {
    define_struct<ClassChunk<T>>(m, "ClassChunk_" + suffix);
    define_epilogue(m, "class_lse_" + suffix, cpu::class_lse<T>, "threads");
    define_epilogue(m, "class_lse_backward_" + suffix, cpu::class_lse_backward<T>, "threads");
    define_epilogue(m, "class_sweep_" + suffix, cpu::class_sweep<T>);
    define_epilogue(m, "class_sweep_backward_" + suffix, cpu::class_sweep_backward<T>);
    define_epilogue(m, "class_terms_" + suffix, cpu::class_terms<T>);
    define_epilogue(m, "class_terms_backward_" + suffix, cpu::class_terms_backward<T>);
    define_struct<cpu::ClassStep<T>>(m, "ClassStep_" + suffix);
    define(m, "class_step_" + suffix, cpu::class_step<T>, "step", "X", "P", "labels", "weights", "margins",
           "E", "dX", "dP", "loss");
#if defined(ROBUSTDML_CUDA)
    define_epilogue(m, "class_lse_cuda_" + suffix, cuda::class_lse<T>, "stream");
    define_epilogue(m, "class_lse_backward_cuda_" + suffix, cuda::class_lse_backward<T>, "parts", "stream");
#endif
}

inline void bind_classes(py::module_& m) {
    bind_classes_of<float>(m, "f32");
    bind_classes_of<double>(m, "f64");
    m.attr("class_term_shift") = cpu::kTermShift;
}

}  // namespace robustdml
