// Floating-point numbers as keys whose order as unsigned integers is that of the numbers, and their sort.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "math/exp.h"
#include "math/limits.h"
#include "math/portable.h"

namespace robustdml::cpu {

template <class T>
using Key = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

// Above every finite number's key.
template <class K>
constexpr K kLastKey = ~K(0);

// NaN and the infinities are last.
template <class T>
ROBUSTDML_HD Key<T> key_of(T value) {
    constexpr Key<T> kSign = Key<T>(1) << (8 * sizeof(T) - 1);
    const Key<T> bits = bits_of<Key<T>>(value);
    const bool finite = value <= kLargest<T> && value >= -kLargest<T>;
    return finite ? bits ^ (bits & kSign ? kLastKey<Key<T>> : kSign) : kLastKey<Key<T>>;
}

// The finite number whose key this is.
template <class T>
ROBUSTDML_HD T value_of(Key<T> key) {
    constexpr Key<T> kSign = Key<T>(1) << (8 * sizeof(T) - 1);
    return bits_of<T>(key ^ (key & kSign ? kSign : kLastKey<Key<T>>));
}

// Sorts by bytes, the lowest first, on one thread. One pass counts all bytes: few values of a byte would
// make each increment of a pass of its own wait for the last. Returns where the sorted keys are: in keys or
// in scratch.
template <class K>
K* sort_by_bytes(K* keys, K* scratch, std::int64_t count) {
    std::int32_t counts[sizeof(K)][256] = {};
    for (std::int64_t i = 0; i < count; ++i)
        for (std::size_t b = 0; b < sizeof(K); ++b) ++counts[b][(keys[i] >> (8 * b)) & 255];
    for (std::size_t b = 0; b < sizeof(K); ++b) {
        if (counts[b][(keys[0] >> (8 * b)) & 255] == count) continue;  // all keys share it
        std::int32_t before = 0;
        for (std::int32_t& place : counts[b]) before += std::exchange(place, before);
        for (std::int64_t i = 0; i < count; ++i) scratch[counts[b][(keys[i] >> (8 * b)) & 255]++] = keys[i];
        std::swap(keys, scratch);
    }
    return keys;
}

// The same by digits of 11 bits, in parts of one thread each.
template <class K>
K* sort_by_digits(K* keys, K* scratch, std::int64_t count, int threads) {
    constexpr int kBits = 11, kBuckets = 1 << kBits;
    std::vector<std::int64_t> counts(std::size_t(threads) * kBuckets);
    for (int shift = 0; shift < int(8 * sizeof(K)); shift += kBits) {
        const auto digit = [shift](K key) { return std::size_t(key >> shift) & (kBuckets - 1); };
        counts.assign(counts.size(), 0);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
        for (int t = 0; t < threads; ++t) {
            std::int64_t* mine = counts.data() + std::size_t(t) * kBuckets;
            for (std::int64_t i = count * t / threads; i < count * (t + 1) / threads; ++i)
                ++mine[digit(keys[i])];
        }
        std::int64_t before = 0, largest = 0;
        for (int bucket = 0; bucket < kBuckets; ++bucket) {
            const std::int64_t first = before;
            for (int t = 0; t < threads; ++t)
                before += std::exchange(counts[std::size_t(t) * kBuckets + bucket], before);
            largest = largest < before - first ? before - first : largest;
        }
        if (largest == count) continue;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
        for (int t = 0; t < threads; ++t) {
            std::int64_t* place = counts.data() + std::size_t(t) * kBuckets;
            for (std::int64_t i = count * t / threads; i < count * (t + 1) / threads; ++i)
                scratch[place[digit(keys[i])]++] = keys[i];
        }
        std::swap(keys, scratch);
    }
    return keys;
}

// Few keys are compared; from some on it costs less to count through few buckets, then through many.
template <class K>
K* radix_sort(K* keys, K* scratch, std::int64_t count, int threads) {
    if (count < 128) {
        std::sort(keys, keys + count);
        return keys;
    }
    return count < 8192 ? sort_by_bytes(keys, scratch, count) : sort_by_digits(keys, scratch, count, threads);
}

}  // namespace robustdml::cpu
