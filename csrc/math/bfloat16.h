// bfloat16, the upper half of a float.
#pragma once

#include <cstdint>
#include <cstring>

#include "math/portable.h"

namespace robustdml {

ROBUSTDML_HD float from_bfloat16(std::uint16_t upper) {
    const std::uint32_t bits = std::uint32_t(upper) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The nearest, of two the even one; NaN stays NaN.
ROBUSTDML_HD std::uint16_t to_bfloat16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) return std::uint16_t((bits >> 16) | 0x40u);
    return std::uint16_t((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// The lowest 16 bits of `random` are added below it before the lower half goes, so it rounds up as often as
// it is above.
ROBUSTDML_HD std::uint16_t round_at_random(float value, std::uint64_t random) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return std::uint16_t((bits + (std::uint32_t(random) & 0xFFFFu)) >> 16);
}

}  // namespace robustdml
