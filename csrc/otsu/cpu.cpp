#include "otsu/cpu.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "common/cpu/clones.h"
#include "lambert_w/cpu.h"
#include "otsu/radix_sort.h"

namespace robustdml::cpu {
namespace {

constexpr std::int64_t kBlock = 512;
// From this many values on the threads share a row; below, they are faster alone than they start.
constexpr std::int64_t kShared = 262144;

// The best cut of a part of a row.
struct Best {
    double between = -1;
    std::int64_t i = 0;    // 0: none
    std::int64_t sum = 0;  // C_i
};

// Settings of a row, the same for all its parts.
struct Row {
    std::int64_t n, min_group, total;
    OtsuScale scale;
};

template <class T>
ROBUSTDML_HD std::int64_t sum_of_steps(const Key<T>* sorted, const OtsuScale& scale, std::int64_t begin,
                                       std::int64_t end) {
    std::int64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = begin; j < end; ++j) sum += otsu_steps(double(value_of<T>(sorted[j])), scale);
    return sum;
}

// The best of the cuts after the values begin ... end - 1 (from 0), before which C is sum.
template <class T>
ROBUSTDML_HD Best best_cut(const Key<T>* sorted, const Row& row, std::int64_t sum, std::int64_t begin,
                           std::int64_t end) {
    std::int64_t sums[kBlock];
    double between[kBlock];
    Best best;
    for (std::int64_t first = begin; first < end; first += kBlock) {
        const std::int64_t count = std::min(kBlock, end - first);
        const Key<T>* keys = sorted + first;
#pragma omp simd
        for (std::int64_t j = 0; j < count; ++j)
            sums[j] = otsu_steps(double(value_of<T>(keys[j])), row.scale);
        for (std::int64_t j = 0; j < count; ++j) sums[j] = sum += sums[j];
        double largest = -1;
#pragma omp simd reduction(max : largest)
        for (std::int64_t j = 0; j < count; ++j) {
            const std::int64_t i = first + j + 1;
            // 0.0 and -0.0 have keys of their own.
            const bool apart = value_of<T>(keys[j]) < value_of<T>(keys[j + 1]);
            const bool allowed = apart && i >= row.min_group && row.n - i >= row.min_group;
            between[j] = allowed ? otsu_between(sums[j], row.total, i, row.n) : -1;
            largest = largest < between[j] ? between[j] : largest;
        }
        if (largest > best.between) {
            const std::int64_t j = std::find(between, between + count, largest) - between;
            best = {largest, first + j + 1, sums[j]};
        }
    }
    return best;
}

// target_clones takes no templates: plain functions of both types.
#define ROBUSTDML_STAMP(T)                                                                                  \
    ROBUSTDML_CLONES void keys_clone(const T* values, Key<T>* keys, std::int64_t begin, std::int64_t end) { \
        for (std::int64_t j = begin; j < end; ++j) keys[j] = key_of(values[j]);                             \
    }                                                                                                       \
    ROBUSTDML_CLONES std::int64_t sum_clone(const Key<T>* sorted, const OtsuScale& scale,                   \
                                            std::int64_t begin, std::int64_t end, T) {                      \
        return sum_of_steps<T>(sorted, scale, begin, end);                                                  \
    }                                                                                                       \
    ROBUSTDML_CLONES Best best_clone(const Key<T>* sorted, const Row& row, std::int64_t sum,                \
                                     std::int64_t begin, std::int64_t end, T) {                             \
        return best_cut<T>(sorted, row, sum, begin, end);                                                   \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

// One row, in one part a thread; buffer has room for 2 (n + 1) keys.
template <class T>
void cut_row(const T* values, std::int64_t n, std::int64_t min_group, const OtsuOutputs<T>& out,
             Key<T>* buffer, int threads) {
    const auto part = [threads](std::int64_t count, int t) { return count * t / threads; };
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; ++t) keys_clone(values, buffer, part(n, t), part(n, t + 1));
    Key<T>* sorted = radix_sort(buffer, buffer + n + 1, n, threads);
    sorted[n] = kLastKey<Key<T>>;  // read beside the last value
    const std::int64_t finite = std::lower_bound(sorted, sorted + n, kLastKey<Key<T>>) - sorted;
    if (finite == 0) return otsu_write(out, 0, 0, T(0), T(0), 0, 0, OtsuScale{}, n);

    Row row{finite, min_group, 0,
            otsu_scale(double(value_of<T>(sorted[0])), double(value_of<T>(sorted[finite - 1])), finite)};
    std::vector<std::int64_t> sums(threads);
    std::vector<Best> bests(threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; ++t)
        sums[t] = sum_clone(sorted, row.scale, part(finite, t), part(finite, t + 1), T());
    for (std::int64_t& sum : sums) row.total += std::exchange(sum, row.total);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; ++t)
        bests[t] = best_clone(sorted, row, sums[t], part(finite, t), part(finite, t + 1), T());
    Best best;
    for (const Best& candidate : bests)
        if (candidate.between > best.between) best = candidate;
    const std::int64_t at = std::max<std::int64_t>(best.i, 1);
    otsu_write(out, best.i, finite, value_of<T>(sorted[at - 1]), value_of<T>(sorted[at]), best.sum, row.total,
               row.scale, n - finite);
}

}  // namespace

template <class T>
void otsu(const T* values, std::int64_t rows, std::int64_t n, std::int64_t min_group,
          const OtsuOutputs<T>& out, int threads) {
    const bool share_row = rows == 1 && n >= kShared;
    const int parts = share_row || rows * n < 4096 ? 1 : int(std::min<std::int64_t>(threads, rows));
#pragma omp parallel for schedule(static) num_threads(parts) if (parts > 1)
    for (int t = 0; t < parts; ++t) {
        const std::unique_ptr<Key<T>[]> buffer(new Key<T>[2 * (n + 1)]);
        for (std::int64_t r = rows * t / parts; r < rows * (t + 1) / parts; ++r)
            cut_row(values + r * n, n, min_group,
                    {out.threshold + r, out.low_mean + r, out.high_mean + r, out.index + r, out.excluded + r,
                     out.found + r},
                    buffer.get(), share_row ? threads : 1);
    }
}

template <class T>
void otsu_sigma(const T* losses, std::int64_t n, std::int64_t min_group, T lambda, T* threshold, T* sigma,
                int threads) {
    T low_mean, high_mean;
    std::int64_t index, excluded;
    bool found;
    otsu(losses, 1, n, min_group, {threshold, &low_mean, &high_mean, &index, &excluded, &found}, threads);
    procsim_sigma(losses, threshold, 0, lambda, sigma, n, threads);
}

#define ROBUSTDML_STAMP(T)                                                                                 \
    template void otsu<T>(const T*, std::int64_t, std::int64_t, std::int64_t, const OtsuOutputs<T>&, int); \
    template void otsu_sigma<T>(const T*, std::int64_t, std::int64_t, T, T*, T*, int);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
