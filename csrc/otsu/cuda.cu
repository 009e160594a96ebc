#include "otsu/cuda.h"

#include "common/cuda/device.h"
#include "common/cuda/reduce.h"

namespace robustdml::cuda {
namespace {

constexpr int kThreads = 256;

// The sum of value over the threads before this one; total becomes that over all. Every thread must call.
__device__ __forceinline__ std::int64_t sum_before(std::int64_t value, std::int64_t& total) {
    constexpr int kWarps = kThreads / kWarp;
    __shared__ std::int64_t of_warp[kWarps];
    std::int64_t before = 0, all = value;
    // all is the sum over an aligned group of lanes, which the partner's group doubles.
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
        const std::int64_t partner = __shfl_xor_sync(0xffffffffu, all, offset);
        before += threadIdx.x & offset ? partner : 0;
        all += partner;
    }
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = all;
    __syncthreads();
    total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
        before += w < int(threadIdx.x) / kWarp ? of_warp[w] : 0;
        total += of_warp[w];
    }
    return before;
}

// Batcher's bitonic sort of size values, a power of two; all of them are there when it returns.
template <class T>
__device__ __forceinline__ void sort(T* values, int size) {
    for (int width = 2; width <= size; width *= 2) {
        for (int stride = width / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (int pair = threadIdx.x; pair < size / 2; pair += kThreads) {
                const int first = 2 * pair - (pair & (stride - 1));
                const T a = values[first], b = values[first + stride];
                const bool ascending = (first & width) == 0;
                if (ascending ? b < a : a < b) {
                    values[first] = b;
                    values[first + stride] = a;
                }
            }
        }
    }
    __syncthreads();
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    otsu_kernel(const T* values, int n, int size, int min_group, OtsuOutputs<T> out) {
    __shared__ T sorted[kOtsuLongest<T>];
    const T* row = values + std::int64_t(blockIdx.x) * n;
    int finite[1] = {0};
    for (int j = threadIdx.x; j < size; j += kThreads) {
        const T value = j < n ? row[j] : kInfinity<T>;
        const bool is_finite = value <= kLargest<T> && value >= -kLargest<T>;
        finite[0] += is_finite;
        sorted[j] = is_finite ? value : kInfinity<T>;
    }
    reduce<kThreads>(finite, Add{});
    sort(sorted, size);

    const int count = finite[0];
    const OtsuScale scale =
        otsu_scale(count > 0 ? double(sorted[0]) : 0.0, count > 0 ? double(sorted[count - 1]) : 0.0, count);
    const int each = (size + kThreads - 1) / kThreads;
    const int begin = threadIdx.x * each, end = begin + each < count ? begin + each : count;
    std::int64_t own = 0, total;
    for (int j = begin; j < end; ++j) own += otsu_steps(double(sorted[j]), scale);
    std::int64_t sum = sum_before(own, total);

    double best[1] = {-1.0};
    std::int64_t best_sum = 0;
    int best_i = 0;
    for (int j = begin; j < end; ++j) {
        sum += otsu_steps(double(sorted[j]), scale);
        const int i = j + 1;
        if (i < min_group || count - i < min_group || !(sorted[j] < sorted[j + 1])) continue;
        const double between = otsu_between(sum, total, i, count);
        if (between > best[0]) {
            best[0] = between;
            best_i = i;
            best_sum = sum;
        }
    }
    const double own_best = best[0];
    reduce<kThreads>(best, Max{});
    // The lowest i of those that reach it, as the largest -i; 0 where none was allowed.
    int lowest[1] = {own_best == best[0] ? -best_i : -size};
    reduce<kThreads>(lowest, Max{});

    const int i = -lowest[0];
    if (i > 0 ? best_i != i : threadIdx.x != 0) return;
    const std::int64_t r = blockIdx.x;
    const OtsuOutputs<T> of_row{out.threshold + r, out.low_mean + r, out.high_mean + r,
                                out.index + r,     out.excluded + r, out.found + r};
    otsu_write(of_row, i, count, i > 0 ? sorted[i - 1] : T(0), i > 0 ? sorted[i] : T(0), best_sum, total,
               scale, n - count);
}

}  // namespace

template <class T>
void otsu(const T* values, std::int64_t rows, std::int64_t n, std::int64_t min_group,
          const OtsuOutputs<T>& out, std::uintptr_t stream) {
    if (rows == 0) return;
    if (n > kOtsuLongest<T>) throw std::invalid_argument("otsu: the rows are too long for one block");
    int size = 1;
    while (size < n) size *= 2;
    launch("otsu", otsu_kernel<T>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), stream, values,
           static_cast<int>(n), size, static_cast<int>(min_group < n ? min_group : n), out);
}

template void otsu<float>(const float*, std::int64_t, std::int64_t, std::int64_t, const OtsuOutputs<float>&,
                          std::uintptr_t);
template void otsu<double>(const double*, std::int64_t, std::int64_t, std::int64_t,
                           const OtsuOutputs<double>&, std::uintptr_t);

}  // namespace robustdml::cuda
