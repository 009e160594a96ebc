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

}  // namespace robustdml::cuda
