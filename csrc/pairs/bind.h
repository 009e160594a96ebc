// The sums over pairs: PairChunk_f32, pair_lse_f32 and so on for the CPU, PairChunk_cuda_f32,
// pair_lse_cuda_f32 and so on for the current CUDA device, whose labels are of 64 bits.
#pragma once

#include "common/keywords.h"
#include "optim/bind.h"
#include "pairs/cpu_relations.h"
#include "pairs/cpu_step.h"

#if defined(ROBUSTDML_CUDA)
#include "pairs/cuda.h"
#endif

namespace robustdml {

// PairLSE_f32, pair_lse_f32 and so on of one problem.
template <class T, class Problem>
void bind_pair_problem(py::module_& m, const std::string& type, const std::string& name,
                       const std::string& suffix) {
    define_struct<Problem>(m, type + suffix);
    define(m, name + suffix, py::overload_cast<const cpu::Pairs<T>&, const Problem&, int>(cpu::pair_sums<T>),
           "chunk", "problem", "threads");
    define(m, name + "_whole" + suffix, cpu::pair_whole_sweep<T, Problem>, "shape", "problem", "rows",
           "columns", "X", "candidates", "dX", "dcandidates");
    define(m, name + "_step" + suffix, cpu::pair_step<T, Problem>, "shape", "formula", "problem", "X",
           "candidates", "labels", "candidate_labels", "weights", "logit_scale", "logit_bias", "ids",
           "candidate_ids", "dX", "dcandidates", "dlogit_scale", "dlogit_bias", "loss");
#if defined(ROBUSTDML_CUDA)
    define(m, name + "_cuda" + suffix,
           py::overload_cast<const cuda::Pairs<T>&, const Problem&, std::uintptr_t>(cuda::pair_sums<T>),
           "chunk", "problem", "stream");
#endif
}

template <class T>
void bind_pairs_of(py::module_& m, const std::string& suffix) {
    define_struct<cpu::Pairs<T>>(m, "PairChunk" + suffix);
    define_struct<cpu::Sweep<T>>(m, "Sweep" + suffix);
    define_struct<cpu::PairShape<T>>(m, "PairShape" + suffix);
#if defined(ROBUSTDML_CUDA)
    define_struct<cuda::Pairs<T>>(m, "PairChunk_cuda" + suffix);
#endif
    bind_pair_problem<T, PairLSEProblem<T>>(m, "PairLSE", "pair_lse", suffix);
    bind_pair_problem<T, PairHingeProblem<T>>(m, "PairHinge", "pair_hinge", suffix);
    bind_pair_problem<T, PairContrastProblem<T>>(m, "PairContrast", "pair_contrast", suffix);
}

inline void bind_pairs(py::module_& m) {
    // Its address goes into a PairChunk, which it has to outlive.
    py::class_<cpu::Relations>(m, "PairRelations", py::module_local())
        .def(py::init([](Address labels, Address candidate_labels, std::int64_t n, std::int64_t candidates,
                         std::int64_t labels_each, Address ids, Address candidate_ids, std::int64_t ids_each,
                         bool keeps_positives) {
                 const auto numbers = FromPython<const std::int64_t*>::convert;
                 return new cpu::Relations(numbers(labels), numbers(candidate_labels), n, candidates,
                                           labels_each, numbers(ids), numbers(candidate_ids), ids_each,
                                           keeps_positives);
             }),
             py::kw_only(), py::arg("labels"), py::arg("candidate_labels"), py::arg("n"), py::arg("m"),
             py::arg("labels_each"), py::arg("ids"), py::arg("candidate_ids"), py::arg("ids_each"),
             py::arg("keeps_positives"))
        .def("address", [](const cpu::Relations& relations) { return Address(&relations); });
    define(m, "narrow_labels", cpu::narrow_labels, "labels", "count", "narrow");
    define_struct<cpu::PairFormula>(m, "PairFormula");
    bind_pairs_of<float>(m, "_f32");
    bind_pairs_of<double>(m, "_f64");
}

}  // namespace robustdml
