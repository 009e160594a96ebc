#include "anchor/cuda.h"

#include <limits>

#include "common/cuda/device.h"
#include "common/cuda/grid.h"
#include "common/cuda/reduce.h"
#include "math/log_sum.h"

// The exponential is the device's own: one instruction of the special-function unit and a few around it,
// which keeps NaN. exp2_fast is made for vector registers; its exponent bits would turn the device's NaN into
// a number.
namespace robustdml::cuda {
namespace {

constexpr int kThreads = 256;
// Blocks per processor that registers are kept free for. Without a number, ptxas aims higher and spills.
constexpr int kBlocks = 2;
// Rows that share one read of the labels and biases, and whose loads are in flight together.
template <class T>
constexpr int kRowsOf = sizeof(T) == 4 ? 4 : 2;  // as many as the registers hold
// Up to this many candidates a warp takes a group of rows; beyond it a block, or too few threads would be
// busy.
constexpr std::int64_t kWarpCandidates = 512;

template <class T>
struct Membership {
    bool positive;  // in X_p+, else in X_p-
    T weight;
};

template <class T>
struct LabelMembership {
    LabelSets sets;
    std::int64_t each;
    const T* weights;
    __device__ __forceinline__ Membership<T> operator()(std::int64_t row, std::int64_t x) const {
        std::int64_t place = x * each;
        const std::int64_t end = place + each, label = sets.first_label + row;
        while (sets.labels[place] != label)
            if (++place == end) return {false, T(1)};
        return {true, weights ? weights[place] : T(1)};
    }
};

template <class T>
struct ConfidenceMembership {
    ConfidenceSets<T> sets;
    __device__ __forceinline__ Membership<T> operator()(std::int64_t row, std::int64_t x) const {
        T value = sets.values[row * sets.anchor_stride + x * sets.candidate_stride];
        if (sets.logits) value = T(1) / (T(1) + std::exp(-value));
        const T weight = T(1) / (T(1) + std::exp(-sets.beta * std::abs(value - sets.threshold)));
        return {value > sets.threshold, weight};
    }
};

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

// A row's sum up to which no shift is needed: exponentials have room below the largest number, and their
// quotient by the sum, times an upstream gradient, above the smallest.
template <class T>
constexpr T kLarge = T(18446744073709551616.0);  // 2^64

// Calls action(r, x, membership, exponent) for the candidates of this lane and the rows first + r of a
// thread. The exponent of a negative above drop_similar_negatives[x] is -inf.
template <int kLanes, class T, class Sets, class Action>
__device__ __forceinline__ void over_candidates(const AnchorChunk<T>& c, const Sets& membership,
                                                std::int64_t first, Action action) {
    constexpr int kRows = kRowsOf<T>;
    T anchor[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
        anchor[r] = c.anchor_bias && first + r < c.rows ? c.anchor_bias[first + r] : T(0);
    for (std::int64_t x = threadIdx.x % kLanes; x < c.B; x += kLanes) {
        T s[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) s[r] = first + r < c.rows ? c.S[(first + r) * c.B + x] : T(0);
        const T positive_bias = c.positive_bias[x], negative_bias = c.negative_bias[x];
        const T limit = c.drop_similar_negatives ? c.drop_similar_negatives[x] : kInfinity<T>;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (first + r >= c.rows) continue;
            const Membership<T> member = membership(first + r, x);
            const T bias = member.positive ? positive_bias : negative_bias + anchor[r];
            const T exponent = (member.positive ? -c.alpha : c.alpha) * s[r] + bias;
            action(r, x, member, s[r] > limit && !member.positive ? -kInfinity<T> : exponent);
        }
    }
}

// sum <- the sums of weight * e^(exponent - shift) of kRowsOf<T> rows: positives, then negatives. A lane adds
// up its own candidates, and the lanes of a row meet once.
template <int kLanes, int kSums, class T, class Sets>
__device__ __forceinline__ void row_sums(const AnchorChunk<T>& c, const Sets& membership, std::int64_t first,
                                         const T (&shift)[kSums], T (&sum)[kSums]) {
    constexpr int kRows = kSums / 2;
#pragma unroll
    for (int v = 0; v < kSums; ++v) sum[v] = T(0);
    over_candidates<kLanes>(
        c, membership, first, [&](int r, std::int64_t, const Membership<T>& member, T exponent) {
            const T e = member.weight * std::exp(exponent - (member.positive ? shift[r] : shift[kRows + r]));
            sum[r] += member.positive ? e : T(0);
            sum[kRows + r] += member.positive ? T(0) : e;
        });
    reduce<kLanes>(sum, Add{});
}

// kLanes threads take kRowsOf<T> rows: once over them for the sums, once more to turn S into its gradient.
// The sums stand beside a 1, so they are made without a shift; those that are too large are made again,
// shifted by the row's largest exponent.
template <class T, class Sets, int kLanes>
__global__ void __launch_bounds__(kThreads, kBlocks) anchor_lse_kernel(AnchorChunk<T> c, Sets membership) {
    constexpr int kRows = kRowsOf<T>;
    const int lane = threadIdx.x % kLanes;
    const std::int64_t first =
        (std::int64_t(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes) * kRows;
    if (first >= c.rows) return;  // a whole warp, never a part of a block that reduces together

    // Positives, then negatives.
    T shift[2 * kRows] = {}, sum[2 * kRows];
    row_sums<kLanes>(c, membership, first, shift, sum);
    bool large = false;
#pragma unroll
    for (int v = 0; v < 2 * kRows; ++v) large = large || sum[v] > kLarge<T>;
    if (large) {                    // the same answer in all threads of the row
        T highest[2 * kRows] = {};  // at least 0, the exponent of the 1
        over_candidates<kLanes>(
            c, membership, first, [&](int r, std::int64_t, const Membership<T>& member, T exponent) {
                highest[r] = Max{}(highest[r], member.positive ? exponent : T(0));
                highest[kRows + r] = Max{}(highest[kRows + r], member.positive ? T(0) : exponent);
            });
        reduce<kLanes>(highest, Max{});
        // Only sums that need it are shifted: what a row gives must not depend on its neighbours.
#pragma unroll
        for (int v = 0; v < 2 * kRows; ++v) shift[v] = sum[v] > kLarge<T> ? highest[v] : T(0);
        row_sums<kLanes>(c, membership, first, shift, sum);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        if (lane != r || first + r >= c.rows) continue;
        c.lse_positive[first + r] = log_one_plus(shift[r], sum[r]);
        c.lse_negative[first + r] = log_one_plus(shift[kRows + r], sum[kRows + r]);
    }
    if (!c.upstream_positive) return;

    T scale[2 * kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        if (first + r >= c.rows) continue;
        scale[r] = -c.alpha * c.upstream_positive[(first + r) * c.upstream_positive_stride] *
                   inverse_one_plus(shift[r], sum[r]);
        scale[kRows + r] = c.alpha * c.upstream_negative[(first + r) * c.upstream_negative_stride] *
                           inverse_one_plus(shift[kRows + r], sum[kRows + r]);
    }
    over_candidates<kLanes>(
        c, membership, first, [&](int r, std::int64_t x, const Membership<T>& member, T exponent) {
            const T e = std::exp(exponent - (member.positive ? shift[r] : shift[kRows + r]));
            c.S[(first + r) * c.B + x] = (member.positive ? scale[r] : scale[kRows + r]) * member.weight * e;
        });
}

// The gradient with respect to a bias is that with respect to S, but for a factor of -alpha or alpha, summed
// over the rows. Block (x, part) sums its 32 columns over its part of the rows.
template <class T, class Sets>
__global__ void __launch_bounds__(kThreads, kBlocks)
    bias_partials_kernel(AnchorChunk<T> c, Sets membership, Partials<T> partials) {
    constexpr int kRowLanes = kThreads / kWarp;
    const std::int64_t x = std::int64_t(blockIdx.x) * kWarp + threadIdx.x;
    const std::int64_t begin = c.rows * blockIdx.y / partials.parts;
    const std::int64_t end = c.rows * (blockIdx.y + 1) / partials.parts;
    T positive = 0, negative = 0;
    if (x < c.B) {
#pragma unroll 4
        for (std::int64_t row = begin + threadIdx.y; row < end; row += kRowLanes) {
            const T g = c.S[row * c.B + x];
            const bool is_positive = membership(row, x).positive;
            positive += is_positive ? g : T(0);
            negative += is_positive ? T(0) : g;
        }
    }
    __shared__ T of_lane[2][kRowLanes][kWarp];
    of_lane[0][threadIdx.y][threadIdx.x] = positive;
    of_lane[1][threadIdx.y][threadIdx.x] = negative;
    __syncthreads();
    if (threadIdx.y >= 2 || x >= c.B) return;
    T total = 0;
#pragma unroll
    for (int lane = 0; lane < kRowLanes; ++lane) total += of_lane[threadIdx.y][lane][threadIdx.x];
    partials.values[(blockIdx.y * 2 + threadIdx.y) * c.B + x] = total;
}

template <class T>
__global__ void __launch_bounds__(kThreads) bias_sum_kernel(AnchorChunk<T> c, Partials<T> partials) {
    const std::int64_t x = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (x >= c.B) return;
    T positive = 0, negative = 0;
#pragma unroll 8
    for (std::int64_t part = 0; part < partials.parts; ++part) {
        positive += partials.values[part * 2 * c.B + x];
        negative += partials.values[(part * 2 + 1) * c.B + x];
    }
    c.dpositive_bias[x] -= positive / c.alpha;
    c.dnegative_bias[x] += negative / c.alpha;
}

template <class T, class Sets>
void anchor_lse(const AnchorChunk<T>& chunk, const Sets& membership, const Partials<T>& partials,
                std::uintptr_t stream) {
    if (chunk.rows == 0) return;
    if (chunk.B <= kWarpCandidates)
        launch("anchor_lse", anchor_lse_kernel<T, Sets, kWarp>,
               blocks(chunk.rows, kThreads / kWarp * kRowsOf<T>), dim3(kThreads), stream, chunk, membership);
    else
        launch("anchor_lse", anchor_lse_kernel<T, Sets, kThreads>, blocks(chunk.rows, kRowsOf<T>),
               dim3(kThreads), stream, chunk, membership);
    if (!chunk.upstream_positive || !chunk.dpositive_bias || chunk.B == 0) return;
    launch("bias_partials", bias_partials_kernel<T, Sets>, blocks(chunk.B, kWarp, partials.parts),
           dim3(kWarp, kThreads / kWarp), stream, chunk, membership, partials);
    launch("bias_sum", bias_sum_kernel<T>, blocks(chunk.B, kThreads), dim3(kThreads), stream, chunk,
           partials);
}

}  // namespace

template <class T>
void anchor_lse_labels(const AnchorChunk<T>& chunk, const LabelSets& sets, const Partials<T>& partials,
                       std::uintptr_t stream) {
    const LabelMembership<T> membership{sets, chunk.labels_each, chunk.label_weights};
    anchor_lse(chunk, membership, partials, stream);
}

template <class T>
void anchor_lse_confidences(const AnchorChunk<T>& chunk, const ConfidenceSets<T>& sets,
                            const Partials<T>& partials, std::uintptr_t stream) {
    anchor_lse(chunk, ConfidenceMembership<T>{sets}, partials, stream);
}

template void anchor_lse_labels<float>(const AnchorChunk<float>&, const LabelSets&, const Partials<float>&,
                                       std::uintptr_t);
template void anchor_lse_labels<double>(const AnchorChunk<double>&, const LabelSets&, const Partials<double>&,
                                        std::uintptr_t);
template void anchor_lse_confidences<float>(const AnchorChunk<float>&, const ConfidenceSets<float>&,
                                            const Partials<float>&, std::uintptr_t);
template void anchor_lse_confidences<double>(const AnchorChunk<double>&, const ConfidenceSets<double>&,
                                             const Partials<double>&, std::uintptr_t);

}  // namespace robustdml::cuda
