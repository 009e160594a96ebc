// The sums over pairs: PairChunk_f32, pair_lse_f32 and so on for the CPU, PairChunk_cuda_f32,
// pair_lse_cuda_f32 and so on for the current CUDA device, whose labels are of 64 bits.
#pragma once

#include "common/keywords.h"
#include "optim/bind.h"
#include "pairs/cpu.h"
#include "pairs/cpu_sweep.h"
#include "pairs/cpu_symmetric.h"
#include "pairs/cpu_tiles.h"

#if defined(ROBUSTDML_CUDA)
#include "pairs/cuda.h"
#endif

namespace robustdml {

template <class T>
void bind_pairs_of(py::module_& m, const std::string& suffix) {
    define_struct<PairLSEProblem<T>>(m, "PairLSE_" + suffix);
    define_struct<PairHingeProblem<T>>(m, "PairHinge_" + suffix);
    define_struct<PairContrastProblem<T>>(m, "PairContrast_" + suffix);
    define_struct<cpu::Pairs<T>>(m, "PairChunk_" + suffix);
    define_struct<cpu::Sweep<T>>(m, "Sweep_" + suffix);
    define(m, "pair_lse_" + suffix, cpu::pair_lse<T>, "chunk", "problem", "threads");
    define(m, "pair_hinge_" + suffix, cpu::pair_hinge<T>, "chunk", "problem", "threads");
    define(m, "pair_contrast_" + suffix, cpu::pair_contrast<T>, "chunk", "problem", "threads");
    define(m, "pair_lse_sweep_" + suffix, cpu::pair_lse_sweep<T>, "whole", "problem", "sweep");
    define(m, "pair_hinge_sweep_" + suffix, cpu::pair_hinge_sweep<T>, "whole", "problem", "sweep",
           "candidate_scale");
    define(m, "pair_contrast_sweep_" + suffix, cpu::pair_contrast_sweep<T>, "whole", "problem", "sweep");
    define_struct<cpu::Batch<T>>(m, "Batch_" + suffix);
    define(m, "pair_lse_symmetric_" + suffix, cpu::pair_lse_symmetric<T>, "whole", "problem", "batch");
    define(m, "pair_hinge_symmetric_" + suffix, cpu::pair_hinge_symmetric<T>, "whole", "problem", "batch");
    define(m, "pair_contrast_symmetric_" + suffix, cpu::pair_contrast_symmetric<T>, "whole", "problem",
           "batch");
    define_struct<cpu::ContrastSide<T>>(m, "ContrastSide_" + suffix);
    define_struct<cpu::ContrastTiles<T>>(m, "ContrastTiles_" + suffix);
    define(m, "pair_contrast_tiles_" + suffix, cpu::pair_contrast_tiles<T>, "rows", "columns", "tiles");
#if defined(ROBUSTDML_CUDA)
    define_struct<cuda::Pairs<T>>(m, "PairChunk_cuda_" + suffix);
    define(m, "pair_lse_cuda_" + suffix, cuda::pair_lse<T>, "chunk", "problem", "stream");
    define(m, "pair_hinge_cuda_" + suffix, cuda::pair_hinge<T>, "chunk", "problem", "stream");
    define(m, "pair_contrast_cuda_" + suffix, cuda::pair_contrast<T>, "chunk", "problem", "stream");
#endif
}

inline void bind_pairs(py::module_& m) {
    bind_pairs_of<float>(m, "f32");
    bind_pairs_of<double>(m, "f64");
}

}  // namespace robustdml
