#include "common/cuda.h"

#include "common/cuda/device.h"

namespace robustdml::cuda {

int runtime_version() {
    return CUDART_VERSION;
}

int driver_version() {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

void set_device(int index) {
    const cudaError_t error = cudaSetDevice(index);
    if (error != cudaSuccess)
        throw std::runtime_error("CUDA device " + std::to_string(index) +
                                 " could not be made current: " + cudaGetErrorString(error));
}

}  // namespace robustdml::cuda
