#include "anchor/cuda.h"

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
    __device__ __forceinline__ Membership<T> operator()(std::int64_t row, std::int64_t x) const {
        return {sets.labels[x] == sets.first_label + row, T(1)};
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

// kLanes threads take kRowsOf<T> rows: once over them for the sums, once more to turn S into its gradient. A
// chunk is sized to stay in L2, so the second reading costs no memory traffic.
template <class T, class Sets, int kLanes>
__global__ void __launch_bounds__(kThreads, kBlocks) anchor_lse_kernel(AnchorChunk<T> c, Sets membership) {
    constexpr int kRows = kRowsOf<T>;
    const int lane = threadIdx.x % kLanes;
    const std::int64_t first =
        (std::int64_t(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes) * kRows;
    if (first >= c.rows) return;  // a whole warp, never a part of a block that reduces together
    const std::int64_t B = c.B;
    const T alpha = c.alpha;

    T anchor[kRows];
    // Positives, then negatives.
    T shift[2 * kRows], sum[2 * kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        anchor[r] = c.anchor_bias && first + r < c.rows ? c.anchor_bias[first + r] : T(0);
        shift[r] = shift[kRows + r] = sum[r] = sum[kRows + r] = T(0);
    }
    for (std::int64_t x = lane; x < B; x += kLanes) {
        T s[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) s[r] = first + r < c.rows ? c.S[(first + r) * B + x] : T(0);
        const T negative_bias = c.negative_bias[x];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (first + r >= c.rows) continue;
            const Membership<T> member = membership(first + r, x);
            if (member.positive)
                add_exponential(shift[r], sum[r], c.positive_bias[x] - alpha * s[r], member.weight);
            else
                add_exponential(shift[kRows + r], sum[kRows + r], negative_bias + anchor[r] + alpha * s[r],
                                member.weight);
        }
    }
    // One exponential a thread: first the maximum of all, then the sums brought to it.
    T row_shift[2 * kRows];
#pragma unroll
    for (int v = 0; v < 2 * kRows; ++v) row_shift[v] = shift[v];
    reduce<kLanes>(row_shift, Max{});
#pragma unroll
    for (int v = 0; v < 2 * kRows; ++v) sum[v] *= std::exp(shift[v] - row_shift[v]);
    reduce<kLanes>(sum, Add{});
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        if (lane != r || first + r >= c.rows) continue;
        c.lse_positive[first + r] = log_one_plus(row_shift[r], sum[r]);
        c.lse_negative[first + r] = log_one_plus(row_shift[kRows + r], sum[kRows + r]);
    }
    if (!c.upstream_positive) return;

    T scale[2 * kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        if (first + r >= c.rows) continue;
        scale[r] = -alpha * c.upstream_positive[(first + r) * c.upstream_positive_stride] *
                   inverse_one_plus(row_shift[r], sum[r]);
        scale[kRows + r] = alpha * c.upstream_negative[(first + r) * c.upstream_negative_stride] *
                           inverse_one_plus(row_shift[kRows + r], sum[kRows + r]);
    }
    for (std::int64_t x = lane; x < B; x += kLanes) {
        T s[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) s[r] = first + r < c.rows ? c.S[(first + r) * B + x] : T(0);
        const T negative_bias = c.negative_bias[x];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (first + r >= c.rows) continue;
            const Membership<T> member = membership(first + r, x);
            const T exponent = member.positive
                                   ? c.positive_bias[x] - alpha * s[r] - row_shift[r]
                                   : negative_bias + anchor[r] + alpha * s[r] - row_shift[kRows + r];
            const T factor = member.positive ? scale[r] : scale[kRows + r];
            c.S[(first + r) * B + x] = factor * member.weight * std::exp(exponent);
        }
    }
}

// The gradient with respect to a bias is that with respect to S, but for a factor of -alpha or alpha, summed
// over the rows. Block (x, part) sums its 32 columns over its part of the rows.
template <class T, class Sets>
__global__ void __launch_bounds__(kThreads, kBlocks)
    bias_partials_kernel(AnchorChunk<T> c, Sets membership, BiasPartials<T> partials) {
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
__global__ void __launch_bounds__(kThreads) bias_sum_kernel(AnchorChunk<T> c, BiasPartials<T> partials) {
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
void anchor_lse(const AnchorChunk<T>& chunk, const Sets& membership, const BiasPartials<T>& partials,
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
void anchor_lse_labels(const AnchorChunk<T>& chunk, const LabelSets& sets, const BiasPartials<T>& partials,
                       std::uintptr_t stream) {
    anchor_lse(chunk, LabelMembership<T>{sets}, partials, stream);
}

template <class T>
void anchor_lse_confidences(const AnchorChunk<T>& chunk, const ConfidenceSets<T>& sets,
                            const BiasPartials<T>& partials, std::uintptr_t stream) {
    anchor_lse(chunk, ConfidenceMembership<T>{sets}, partials, stream);
}

template void anchor_lse_labels<float>(const AnchorChunk<float>&, const LabelSets&,
                                       const BiasPartials<float>&, std::uintptr_t);
template void anchor_lse_labels<double>(const AnchorChunk<double>&, const LabelSets&,
                                        const BiasPartials<double>&, std::uintptr_t);
template void anchor_lse_confidences<float>(const AnchorChunk<float>&, const ConfidenceSets<float>&,
                                            const BiasPartials<float>&, std::uintptr_t);
template void anchor_lse_confidences<double>(const AnchorChunk<double>&, const ConfidenceSets<double>&,
                                             const BiasPartials<double>&, std::uintptr_t);

}  // namespace robustdml::cuda
