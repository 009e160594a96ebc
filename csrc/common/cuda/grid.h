// How many blocks a launch takes.
#pragma once

#include <cstdint>

#include "common/cuda/device.h"

namespace robustdml::cuda {

// Blocks of `per_block` that cover `count`; `parts` of them side by side in y.
inline dim3 blocks(std::int64_t count, std::int64_t per_block, std::int64_t parts = 1) {
    return dim3(static_cast<unsigned>((count + per_block - 1) / per_block), static_cast<unsigned>(parts));
}

}  // namespace robustdml::cuda
