// The element types, launches and reductions that the kernels share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace robustdml::cuda {

using half = __half;
using bfloat16 = __nv_bfloat16;

// A stream is a pointer; Python hands it over as an address. Nothing waits for the kernel: errors that it
// meets while it runs surface at the caller's next synchronisation, as those of any other kernel.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, std::uintptr_t stream,
            Arguments&&... arguments) {
    kernel<<<grid, block, 0, reinterpret_cast<cudaStream_t>(stream)>>>(std::forward<Arguments>(arguments)...);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        throw std::runtime_error(std::string("CUDA kernel ") + name +
                                 " could not be launched: " + cudaGetErrorString(error));
}

}  // namespace robustdml::cuda
