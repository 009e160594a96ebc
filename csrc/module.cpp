// Python sees addresses, sizes and the current CUDA stream: this module links no torch, so one build serves
// every torch.
#include "anchor/bind.h"
#include "classes/bind.h"
#include "lambert_w/bind.h"
#include "optim/bind.h"
#include "otsu/bind.h"
#include "pairs/bind.h"
#include "rows/bind.h"
#include "self_paced/bind.h"
#include "similarity/bind.h"
#include "vmf/bind.h"
#if defined(ROBUSTDML_CUDA)
#include "common/cuda.h"
#endif

PYBIND11_MODULE(_native, m) {
    m.doc() =
        "Epilogues of the sweep, on addresses. The caller keeps every buffer alive and checks every size.";
    robustdml::bind_rows(m);
    robustdml::bind_optim(m);
    robustdml::bind_anchor(m);
    robustdml::bind_classes(m);
    robustdml::bind_pairs(m);
    robustdml::bind_similarity(m);
    robustdml::bind_vmf(m);
    robustdml::bind_otsu(m);
    robustdml::bind_lambert_w(m);
    robustdml::bind_self_paced(m);
    // Components compiled in, of which the wheel's list is made.
    m.attr("compiler") = __VERSION__;
    m.attr("pybind11_version") = ROBUSTDML_PYBIND11_VERSION;
#if defined(ROBUSTDML_CUDA)
    m.attr("cuda_architectures") = ROBUSTDML_CUDA;  // as CMake names them: "80-real 120-virtual"
    m.attr("cuda_runtime_version") = robustdml::cuda::runtime_version();
    robustdml::define(m, "cuda_driver_version", robustdml::cuda::driver_version);
    robustdml::define(m, "set_cuda_device", robustdml::cuda::set_device, "index");
#else
    m.attr("cuda_architectures") = pybind11::none();
    m.attr("cuda_left_out") = ROBUSTDML_CUDA_LEFT_OUT;  // why
#endif
}
