// Labels as the kernels read them: each candidate its own.
#pragma once

#include <cstdint>
#include <tuple>

#include "common/fields.h"

namespace robustdml::cuda {

// X_p+ = candidates labelled p; w = 1.
struct LabelSets {
    const std::int64_t* labels;  // (B,) in; (B, K) where a candidate has K labels
    std::int64_t first_label;    // label of the chunk's first row

    static constexpr auto fields() {
        return std::tuple{
            field("labels", &LabelSets::labels),
            field("first_label", &LabelSets::first_label),
        };
    }
};

}  // namespace robustdml::cuda
