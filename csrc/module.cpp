// Python sees addresses, sizes and the current CUDA stream: this module links no torch, so one build serves
// every torch.
#include "bind_class_lse.h"
#include "bind_cpu.h"
#include "bind_lambert_w.h"
#include "bind_otsu.h"
#include "bind_pairs.h"
#include "bind_self_paced.h"
#include "bind_vmf.h"

#if defined(ROBUSTDML_CUDA)
#include "bind_cuda.h"
#endif

PYBIND11_MODULE(_native, m) {
    m.doc() =
        "Epilogues of the sweep, on addresses. The caller keeps every buffer alive and checks every size.";
    robustdml::bind_chunk<float>(m, "f32");
    robustdml::bind_chunk<double>(m, "f64");
    robustdml::bind_cpu<float>(m, "f32");
    robustdml::bind_cpu<double>(m, "f64");
    robustdml::bind_class_lse<float>(m, "f32");
    robustdml::bind_class_lse<double>(m, "f64");
    robustdml::bind_pairs<float>(m, "f32");
    robustdml::bind_pairs<double>(m, "f64");
    robustdml::bind_self_paced<float>(m, "f32");
    robustdml::bind_self_paced<double>(m, "f64");
    robustdml::bind_lambert_w<float>(m, "f32");
    robustdml::bind_lambert_w<double>(m, "f64");
    robustdml::bind_otsu<float>(m, "f32");
    robustdml::bind_otsu<double>(m, "f64");
    robustdml::bind_vmf<float>(m, "f32");
    robustdml::bind_vmf<double>(m, "f64");
#if defined(ROBUSTDML_CUDA)
    robustdml::bind_cuda_rows(m);
    robustdml::bind_cuda_anchor_lse<float>(m, "f32");
    robustdml::bind_cuda_anchor_lse<double>(m, "f64");
    robustdml::bind_cuda_class_lse<float>(m, "f32");
    robustdml::bind_cuda_class_lse<double>(m, "f64");
    m.attr("cuda_architectures") = ROBUSTDML_CUDA;  // as CMake names them: "80-real 120-virtual"
#else
    m.attr("cuda_architectures") = pybind11::none();
#endif
}
