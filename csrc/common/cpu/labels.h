// Labels as the CPU's epilogues walk them: a class finds its samples without a search over the batch.
#pragma once

#include <cstdint>
#include <tuple>

#include "common/fields.h"

namespace robustdml::cpu {

// X_p+ = candidates labelled p; w = 1.
struct LabelSets {
    const std::int64_t* sorted_labels;  // (B,) in, ascending; (B * K,) where a candidate has K labels
    const std::int64_t* order;          // in: candidate, or candidate * K + j, at each place of sorted_labels
    std::int64_t first_label;           // label of the chunk's first row

    static constexpr auto fields() {
        return std::tuple{
            field("sorted_labels", &LabelSets::sorted_labels),
            field("order", &LabelSets::order),
            field("first_label", &LabelSets::first_label),
        };
    }
};

}  // namespace robustdml::cpu
