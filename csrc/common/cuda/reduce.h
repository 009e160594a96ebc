// Reductions over the threads that share a row, in an order that never changes: the same bits every time.
#pragma once

#include "common/cuda/device.h"

namespace robustdml::cuda {

constexpr int kWarp = 32;

struct Add {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a + b;
    }
};

struct Max {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a > b ? a : b;
    }
};

// values[v] <- the reduction of values[v] over the kLanes threads of a row, for all of them. kLanes is a
// warp, or the block; in the latter case every thread of the block must call.
template <int kLanes, int kValues, class T, class Op>
__device__ __forceinline__ void reduce(T (&values)[kValues], Op op) {
#pragma unroll
    for (int v = 0; v < kValues; ++v)
#pragma unroll
        for (int offset = kWarp / 2; offset > 0; offset /= 2)
            values[v] = op(values[v], __shfl_xor_sync(0xffffffffu, values[v], offset));
    if constexpr (kLanes > kWarp) {
        constexpr int kWarps = kLanes / kWarp;
        __shared__ T of_warp[kWarps][kValues];
        __syncthreads();  // the last call's readers are done
        if (threadIdx.x % kWarp == 0) {
#pragma unroll
            for (int v = 0; v < kValues; ++v) of_warp[threadIdx.x / kWarp][v] = values[v];
        }
        __syncthreads();
#pragma unroll
        for (int v = 0; v < kValues; ++v) {
            values[v] = of_warp[0][v];
#pragma unroll
            for (int w = 1; w < kWarps; ++w) values[v] = op(values[v], of_warp[w][v]);
        }
    }
}

}  // namespace robustdml::cuda
