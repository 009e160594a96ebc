// The anchor log-sum-exp: AnchorChunk_f32, anchor_lse_labels_f32 and so on for the CPU,
// anchor_lse_labels_cuda_f32 and so on for the current CUDA device.
#pragma once

#include "anchor/cpu.h"
#include "anchor/cpu_sweep.h"
#include "common/bind.h"
#include "common/keywords.h"
#include "optim/bind.h"

#if defined(ROBUSTDML_CUDA)
#include "anchor/cuda.h"
#endif

namespace robustdml {

template <class T>
void bind_anchor_of(py::module_& m, const std::string& suffix) {
    define_struct<AnchorChunk<T>>(m, "AnchorChunk_" + suffix);
    define_epilogue(m, "anchor_lse_labels_" + suffix, cpu::anchor_lse_labels<T>, "threads");
    define_epilogue(m, "anchor_lse_confidences_" + suffix, cpu::anchor_lse_confidences<T>, "threads");
    define(m, "column_extremes_" + suffix, cpu::column_extremes<T>, "values", "rows", "columns", "row_stride",
           "lowest", "highest", "threads");
    define_epilogue(m, "anchor_sweep_labels_" + suffix, cpu::anchor_sweep_labels<T>, "total");
    define_epilogue(m, "anchor_sweep_confidences_" + suffix, cpu::anchor_sweep_confidences<T>, "total");
    define(m, "anchor_step_" + suffix, cpu::anchor_step<T>, "gemm", "set_threads", "X", "labels", "weights",
           "P", "B", "D", "C", "alpha", "bias", "margins", "margin_count", "regularization", "chunk_rows",
           "threads", "dX", "dP", "dmargins", "loss");
#if defined(ROBUSTDML_CUDA)
    define_epilogue(m, "anchor_lse_labels_cuda_" + suffix, cuda::anchor_lse_labels<T>, "stream");
    define_epilogue(m, "anchor_lse_confidences_cuda_" + suffix, cuda::anchor_lse_confidences<T>, "stream");
#endif
}

inline void bind_anchor(py::module_& m) {
    bind_anchor_of<float>(m, "f32");
    bind_anchor_of<double>(m, "f64");
}

}  // namespace robustdml
