// How the CPU's functions share their work among threads.
#pragma once

#include <cstdint>

namespace robustdml::cpu {

// range(begin, end) for one part of 0 ... count a thread, side by side where that is `worthwhile`. Which part
// is whose depends on count and threads alone: the same call gives the same bits.
template <class Range>
void in_parts(std::int64_t count, int threads, bool worthwhile, Range range) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && worthwhile)
    for (int t = 0; t < threads; ++t) range(count * t / threads, count * (t + 1) / threads);
}

}  // namespace robustdml::cpu
