#include "cuda/pair_lse.h"

#include <cmath>

#include "cuda/pair_rows.h"
#include "math/limits.h"
#include "math/log_sum.h"

namespace robustdml::cuda {
namespace {

// Lowest positive and, its sign turned, highest negative: one reduction serves both.
template <class T>
struct Ends {
    T lowest_positive;
    T highest_negative;
};

// Mining is asked so that a NaN stays: it is to reach the result.
template <class T>
__device__ __forceinline__ PairMember kept_of(PairMember member, T s, const Ends<T>& ends, T epsilon) {
    return {member.positive && !(s - epsilon >= ends.highest_negative),
            member.negative && !(s + epsilon <= ends.lowest_positive)};
}

// kLanes threads take one row: once for the ends of its sets, once for the sums, once to turn S into its
// gradient. A chunk is sized to stay in L2, so only the first reading may cost memory traffic.
template <class T, int kLanes>
__global__ void __launch_bounds__(kPairThreads, kPairBlocks) pair_lse_kernel(Pairs<T> c, PairLSE<T> problem) {
    const int lane = threadIdx.x % kLanes;
    const std::int64_t row = row_of_thread<kLanes>();
    if (row >= c.rows) return;  // a whole warp, never a part of a block that reduces together
    T* s = c.S + row * c.m;
    const std::int64_t label = c.labels[row];
    const T alpha = problem.alpha, beta = problem.beta, base = problem.base;

    Ends<T> ends{-kInfinity<T>, kInfinity<T>};  // let every pair through
    T shift[2] = {T(0), T(0)};
    if (problem.mining || problem.row_max) {
        T extrema[2] = {-kInfinity<T>, -kInfinity<T>};
        for (std::int64_t x = lane; x < c.m; x += kLanes) {
            const PairMember member = member_of(c, row, label, x);
            if (member.positive && -s[x] > extrema[0]) extrema[0] = -s[x];
            if (member.negative && s[x] > extrema[1]) extrema[1] = s[x];
        }
        reduce<kLanes>(extrema, Max{});
        // The ends of the sets have the largest exponents, mined or not: an extreme pair stays if any does.
        if (problem.row_max) {
            shift[0] = Max{}(T(0), alpha * (base + extrema[0]));
            shift[1] = Max{}(T(0), beta * (extrema[1] - base));
        }
        if (problem.mining) ends = {-extrema[0], extrema[1]};
    }
    T sum[2] = {T(0), T(0)}, weight[2] = {T(0), T(0)}, count[2] = {T(0), T(0)};
    for (std::int64_t x = lane; x < c.m; x += kLanes) {
        const PairMember kept = kept_of(member_of(c, row, label, x), s[x], ends, problem.epsilon);
        if (!kept.positive && !kept.negative) continue;
        const T exponent = kept.positive ? alpha * (base - s[x]) - shift[0] : beta * (s[x] - base) - shift[1];
        const T e = std::exp(exponent);
        const T w = problem.candidate_weights ? problem.candidate_weights[x] : T(0);
        sum[0] += kept.positive ? e : T(0);
        sum[1] += kept.negative ? e : T(0);
        weight[0] += kept.positive ? w : T(0);
        weight[1] += kept.negative ? w : T(0);
        count[0] += kept.positive ? T(1) : T(0);
        count[1] += kept.negative ? T(1) : T(0);
    }
    reduce<kLanes>(sum, Add{});
    T mean[2] = {T(1), T(1)};
    if (problem.candidate_weights) {
        // A thread counts its own candidates exactly: fewer than 2^24 of them.
        reduce<kLanes>(weight, Add{});
        reduce<kLanes>(count, Add{});
        mean[0] = weight[0] / Max{}(count[0], T(1));
        mean[1] = weight[1] / Max{}(count[1], T(1));
    }
    if (lane == 0) {
        c.positive[row] = mean[0] * log_one_plus(shift[0], sum[0]);
        c.negative[row] = mean[1] * log_one_plus(shift[1], sum[1]);
    }
    if (!c.upstream_positive) return;
    const T positive_factor = -alpha * mean[0] * c.upstream_positive[row * c.upstream_positive_stride] *
                              inverse_one_plus(shift[0], sum[0]);
    const T negative_factor = beta * mean[1] * c.upstream_negative[row * c.upstream_negative_stride] *
                              inverse_one_plus(shift[1], sum[1]);
    for (std::int64_t x = lane; x < c.m; x += kLanes) {
        const PairMember kept = kept_of(member_of(c, row, label, x), s[x], ends, problem.epsilon);
        const T exponent = kept.positive ? alpha * (base - s[x]) - shift[0] : beta * (s[x] - base) - shift[1];
        const T factor = kept.positive ? positive_factor : negative_factor;
        s[x] = kept.positive || kept.negative ? factor * std::exp(exponent) : T(0);
    }
}

}  // namespace

template <class T>
void pair_lse(const PairChunk<T, std::int64_t>& chunk, const PairLSE<T>& problem, std::uintptr_t stream) {
    over_pair_rows("pair_lse", chunk, pair_lse_kernel<T, kWarp>, pair_lse_kernel<T, kPairThreads>, stream,
                   problem);
}

template void pair_lse<float>(const PairChunk<float, std::int64_t>&, const PairLSE<float>&, std::uintptr_t);
template void pair_lse<double>(const PairChunk<double, std::int64_t>&, const PairLSE<double>&,
                               std::uintptr_t);

}  // namespace robustdml::cuda
