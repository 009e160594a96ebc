#include <algorithm>

#include "anchor/cpu.h"
#include "common/cpu/clones.h"
#include "common/cpu/parts.h"
#include "math/limits.h"
#include "math/portable.h"

namespace robustdml::cpu {
namespace {

// Columns whose extremes stay in L1 while the rows pass by.
constexpr std::int64_t kStrip = 2048;

// A comparison with NaN is false, so a NaN is looked for by itself, and stays.
template <class T>
ROBUSTDML_HD void extremes_range(const T* values, std::int64_t rows, std::int64_t row_stride,
                                 std::int64_t begin, std::int64_t end, T* lowest, T* highest) {
    std::fill(lowest + begin, lowest + end, kInfinity<T>);
    std::fill(highest + begin, highest + end, -kInfinity<T>);
    for (std::int64_t from = begin; from < end; from += kStrip) {
        const std::int64_t to = std::min(end, from + kStrip);
        for (std::int64_t row = 0; row < rows; ++row) {
            const T* v = values + row * row_stride;
#pragma omp simd
            for (std::int64_t i = from; i < to; ++i) {
                lowest[i] = (v[i] < lowest[i]) | (v[i] != v[i]) ? v[i] : lowest[i];
                highest[i] = (v[i] > highest[i]) | (v[i] != v[i]) ? v[i] : highest[i];
            }
        }
    }
}

// target_clones takes no templates: plain functions of both types.
#define ROBUSTDML_STAMP(T)                                                                              \
    ROBUSTDML_CLONES void extremes_clone(const T* values, std::int64_t rows, std::int64_t row_stride,   \
                                         std::int64_t begin, std::int64_t end, T* lowest, T* highest) { \
        extremes_range(values, rows, row_stride, begin, end, lowest, highest);                          \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace

template <class T>
void column_extremes(const T* values, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                     T* lowest, T* highest, int threads) {
    in_parts(columns, threads, rows * columns > 65536, [&](std::int64_t begin, std::int64_t end) {
        extremes_clone(values, rows, row_stride, begin, end, lowest, highest);
    });
}

template void column_extremes<float>(const float*, std::int64_t, std::int64_t, std::int64_t, float*, float*,
                                     int);
template void column_extremes<double>(const double*, std::int64_t, std::int64_t, std::int64_t, double*,
                                      double*, int);

}  // namespace robustdml::cpu
