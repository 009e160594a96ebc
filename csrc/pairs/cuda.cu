#include "pairs/cuda.h"

#include <cmath>

#include "common/cuda/device.h"
#include "common/cuda/grid.h"
#include "common/cuda/reduce.h"
#include "math/limits.h"
#include "math/log_sum.h"
#include "math/unit_distance.h"
#include "rows/cuda.h"

namespace robustdml::cuda {
namespace {

constexpr int kThreads = 256;
// Blocks per processor that registers are kept free for. Without a number, ptxas aims higher and spills.
constexpr int kBlocks = 2;
// Up to this many candidates a warp takes a row; beyond it a block, or too few threads would be busy.
constexpr std::int64_t kWarpCandidates = 512;

// Which of its anchor's sets a candidate is in; neither for itself and where a label is kAbsent.
struct PairMember {
    bool positive;
    bool negative;
};

template <class T>
__device__ __forceinline__ PairMember member_of(const Pairs<T>& c, std::int64_t row, std::int64_t label,
                                                std::int64_t x) {
    const std::int64_t other = c.candidate_labels[x];
    constexpr std::int64_t absent = kAbsent<std::int64_t>;
    const bool present = label != absent && other != absent && !(c.itself >= 0 && x == c.itself + row);
    return {present && other == label, present && other != label};
}

template <int kLanes>
__device__ __forceinline__ std::int64_t row_of_thread() {
    return std::int64_t(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
}

template <class Chunk, class Kernel, class... Arguments>
void over_pair_rows(const char* name, const Chunk& chunk, Kernel by_warp, Kernel by_block,
                    std::uintptr_t stream, const Arguments&... arguments) {
    if (chunk.rows == 0) return;
    const bool warps = chunk.m <= kWarpCandidates;
    const std::int64_t rows_each = warps ? kThreads / kWarp : 1;
    launch(name, warps ? by_warp : by_block, blocks(chunk.rows, rows_each), dim3(kThreads), stream, chunk,
           arguments...);
}

// Limits of a row's mining: the extrema of its sets, or limits that keep every pair.
template <class T>
struct Extrema {
    T lowest_positive;
    T highest_negative;
};

// Negated comparisons keep a NaN, so that it reaches the result.
template <class T>
__device__ __forceinline__ PairMember informative(PairMember member, T s, const Extrema<T>& ends, T epsilon) {
    return {member.positive && !(s - epsilon >= ends.highest_negative),
            member.negative && !(s + epsilon <= ends.lowest_positive)};
}

// kLanes threads take one row: once for the ends of its sets, once for the sums, once to turn S into its
// gradient. A chunk is sized to stay in L2, so only the first reading may cost memory traffic.
template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads, kBlocks) pair_lse_kernel(Pairs<T> c, PairLSEProblem<T> problem) {
    const int lane = threadIdx.x % kLanes;
    const std::int64_t row = row_of_thread<kLanes>();
    if (row >= c.rows) return;  // a whole warp, never a part of a block that reduces together
    T* s = c.S + row * c.m;
    const std::int64_t label = c.labels[row];
    const T alpha = problem.alpha, beta = problem.beta, base = problem.base;

    Extrema<T> ends{-kInfinity<T>, kInfinity<T>};
    T shift[2] = {T(0), T(0)};
    if (problem.mining || problem.row_max) {
        // Lowest positive, its sign turned, and highest negative: one reduction serves both.
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
        const PairMember pair = informative(member_of(c, row, label, x), s[x], ends, problem.epsilon);
        if (!pair.positive && !pair.negative) continue;
        const T exponent = pair.positive ? alpha * (base - s[x]) - shift[0] : beta * (s[x] - base) - shift[1];
        const T e = std::exp(exponent);
        const T w = problem.candidate_weights ? problem.candidate_weights[x] : T(0);
        sum[0] += pair.positive ? e : T(0);
        sum[1] += pair.negative ? e : T(0);
        weight[0] += pair.positive ? w : T(0);
        weight[1] += pair.negative ? w : T(0);
        count[0] += pair.positive ? T(1) : T(0);
        count[1] += pair.negative ? T(1) : T(0);
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
        const PairMember pair = informative(member_of(c, row, label, x), s[x], ends, problem.epsilon);
        const T exponent = pair.positive ? alpha * (base - s[x]) - shift[0] : beta * (s[x] - base) - shift[1];
        const T factor = pair.positive ? positive_factor : negative_factor;
        s[x] = pair.positive || pair.negative ? factor * std::exp(exponent) : T(0);
    }
}

__device__ __forceinline__ double element_of(const void* rows, std::int64_t element, std::int64_t i) {
    switch (static_cast<Element>(element)) {
        case Element::f16:
            return static_cast<float>(static_cast<const half*>(rows)[i]);
        case Element::bf16:
            return static_cast<float>(static_cast<const bfloat16*>(rows)[i]);
        case Element::f32:
            return static_cast<const float*>(rows)[i];
        default:
            return static_cast<const double*>(rows)[i];
    }
}

template <class T>
__device__ T near_distance(const PairHingeProblem<T>& problem, std::int64_t row, std::int64_t x) {
    const std::int64_t D = problem.D;
    double p_largest = 0, q_largest = 0;
    for (std::int64_t d = 0; d < D; ++d) {
        p_largest =
            Max{}(p_largest, std::abs(element_of(problem.anchors, problem.anchors_element, row * D + d)));
        q_largest =
            Max{}(q_largest, std::abs(element_of(problem.candidates, problem.candidates_element, x * D + d)));
    }
    const double p_scale = 1.0 / p_largest, q_scale = 1.0 / q_largest;
    NearSums sums{0.0, 0.0, 0.0};
    for (std::int64_t d = 0; d < D; ++d) {
        const double u = element_of(problem.anchors, problem.anchors_element, row * D + d) * p_scale;
        const double v = element_of(problem.candidates, problem.candidates_element, x * D + d) * q_scale;
        sums.difference += (u - v) * (u - v);
        sums.radial += (u - v) * (u + v);
        sums.square += u * u;
    }
    return static_cast<T>(unit_distance(sums));
}

// kLanes threads take one row, once: what a pair adds to the gradient is known with the pair.
template <class T, bool Euclidean, int kLanes>
__global__ void __launch_bounds__(kThreads, kBlocks)
    pair_hinge_kernel(Pairs<T> c, PairHingeProblem<T> problem) {
    const int lane = threadIdx.x % kLanes;
    const std::int64_t row = row_of_thread<kLanes>();
    if (row >= c.rows) return;  // a whole warp, never a part of a block that reduces together
    T* s = c.S + row * c.m;
    const std::int64_t label = c.labels[row];
    const bool gradients = c.upstream_positive != nullptr;
    const T positive_gradient = gradients ? -c.upstream_positive[row * c.upstream_positive_stride] : T(0);
    const T negative_gradient = gradients ? c.upstream_negative[row * c.upstream_negative_stride] : T(0);
    // The terms are positive_top - t and t - negative_bottom.
    const T positive_top = problem.positive_margin + problem.positive_offset;
    const T negative_bottom = problem.negative_margin - problem.negative_offset;
    T sum[2] = {T(0), T(0)};
    int count[2] = {0, 0};
    for (std::int64_t x = lane; x < c.m; x += kLanes) {
        const PairMember member = member_of(c, row, label, x);
        T t = s[x], slope = T(1);
        if (Euclidean) {
            const T square = T(2) - T(2) * t;
            T distance = std::sqrt(square < T(0) ? T(0) : square);
            if (distance < problem.near && (member.positive || member.negative))
                distance = near_distance(problem, row, x);
            t = -distance;
            // dt/ds. Asked so that a NaN stays.
            slope = distance <= problem.resolution ? T(0) : T(1) / distance;
        }
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

template <class T>
__device__ __forceinline__ T softplus(T t) {
    return (t > T(0) ? t : T(0)) + std::log1p(std::exp(-std::abs(t)));
}

template <class T>
__device__ __forceinline__ T sigmoid(T t) {
    const T e = std::exp(-std::abs(t));
    return (t < T(0) ? e : T(1)) / (T(1) + e);
}

// kLanes threads take one row: once for the ends of its sets, once for the sums, in the form `each` once more
// for its positives, and once to turn S into its gradient.
template <class T, Contrast kForm, int kLanes>
__global__ void __launch_bounds__(kThreads, kBlocks)
    pair_contrast_kernel(Pairs<T> c, PairContrastProblem<T> problem) {
    const int lane = threadIdx.x % kLanes;
    const std::int64_t row = row_of_thread<kLanes>();
    if (row >= c.rows) return;  // a whole warp, never a part of a block that reduces together
    T* s = c.S + row * c.m;
    const std::int64_t label = c.labels[row];
    const T scale = problem.coefficients[0], bias = problem.coefficients[1];
    constexpr bool kSoftmax = kForm == Contrast::outside || kForm == Contrast::inside;

    T end[2] = {-kInfinity<T>, -kInfinity<T>}, loss[2] = {T(0), T(0)}, number[1] = {T(0)};
    for (std::int64_t x = lane; x < c.m; x += kLanes) {
        const PairMember member = member_of(c, row, label, x);
        const T z = scale * s[x] + bias;
        if (member.positive) end[0] = Max{}(z, end[0]);
        if (member.negative) end[1] = Max{}(z, end[1]);
        number[0] += member.positive ? T(1) : T(0);
        if (kForm == Contrast::sigmoid && (member.positive || member.negative))
            loss[0] += softplus(member.positive ? -z : z);
    }
    reduce<kLanes>(end, Max{});
    reduce<kLanes>(number, Add{});
    const bool some = number[0] > T(0);
    const T count = Max{}(number[0], T(1));
    const T shift = kForm == Contrast::each ? end[1] : Max{}(end[0], end[1]);
    T sum[2] = {T(0), T(0)};  // of all of the logarithm, and of the positives of `inside`
    for (std::int64_t x = lane; kForm != Contrast::sigmoid && x < c.m; x += kLanes) {
        const PairMember member = member_of(c, row, label, x);
        const T z = scale * s[x] + bias;
        if (member.negative || (kSoftmax && member.positive)) sum[0] += std::exp(z - shift);
        if (kForm == Contrast::inside && member.positive) sum[1] += std::exp(z - end[0]);
        // Of differences: a loss near 0 keeps its digits.
        if (kForm == Contrast::outside && member.positive) loss[0] += shift - z;
    }
    reduce<kLanes>(sum, Add{});
    const T lse = sum[0] == T(0) ? -kInfinity<T> : shift + std::log(sum[0]);
    for (std::int64_t x = lane; kForm == Contrast::each && x < c.m; x += kLanes) {
        if (!member_of(c, row, label, x).positive) continue;
        const T t = lse - (scale * s[x] + bias);
        loss[0] += softplus(t);
        loss[1] += sigmoid(t);
    }
    reduce<kLanes>(loss, Add{});
    const T above = loss[1];
    if (lane == 0) {
        T value = loss[0];
        if (kForm == Contrast::outside) value = value / count + std::log(sum[0]);
        if (kForm == Contrast::inside) value = shift - end[0] + std::log(sum[0] / sum[1]) + std::log(count);
        c.positive[row] = kSoftmax && !some ? T(0) : value;
        c.negative[row] = kSoftmax && some ? lse : T(0);
    }
    if (!c.upstream_positive) return;
    const T upstream = c.upstream_positive[row * c.upstream_positive_stride];
    const T of_lse = c.upstream_negative[row * c.upstream_negative_stride];
    T dcoefficients[2] = {T(0), T(0)};
    for (std::int64_t x = lane; x < c.m; x += kLanes) {
        const PairMember member = member_of(c, row, label, x);
        const T z = scale * s[x] + bias;
        T dz = T(0);
        if (kForm == Contrast::sigmoid && (member.positive || member.negative))
            dz = upstream * (member.positive ? -sigmoid(-z) : sigmoid(z));
        if (kForm == Contrast::each && member.negative) dz = upstream * above * std::exp(z - shift) / sum[0];
        if (kForm == Contrast::each && member.positive) dz = -upstream * sigmoid(lse - z);
        if (kSoftmax && some && (member.positive || member.negative)) {
            const T share = std::exp(z - shift) / sum[0];
            dz = share * (upstream + of_lse);
            if (member.positive)
                dz -= upstream * (kForm == Contrast::inside ? std::exp(z - end[0]) / sum[1] : T(1) / count);
            if (problem.column_lse) dz += problem.column_upstream[x] * std::exp(z - problem.column_lse[x]);
        }
        dcoefficients[0] += dz * s[x];
        dcoefficients[1] += dz;
        s[x] = dz * scale;
    }
    reduce<kLanes>(dcoefficients, Add{});
    if (lane != 0) return;
    problem.dscale[row] = dcoefficients[0];
    problem.dbias[row] = dcoefficients[1];
}

template <class T, Contrast kForm>
void contrast_of(const Pairs<T>& chunk, const PairContrastProblem<T>& problem, std::uintptr_t stream) {
    over_pair_rows("pair_contrast", chunk, pair_contrast_kernel<T, kForm, kWarp>,
                   pair_contrast_kernel<T, kForm, kThreads>, stream, problem);
}

}  // namespace

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairContrastProblem<T>& problem, std::uintptr_t stream) {
    switch (static_cast<Contrast>(problem.form)) {
        case Contrast::outside:
            return contrast_of<T, Contrast::outside>(chunk, problem, stream);
        case Contrast::inside:
            return contrast_of<T, Contrast::inside>(chunk, problem, stream);
        case Contrast::each:
            return contrast_of<T, Contrast::each>(chunk, problem, stream);
        default:
            return contrast_of<T, Contrast::sigmoid>(chunk, problem, stream);
    }
}

template void pair_sums<float>(const Pairs<float>&, const PairContrastProblem<float>&, std::uintptr_t);
template void pair_sums<double>(const Pairs<double>&, const PairContrastProblem<double>&, std::uintptr_t);

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairLSEProblem<T>& problem, std::uintptr_t stream) {
    over_pair_rows("pair_lse", chunk, pair_lse_kernel<T, kWarp>, pair_lse_kernel<T, kThreads>, stream,
                   problem);
}

template void pair_sums<float>(const Pairs<float>&, const PairLSEProblem<float>&, std::uintptr_t);
template void pair_sums<double>(const Pairs<double>&, const PairLSEProblem<double>&, std::uintptr_t);

template <class T>
void pair_sums(const Pairs<T>& chunk, const PairHingeProblem<T>& problem, std::uintptr_t stream) {
    if (problem.euclidean)
        over_pair_rows("pair_hinge", chunk, pair_hinge_kernel<T, true, kWarp>,
                       pair_hinge_kernel<T, true, kThreads>, stream, problem);
    else
        over_pair_rows("pair_hinge", chunk, pair_hinge_kernel<T, false, kWarp>,
                       pair_hinge_kernel<T, false, kThreads>, stream, problem);
}

template void pair_sums<float>(const Pairs<float>&, const PairHingeProblem<float>&, std::uintptr_t);
template void pair_sums<double>(const Pairs<double>&, const PairHingeProblem<double>&, std::uintptr_t);

}  // namespace robustdml::cuda
