// Partial sums: each block sums a part of a chunk's rows, and one kernel adds the parts.
#pragma once

#include <cstdint>
#include <tuple>

#include "common/fields.h"

namespace robustdml::cuda {

// Two sums of each part and column, added in order: no atomics, so the same call gives the same bits.
template <class T>
struct Partials {
    T* values;           // (parts, 2, B) scratch, or null
    std::int64_t parts;  // at most 65535

    static constexpr auto fields() {
        return std::tuple{
            field("partials", &Partials::values),
            field("parts", &Partials::parts),
        };
    }
};

}  // namespace robustdml::cuda
