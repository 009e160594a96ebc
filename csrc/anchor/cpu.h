// Epilogue of the anchor log-sum-exp: a chunk of similarities becomes two log-sum-exps per anchor, and its
// own gradient.
#pragma once

#include "anchor/chunk.h"
#include "common/cpu/labels.h"

namespace robustdml::cpu {

template <class T>
void anchor_lse_labels(const AnchorChunk<T>& chunk, const LabelSets& sets, int threads);

template <class T>
void anchor_lse_confidences(const AnchorChunk<T>& chunk, const ConfidenceSets<T>& sets, int threads);

// Smallest and largest value of each column of a matrix (rows, columns) by rows; NaN where a column has one.
template <class T>
void column_extremes(const T* values, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                     T* lowest, T* highest, int threads);

}  // namespace robustdml::cpu
