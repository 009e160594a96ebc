#include "classes/cuda.h"

#include <type_traits>

#include "common/cuda/device.h"
#include "common/cuda/grid.h"
#include "common/cuda/reduce.h"
#include "math/limits.h"
#include "math/log_sum.h"

// A thread keeps to its column, and 32 columns side by side make whole cache lines of every row. The 8 warps
// of a block take every 8th class of the block's part.
namespace robustdml::cuda {
namespace {

constexpr int kLanes = 8;
constexpr int kThreads = kWarp * kLanes;
// Blocks per processor that registers are kept free for.
constexpr int kBlocks = 2;
// Classes whose loads are in flight together.
constexpr int kAhead = 4;

template <class T>
struct Pooled {
    T value;   // the similarity with the whole class
    T choice;  // max: number of the largest centre; softmax: the largest similarity
    T total;   // softmax: sum of exp((s - largest) / gamma)
};

template <class T, Pooling kPooling>
__device__ __forceinline__ Pooled<T> pool(const ClassChunk<T>& c, const T* s) {
    Pooled<T> pooled = {s[0], kPooling == Pooling::max ? T(0) : s[0], T(1)};
    if constexpr (kPooling == Pooling::max) {
        for (std::int64_t h = 1; h < c.centers; ++h) {
            const T value = s[h * c.B];
            // The first of equal ones; and a NaN, once met, stays.
            if (value <= pooled.value || pooled.value != pooled.value) continue;
            pooled.value = value;
            pooled.choice = static_cast<T>(h);
        }
    } else if constexpr (kPooling == Pooling::softmax) {
        for (std::int64_t h = 1; h < c.centers; ++h) {
            const T value = s[h * c.B], above = value - pooled.choice;
            const T e = std::exp(-std::abs(above) / c.gamma);
            const bool larger = above > T(0);
            pooled.total = larger ? pooled.total * e + T(1) : pooled.total + e;
            pooled.value = larger ? pooled.value * e + value : pooled.value + e * value;
            pooled.choice = larger ? value : pooled.choice;
        }
        pooled.value /= pooled.total;
    }
    return pooled;
}

template <class T>
__device__ __forceinline__ T logit(const ClassChunk<T>& c, std::int64_t k, T similarity) {
    return c.scale[k * c.scale_stride] * similarity + (c.bias ? c.bias[k] : T(0));
}

// Which of its K labels class k of the chunk is to sample x, or -1; `own` is the first of them.
template <class T>
__device__ __forceinline__ std::int64_t label_place(const ClassChunk<T>& c, const LabelSets& labels,
                                                    std::int64_t x, std::int64_t own, std::int64_t k) {
    if (k == own) return 0;
    for (std::int64_t j = 1; j < c.labels_each; ++j)
        if (labels.labels[x * c.labels_each + j] == labels.first_label + k) return j;
    return -1;
}

template <class T, Pooling kPooling>
__global__ void __launch_bounds__(kThreads, kBlocks)
    class_partials_kernel(ClassChunk<T> c, LabelSets labels, T* target, Partials<T> partials) {
    const std::int64_t x = std::int64_t(blockIdx.x) * kWarp + threadIdx.x;
    const std::int64_t begin = c.classes * blockIdx.y / partials.parts;
    const std::int64_t end = c.classes * (blockIdx.y + 1) / partials.parts;
    // Finite, so that the exponent -inf of a masked class never meets a shift of -inf.
    T shift = -kLargest<T>, sum = 0, weighted = 0;
    if (x < c.B) {
        const std::int64_t own = labels.labels[x * c.labels_each] - labels.first_label;
        const T limit = c.drop_similar_negatives ? c.drop_similar_negatives[x] : kInfinity<T>;
        for (std::int64_t first = begin + threadIdx.y; first < end; first += kLanes * kAhead) {
            T similarities[kAhead];
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                const std::int64_t k = first + i * kLanes;
                similarities[i] = k < end ? pool<T, kPooling>(c, c.S + k * c.centers * c.B + x).value : T(0);
            }
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                const std::int64_t k = first + i * kLanes;
                if (k >= end) continue;
                const std::int64_t j = label_place(c, labels, x, own, k);
                const T value = logit(c, k, similarities[i]);
                if (j >= 0)
                    target[x * c.labels_each + j] = value;
                else if (!(similarities[i] > limit))
                    add_exponential(shift, sum, value, T(1));
                if (j < 0 && c.logit_weights) weighted += c.logit_weights[k] * value;
            }
        }
    }
    __shared__ T of_lane[3][kLanes][kWarp];
    of_lane[0][threadIdx.y][threadIdx.x] = shift;
    of_lane[1][threadIdx.y][threadIdx.x] = sum;
    of_lane[2][threadIdx.y][threadIdx.x] = weighted;
    __syncthreads();
    if (threadIdx.y > 0 || x >= c.B) return;
    T largest = shift, total = 0;
#pragma unroll
    for (int lane = 1; lane < kLanes; ++lane) largest = Max{}(largest, of_lane[0][lane][threadIdx.x]);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane)
        total += of_lane[1][lane][threadIdx.x] * std::exp(of_lane[0][lane][threadIdx.x] - largest);
    T* values = partials.values + std::int64_t(blockIdx.y) * (c.logit_weights ? 3 : 2) * c.B + x;
    values[0] = largest;
    values[c.B] = total;
    if (!c.logit_weights) return;
