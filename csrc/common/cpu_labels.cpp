#include <algorithm>
#include <utility>
#include <vector>

#include "common/cpu/labels.h"

namespace robustdml::cpu {

std::int64_t sort_labels(const std::int64_t* labels, std::int64_t count, std::int64_t* sorted,
                         std::int64_t* order) {
    std::vector<std::pair<std::int64_t, std::int64_t>> places(count);
    for (std::int64_t i = 0; i < count; ++i) places[i] = {labels[i], i};
    std::sort(places.begin(), places.end());
    std::int64_t distinct = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        std::tie(sorted[i], order[i]) = places[i];
        distinct += i == 0 || sorted[i] != sorted[i - 1];
    }
    return distinct;
}

}  // namespace robustdml::cpu
