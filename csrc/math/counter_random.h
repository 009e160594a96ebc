// Random numbers by counter: the n-th word of a stream is a function of its key and n, so any of them can be
// had in any order, and a seed gives the same numbers everywhere. The function is SplitMix64 (Steele, Lea,
// Flood: Fast Splittable Pseudorandom Number Generators, 2014), whose state is a counter by construction.
#pragma once

#include <cstdint>

#include "math/portable.h"

namespace robustdml {

ROBUSTDML_HD std::uint64_t mix_bits(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// Key of a stream of a seed. Mixed: streams of neighbouring keys would be shifts of each other.
ROBUSTDML_HD std::uint64_t random_key(std::uint64_t seed, std::uint64_t stream) {
    return mix_bits(mix_bits(seed) + stream);
}

ROBUSTDML_HD std::uint64_t random_word(std::uint64_t key, std::uint64_t n) {
    return mix_bits(key + (n + 1) * 0x9E3779B97F4A7C15u);
}

// Uniform on [0, 1), a multiple of 2^-53.
ROBUSTDML_HD double random_unit(std::uint64_t word) {
    return static_cast<double>(static_cast<std::int64_t>(word >> 11)) * 0x1p-53;
}

// Uniform on 0 .. bound − 1. The product of 53 bits below 1 and a bound below 2^53 never rounds up to the
// bound.
ROBUSTDML_HD std::int64_t scale_unit(double unit, std::int64_t bound) {
    return static_cast<std::int64_t>(unit * static_cast<double>(bound));
}

}  // namespace robustdml