#pragma unroll
    for (int lane = 1; lane < kLanes; ++lane) weighted += of_lane[2][lane][threadIdx.x];
    values[2 * c.B] = weighted;
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    class_sums_kernel(std::int64_t B, Partials<T> partials, ClassSums<T> sums) {
    const std::int64_t x = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (x >= B) return;
    const std::int64_t stride = (sums.weighted ? 3 : 2) * B;
    const double before = sums.shift[x];
    double largest = before;
#pragma unroll 8
    for (std::int64_t part = 0; part < partials.parts; ++part)
        largest = Max{}(largest, double(partials.values[part * stride + x]));
    double total = sums.total[x] * std::exp(before - largest);
#pragma unroll 8
    for (std::int64_t part = 0; part < partials.parts; ++part)
        total += double(partials.values[part * stride + B + x]) *
                 double(std::exp(static_cast<T>(partials.values[part * stride + x] - largest)));
    sums.shift[x] = largest;
    sums.total[x] = total;
    for (std::int64_t part = 0; sums.weighted && part < partials.parts; ++part)
        sums.weighted[x] += double(partials.values[part * stride + 2 * B + x]);
}

template <class T, Pooling kPooling>
__global__ void __launch_bounds__(kThreads, kBlocks)
    class_backward_kernel(ClassChunk<T> c, LabelSets labels, ClassUpstream<T> upstream, std::int64_t parts) {
    const std::int64_t x = std::int64_t(blockIdx.x) * kWarp + threadIdx.x;
    if (x >= c.B) return;
    const std::int64_t begin = c.classes * blockIdx.y / parts;
    const std::int64_t end = c.classes * (blockIdx.y + 1) / parts;
    const std::int64_t own = labels.labels[x * c.labels_each] - labels.first_label;
    const T lse = upstream.lse[x], dlse = upstream.dlse[x];
    const T limit = c.drop_similar_negatives ? c.drop_similar_negatives[x] : kInfinity<T>;
#pragma unroll(kPooling == Pooling::none ? kAhead : 1)
    for (std::int64_t k = begin + threadIdx.y; k < end; k += kLanes) {
        T* s = c.S + k * c.centers * c.B + x;
        const Pooled<T> pooled = pool<T, kPooling>(c, s);
        const std::int64_t j = label_place(c, labels, x, own, k);
        T gradient = 0;
        if (j >= 0)
            gradient = c.scale[k * c.scale_stride] * upstream.dlogit[x * c.labels_each + j];
        else if (!(pooled.value > limit))
            gradient = c.scale[k * c.scale_stride] * dlse * std::exp(logit(c, k, pooled.value) - lse);
        if (j < 0 && upstream.dweighted)
            gradient += c.scale[k * c.scale_stride] * c.logit_weights[k] * upstream.dweighted[x];
        if constexpr (kPooling == Pooling::none) {
            s[0] = gradient;
        } else {
            for (std::int64_t h = 0; h < c.centers; ++h) {
                T& value = s[h * c.B];
                if constexpr (kPooling == Pooling::max) {
                    value = static_cast<T>(h) == pooled.choice ? gradient : T(0);
                } else {
                    const T weight = std::exp((value - pooled.choice) / c.gamma) / pooled.total;
                    value = gradient * weight * (T(1) + (value - pooled.value) / c.gamma);
                }
            }
        }
    }
}

// Calls action with the pooling as a constant.
template <class Action>
void with_pooling(Pooling pooling, Action action) {
    switch (pooling) {
        case Pooling::none:
            return action(std::integral_constant<Pooling, Pooling::none>());
        case Pooling::max:
            return action(std::integral_constant<Pooling, Pooling::max>());
        case Pooling::softmax:
            return action(std::integral_constant<Pooling, Pooling::softmax>());
    }
}

}  // namespace

template <class T>
void class_lse(const ClassChunk<T>& chunk, const LabelSets& labels, const ClassSums<T>& sums,
               const Partials<T>& partials, std::uintptr_t stream) {
    if (chunk.B == 0 || chunk.classes == 0) return;
    with_pooling(chunk.pooling, [&](auto pooling) {
        launch("class_partials", class_partials_kernel<T, pooling>, blocks(chunk.B, kWarp, partials.parts),
               dim3(kWarp, kLanes), stream, chunk, labels, sums.target, partials);
    });
    launch("class_sums", class_sums_kernel<T>, blocks(chunk.B, kThreads), dim3(kThreads), stream, chunk.B,
           partials, sums);
}

template <class T>
void class_lse_backward(const ClassChunk<T>& chunk, const LabelSets& labels, const ClassUpstream<T>& upstream,
                        std::int64_t parts, std::uintptr_t stream) {
    if (chunk.B == 0 || chunk.classes == 0) return;
    with_pooling(chunk.pooling, [&](auto pooling) {
        launch("class_backward", class_backward_kernel<T, pooling>, blocks(chunk.B, kWarp, parts),
               dim3(kWarp, kLanes), stream, chunk, labels, upstream, parts);
    });
}

template void class_lse<float>(const ClassChunk<float>&, const LabelSets&, const ClassSums<float>&,
                               const Partials<float>&, std::uintptr_t);
template void class_lse<double>(const ClassChunk<double>&, const LabelSets&, const ClassSums<double>&,
                                const Partials<double>&, std::uintptr_t);
template void class_lse_backward<float>(const ClassChunk<float>&, const LabelSets&,
                                        const ClassUpstream<float>&, std::int64_t, std::uintptr_t);
template void class_lse_backward<double>(const ClassChunk<double>&, const LabelSets&,
                                         const ClassUpstream<double>&, std::int64_t, std::uintptr_t);

}  // namespace robustdml::cuda
