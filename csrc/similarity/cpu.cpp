#include "similarity/cpu.h"

#include <algorithm>
#include <vector>

#include "common/cpu/clones.h"
#include "math/limits.h"
#include "math/portable.h"

namespace robustdml::cpu {
namespace {

// Similarities whose maximum decides whether one of them is looked at.
constexpr std::int64_t kBlock = 64;

template <class T>
struct Neighbour {
    T value;
    std::int64_t index;
};

template <class T>
bool nearer(const Neighbour<T>& a, const Neighbour<T>& b) {
    return (a.value > b.value) | ((a.value == b.value) & (a.index < b.index));
}

// The k nearest of one query, and the candidates that may soon be among them.
template <class T>
class Nearest {
  public:
    explicit Nearest(std::int64_t k) : k_(k), most_(std::max(2 * k, kBlock)), pending_(most_ + kBlock) {}

    void begin_row(T* values, std::int64_t* indices) {
        values_ = values;
        indices_ = indices;
        least_ = values[k_ - 1];
    }

    // A candidate has to exceed this similarity.
    T threshold() const { return least_; }

    // Takes those of up to kBlock similarities that exceed the threshold. No branch: chance would decide it.
    void take(const T* s, std::int64_t count, std::int64_t first, std::int64_t excluded) {
        const T least = least_;
        for (std::int64_t x = 0; x < count; ++x) {
            pending_[count_] = {s[x], first + x};
            count_ += (s[x] > least) & (first + x != excluded);
        }
        if (count_ >= most_) select();
    }

    // Puts the candidates into their places. Behind their equals: what is there has lower indices.
    void merge() {
        select();
        std::sort(pending_.begin(), pending_.begin() + count_, nearer<T>);
        std::int64_t entering = 0;
        while (entering < count_ && pending_[entering].value > values_[k_ - 1 - entering]) ++entering;
        std::int64_t staying = k_ - entering;
        for (std::int64_t place = k_ - 1; entering > 0; --place) {
            const Neighbour<T>& candidate = pending_[entering - 1];
            if (staying > 0 && values_[staying - 1] < candidate.value) {
                --staying;
                values_[place] = values_[staying];
                indices_[place] = indices_[staying];
            } else {
                --entering;
                values_[place] = candidate.value;
                indices_[place] = candidate.index;
            }
        }
        count_ = 0;
    }

  private:
    // Keeps k candidates, in any order: sorting those that turn out too small would cost more.
    void select() {
        if (count_ <= k_) return;
        std::nth_element(pending_.begin(), pending_.begin() + (k_ - 1), pending_.begin() + count_, nearer<T>);
        least_ = std::max(least_, pending_[k_ - 1].value);
        count_ = k_;
    }

    const std::int64_t k_;
    const std::int64_t most_;  // candidates, of which the k nearest are then kept
    T* values_ = nullptr;
    std::int64_t* indices_ = nullptr;
    T least_ = 0;
    std::vector<Neighbour<T>> pending_;  // (most_ + kBlock,), count_ of them in use
    std::int64_t count_ = 0;
};

// The largest, but for NaN.
template <class T>
ROBUSTDML_HD T largest_of(const T* s, std::int64_t count) {
    T largest = -kInfinity<T>;
#pragma omp simd reduction(max : largest)
    for (std::int64_t x = 0; x < count; ++x) largest = s[x] > largest ? s[x] : largest;
    return largest;
}

template <class T>
ROBUSTDML_HD void scan_row(const T* s, std::int64_t columns, std::int64_t first_column, std::int64_t excluded,
                           Nearest<T>& nearest) {
    const std::int64_t whole = columns - columns % kBlock;
    for (std::int64_t x = 0; x < whole; x += kBlock)
        if (largest_of(s + x, kBlock) > nearest.threshold())
            nearest.take(s + x, kBlock, first_column + x, excluded);
    nearest.take(s + whole, columns - whole, first_column + whole, excluded);
    nearest.merge();
}

// target_clones takes no templates: plain functions of both types.
#define ROBUSTDML_STAMP(T)                                                                        \
    ROBUSTDML_CLONES void scan_clone(const T* s, std::int64_t columns, std::int64_t first_column, \
                                     std::int64_t excluded, Nearest<T>& nearest) {                \
        scan_row(s, columns, first_column, excluded, nearest);                                    \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace

template <class T>
void similarity_sweep(const Sweep<T>& sweep, T* S) {
    std::vector<LaneMemory<T>> memory;
    for (int lane = 0; lane < sweep.lanes(); ++lane) memory.emplace_back(sweep);
    in_lanes(sweep.chunks(), sweep.lanes(), sweep.set_threads, [&](int lane, std::int64_t chunk) {
        const std::int64_t first = chunk * sweep.chunk_rows;
        const std::int64_t count = std::min(sweep.chunk_rows, sweep.rows - first);
        LaneMemory<T>& own = memory[lane];
        const Rows<const T> P = selected_rows(sweep, own.P.get(), first, count);
        const Rows<const T> V = sweep.normalize ? unit_rows(sweep, own, P, count) : P;
        multiply(sweep.gemm, {sweep.X, sweep.D, 1}, transposed(V), Rows<T>{S + first, sweep.rows, 1}, sweep.B,
                 count, sweep.D, false);
    });
}

template <class T>
void nearest_sweep(const Sweep<T>& sweep, std::int64_t first_column, const std::int64_t* excluded,
                   std::int64_t k, T* values, std::int64_t* indices) {
    std::vector<Nearest<T>> nearest(sweep.lanes(), Nearest<T>(k));
    sweep_lanes(sweep, [&](const Chunk<T>& part) {
        Nearest<T>& own = nearest[part.lane];
        for (std::int64_t i = 0; i < part.count; ++i) {
            const std::int64_t row = part.first + i;
            own.begin_row(values + row * k, indices + row * k);
            scan_clone(part.S + i * sweep.B, sweep.B, first_column, excluded ? excluded[row] : -1, own);
        }
    });
}

#define ROBUSTDML_STAMP(T)                                                                               \
    template void similarity_sweep<T>(const Sweep<T>&, T*);                                              \
    template void nearest_sweep<T>(const Sweep<T>&, std::int64_t, const std::int64_t*, std::int64_t, T*, \
                                   std::int64_t*);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
