// The ops on pairs: PairChunk_f32, pair_lse_f32 and so on for the CPU, PairChunk_cuda_f32, pair_lse_cuda_f32
// for the current CUDA device, whose labels are of 64 bits.
#pragma once

#include "common/bind.h"
#include "pairs/cpu.h"

#if defined(ROBUSTDML_CUDA)
#include "pairs/cuda.h"
#endif

namespace robustdml {

template <class T, class Label>
void bind_pair_chunk(py::module_& m, const std::string& name) {
    using py::arg;
    using Chunk = PairChunk<T, Label>;
    py::class_<Chunk>(m, name.c_str(), py::module_local())
        .def(py::init([](Address S, std::int64_t rows, std::int64_t m, Address labels,
                         Address candidate_labels, std::int64_t itself, Address upstream_positive,
                         Address upstream_negative, std::int64_t upstream_positive_stride,
                         std::int64_t upstream_negative_stride, Address positive, Address negative, Address P,
                         Address inverse_norm, std::int64_t D) {
                 return Chunk{at<T>(S),
                              rows,
                              m,
                              at<const Label>(labels),
                              at<const Label>(candidate_labels),
                              itself,
                              at<const T>(upstream_positive),
                              at<const T>(upstream_negative),
                              upstream_positive_stride,
                              upstream_negative_stride,
                              at<T>(positive),
                              at<T>(negative),
                              at<const T>(P),
                              at<T>(inverse_norm),
                              D};
             }),
             py::kw_only(), arg("S"), arg("rows"), arg("m"), arg("labels"), arg("candidate_labels"),
             arg("itself"), arg("upstream_positive"), arg("upstream_negative"),
             arg("upstream_positive_stride"), arg("upstream_negative_stride"), arg("positive"),
             arg("negative"), arg("P") = Address(0), arg("inverse_norm") = Address(0), arg("D") = 0);
}

template <class T>
void bind_pairs_of(py::module_& m, const std::string& suffix) {
    using py::arg;
    py::class_<PairLSE<T>>(m, ("PairLSE_" + suffix).c_str(), py::module_local())
        .def(py::init([](T alpha, T beta, T base, T epsilon, bool mining, bool row_max,
                         Address candidate_weights) {
                 return PairLSE<T>{
                     alpha, beta, base, epsilon, mining, row_max, at<const T>(candidate_weights)};
             }),
             py::kw_only(), arg("alpha"), arg("beta"), arg("base"), arg("epsilon"), arg("mining"),
             arg("row_max"), arg("candidate_weights"));
    py::class_<PairHinge<T>>(m, ("PairHinge_" + suffix).c_str(), py::module_local())
        .def(py::init([](T positive_margin, T negative_margin, T positive_offset, T negative_offset,
                         bool euclidean, Address positive_count, Address negative_count) {
                 return PairHinge<T>{positive_margin,
                                     negative_margin,
                                     positive_offset,
                                     negative_offset,
                                     euclidean,
                                     at<std::int64_t>(positive_count),
                                     at<std::int64_t>(negative_count)};
             }),
             py::kw_only(), arg("positive_margin"), arg("negative_margin"), arg("positive_offset"),
             arg("negative_offset"), arg("euclidean"), arg("positive_count"), arg("negative_count"));
    bind_pair_chunk<T, cpu::PairLabel>(m, "PairChunk_" + suffix);
    m.def(("pair_lse_" + suffix).c_str(),
          [](const cpu::Pairs<T>& chunk, const PairLSE<T>& problem, int threads) {
              py::gil_scoped_release release;
              cpu::pair_lse(chunk, problem, threads);
          },
          arg("chunk"), arg("problem"), arg("threads"));
    m.def(("pair_hinge_" + suffix).c_str(),
          [](const cpu::Pairs<T>& chunk, const PairHinge<T>& problem, int threads) {
              py::gil_scoped_release release;
              cpu::pair_hinge(chunk, problem, threads);
          },
          arg("chunk"), arg("problem"), arg("threads"));
#if defined(ROBUSTDML_CUDA)
    bind_pair_chunk<T, std::int64_t>(m, "PairChunk_cuda_" + suffix);
    m.def(("pair_lse_cuda_" + suffix).c_str(),
          [](const PairChunk<T, std::int64_t>& chunk, const PairLSE<T>& problem, Address stream) {
              cuda::pair_lse(chunk, problem, stream);
          },
          arg("chunk"), arg("problem"), arg("stream"));
    m.def(("pair_hinge_cuda_" + suffix).c_str(),
          [](const PairChunk<T, std::int64_t>& chunk, const PairHinge<T>& problem, Address stream) {
              cuda::pair_hinge(chunk, problem, stream);
          },
          arg("chunk"), arg("problem"), arg("stream"));
#endif
}

inline void bind_pairs(py::module_& m) {
    bind_pairs_of<float>(m, "f32");
    bind_pairs_of<double>(m, "f64");
}

}  // namespace robustdml
