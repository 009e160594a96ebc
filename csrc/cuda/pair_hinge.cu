#include "cuda/pair_hinge.h"

#include <cmath>

#include "cuda/pair_rows.h"

namespace robustdml::cuda {
namespace {

// kLanes threads take one row, once: what a pair adds to the gradient is known with the pair.
template <class T, bool Euclidean, int kLanes>
__global__ void __launch_bounds__(kPairThreads, kPairBlocks)
    pair_hinge_kernel(Pairs<T> c, PairHinge<T> problem) {
    const int lane = threadIdx.x % kLanes;
    const std::int64_t row = row_of_thread<kLanes>();
    if (row >= c.rows) return;  // a whole warp, never a part of a block that reduces together
    T* s = c.S + row * c.m;
    const std::int64_t label = c.labels[row];
    const bool gradients = c.upstream_positive != nullptr;
    const T positive_gradient = gradients ? -c.upstream_positive[row * c.upstream_positive_stride] : T(0);
    const T negative_gradient = gradients ? c.upstream_negative[row * c.upstream_negative_stride] : T(0);
    // What a term is, of a pair above its margin.
    const T positive_top = problem.positive_margin + problem.positive_offset;
    const T negative_bottom = problem.negative_margin - problem.negative_offset;
    T sum[2] = {T(0), T(0)};
    int count[2] = {0, 0};
    for (std::int64_t x = lane; x < c.m; x += kLanes) {
        T t = s[x], slope = T(1);
        if (Euclidean) {
            const T square = T(2) - T(2) * t;
            const T distance = std::sqrt(square < T(0) ? T(0) : square);
            t = -distance;
            // dt/ds: equal vectors have none.
            slope = distance == T(0) ? T(0) : T(1) / distance;
        }
        const PairMember member = member_of(c, row, label, x);
        // Asked so that a NaN stays: it is to reach the result.
        const bool attracts = member.positive && !(t >= problem.positive_margin);
        const bool repels = member.negative && !(t <= problem.negative_margin);
        sum[0] += attracts ? positive_top - t : T(0);
        sum[1] += repels ? t - negative_bottom : T(0);
        count[0] += attracts;
        count[1] += repels;
        if (gradients) s[x] = (attracts ? positive_gradient : repels ? negative_gradient : T(0)) * slope;
    }
    reduce<kLanes>(sum, Add{});
    reduce<kLanes>(count, Add{});
    if (lane != 0) return;
    c.positive[row] = sum[0];
    c.negative[row] = sum[1];
    problem.positive_count[row] = count[0];
    problem.negative_count[row] = count[1];
}

}  // namespace

template <class T>
void pair_hinge(const PairChunk<T, std::int64_t>& chunk, const PairHinge<T>& problem, std::uintptr_t stream) {
    if (problem.euclidean)
        over_pair_rows("pair_hinge", chunk, pair_hinge_kernel<T, true, kWarp>,
                       pair_hinge_kernel<T, true, kPairThreads>, stream, problem);
    else
        over_pair_rows("pair_hinge", chunk, pair_hinge_kernel<T, false, kWarp>,
                       pair_hinge_kernel<T, false, kPairThreads>, stream, problem);
}

template void pair_hinge<float>(const PairChunk<float, std::int64_t>&, const PairHinge<float>&,
                                std::uintptr_t);
template void pair_hinge<double>(const PairChunk<double, std::int64_t>&, const PairHinge<double>&,
                                 std::uintptr_t);

}  // namespace robustdml::cuda
