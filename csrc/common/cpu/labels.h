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

// Labels (count,) in ascending order, and the place of each among `labels`, equal ones by their place.
// Returns the number of distinct labels.
std::int64_t sort_labels(const std::int64_t* labels, std::int64_t count, std::int64_t* sorted,
                         std::int64_t* order);

}  // namespace robustdml::cpu
