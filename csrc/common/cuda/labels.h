// Labels as the kernels read them: each candidate its own.
#pragma once

#include <cstdint>

namespace robustdml::cuda {

// X_p+ = candidates labelled p; w = 1.
struct LabelSets {
    const std::int64_t* labels;  // (B,) in
    std::int64_t first_label;    // label of the chunk's first row
};

}  // namespace robustdml::cuda
