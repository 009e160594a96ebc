#include "pairs/cpu_symmetric.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "common/cpu/clones.h"
#include "pairs/cpu_part.h"

namespace robustdml::cpu {
namespace {

// Rows of a panel: what of S lies below the diagonal within one is multiplied twice, and products of fewer
// rows are slow.
constexpr std::int64_t kPanel = 128;
// Rows and columns that are turned at a time: both sides of them stay in L1.
constexpr std::int64_t kTile = 32;

// target(x, row) = S(row, x), plus what is there if Add; for rows of S from `row` and columns from `column`.
template <bool Add, class T>
ROBUSTDML_HD void turn(const T* S, T* target, std::int64_t S_stride, std::int64_t target_stride,
                       std::int64_t rows, std::int64_t columns) {
    for (std::int64_t from = 0; from < columns; from += kTile)
        for (std::int64_t begin = 0; begin < rows; begin += kTile) {
            const std::int64_t to = std::min(columns, from + kTile), end = std::min(rows, begin + kTile);
            for (std::int64_t x = from; x < to; ++x)
#pragma omp simd
                for (std::int64_t row = begin; row < end; ++row)
                    target[x * target_stride + row] =
                        S[row * S_stride + x] + (Add ? target[x * target_stride + row] : T(0));
        }
}

// Factors of the gradient: of attraction, below 0, and of repulsion. Both anchors of a pair are on the same
// side of it.
template <class T>
struct Shares {
    T attraction;
    T repulsion;
};

template <class T>
ROBUSTDML_HD void scale_sides(T* dS, std::int64_t count, const Shares<T>& shares) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) dS[i] *= dS[i] < T(0) ? shares.attraction : shares.repulsion;
}

#define ROBUSTDML_STAMP(T)                                                                  \
    ROBUSTDML_CLONES void scale_clone(T* dS, std::int64_t count, const Shares<T>& shares) { \
        scale_sides(dS, count, shares);                                                     \
    }                                                                                       \
    ROBUSTDML_CLONES void mirror_clone(const T* S, T* target, std::int64_t S_stride,        \
                                       std::int64_t target_stride, std::int64_t rows,       \
                                       std::int64_t columns) {                              \
        turn<false>(S, target, S_stride, target_stride, rows, columns);                     \
    }                                                                                       \
    ROBUSTDML_CLONES void add_turned_clone(const T* S, T* target, std::int64_t S_stride,    \
                                           std::int64_t target_stride, std::int64_t rows,   \
                                           std::int64_t columns) {                          \
        turn<true>(S, target, S_stride, target_stride, rows, columns);                      \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

// 1 / the number of terms above 0 on either side of all anchors.
template <class T>
Shares<T> shares_of(const PairHingeProblem<T>& problem, std::int64_t n) {
    const auto share = [&](const std::int64_t* counts) {
        return T(1) / static_cast<T>(
                          std::max<std::int64_t>(1, std::accumulate(counts, counts + n, std::int64_t(0))));
    };
    return {share(problem.positive_count), share(problem.negative_count)};
}

}  // namespace

template <class T, class Problem>
void pair_symmetric(const Pairs<T>& whole, const Problem& problem, const Batch<T>& batch) {
    const std::int64_t n = batch.n, D = batch.D, panels = (n + kPanel - 1) / kPanel;
    const int lanes = static_cast<int>(std::min<std::int64_t>(batch.threads, panels));
    const Rows<const T> U{batch.U, D, 1};
    in_lanes(panels, lanes, batch.set_threads, [&](int, std::int64_t panel) {
        // The longest first, so that none is left over for the end.
        const std::int64_t first = panel * kPanel, count = std::min(kPanel, n - first), columns = n - first;
        T* S = batch.S + first * n + first;
        multiply<T>(batch.gemm, {U.row(first), D, 1}, {U.row(first), 1, D}, {S, n, 1}, count, columns, D,
                    false);
        if (columns > count) mirror_clone(S + count, S + count * n, n, n, count, columns - count);
    });
    in_lanes(panels, lanes, batch.set_threads, [&](int, std::int64_t panel) {
        const std::int64_t first = panel * kPanel, count = std::min(kPanel, n - first);
        pair_sums(part_of(whole, first, count, batch.S + first * n), part_of(problem, first), 1);
    });
    if (!batch.dU) return;
    Shares<T> shares{1, 1};
    if constexpr (std::is_same_v<Problem, PairHingeProblem<T>>) shares = shares_of(problem, n);
    const Buffer<T> sums(lanes * kPanel * n);
    in_lanes(panels, lanes, batch.set_threads, [&](int lane, std::int64_t panel) {
        const std::int64_t first = panel * kPanel, count = std::min(kPanel, n - first);
        T* sum = sums.get() + lane * kPanel * n;
        std::copy(batch.S + first * n, batch.S + (first + count) * n, sum);
        add_turned_clone(batch.S + first, sum, n, n, n, count);
        if (batch.average) scale_clone(sum, count * n, shares);
        multiply<T>(batch.gemm, {sum, n, 1}, U, {batch.dU + first * D, D, 1}, count, D, n, false);
    });
}

#define ROBUSTDML_STAMP(T)                                                                      \
    template void pair_symmetric(const Pairs<T>&, const PairLSEProblem<T>&, const Batch<T>&);   \
    template void pair_symmetric(const Pairs<T>&, const PairHingeProblem<T>&, const Batch<T>&); \
    template void pair_symmetric(const Pairs<T>&, const PairContrastProblem<T>&, const Batch<T>&);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
