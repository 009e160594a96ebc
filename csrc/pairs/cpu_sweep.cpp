#include "pairs/cpu_sweep.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/cpu/clones.h"
#include "common/cpu/epilogue.h"
#include "pairs/cpu_hardest.h"
#include "pairs/cpu_hinge.h"
#include "pairs/cpu_part.h"
#include "pairs/cpu_relations.h"

namespace robustdml::cpu {
namespace {

// Sums of every anchor, (n,) each.
template <class T, class Count>
struct AnchorSums {
    T* positive;
    T* negative;
    Count* positive_count;
    Count* negative_count;
    T* lowest;  // in/out: of the hardest pairs; or null
    T* highest;
};

// Candidates whose terms are summed before they go into the sums of the anchors.
constexpr std::int64_t kTogether = 4;

template <class T, bool Euclidean>
ROBUSTDML_HD HingeRow<T> candidate_of(const Pairs<T>& c, const PairHingeProblem<T>& problem,
                                      std::int64_t row) {
    T* s = c.S + row * c.m;
    const RowScale<T> scales = scale_of_row(c, row, s, c.m);
    // Its own place as an anchor, if it is one: in no set, since every comparison with it is false.
    if (c.itself >= 0 && c.itself + row < c.m) s[c.itself + row] = kNaN<T>;
    if (Euclidean) take_distances(problem, row, s, 0, c.m, scales.cosine);
    return {s, scales.cosine, scales.gradient, c.labels[row], c.labels[row] != kAbsent<PairLabel>};
}

// Candidates in a row: their terms are added up before they go into the sums of the anchors. Written out by
// the list of their numbers, as GCC makes no vector code of a loop within the loop over anchors.
template <class T, bool Euclidean, std::int64_t... r>
ROBUSTDML_HD void hinge_candidates(const Pairs<T>& c, const PairHingeProblem<T>& problem, std::int64_t first,
                                   const T* positive_upstream, const T* negative_upstream,
                                   const AnchorSums<T, PairLabel>& sums,
                                   std::integer_sequence<std::int64_t, r...>) {
    const HingeRow<T> candidates[] = {candidate_of<T, Euclidean>(c, problem, first + r)...};
    const PairHingeProblem<T> settings = problem;
#pragma omp simd
    for (std::int64_t x = 0; x < c.m; ++x) {
        const HingeColumn<T> anchor{c.candidate_labels[x], -positive_upstream[x], negative_upstream[x]};
        HingeTerms<T> terms{0, 0, 0, 0};
        (add_pair<T, Euclidean>(settings, candidates[r], anchor, x, terms), ...);
        sums.positive[x] += terms.positive;
        sums.negative[x] += terms.negative;
        sums.positive_count[x] += terms.positives;
        sums.negative_count[x] += terms.negatives;
    }
}

template <class T, bool Euclidean>
ROBUSTDML_HD void all_candidates(const Pairs<T>& c, const PairHingeProblem<T>& problem,
                                 const T* positive_upstream, const T* negative_upstream,
                                 const AnchorSums<T, PairLabel>& sums, std::int64_t row, std::int64_t end) {
    if (sums.lowest) hardest_of_columns(c, row, end, sums.lowest, sums.highest);
    for (; row + kTogether <= end; row += kTogether)
        hinge_candidates<T, Euclidean>(c, problem, row, positive_upstream, negative_upstream, sums,
                                       std::make_integer_sequence<std::int64_t, kTogether>());
    for (; row < end; ++row)
        hinge_candidates<T, Euclidean>(c, problem, row, positive_upstream, negative_upstream, sums,
                                       std::make_integer_sequence<std::int64_t, 1>());
}

#define ROBUSTDML_STAMP(T)                                                                                 \
    ROBUSTDML_CLONES void cosine_clone(const Pairs<T>& c, const PairHingeProblem<T>& problem, const T* up, \
                                       const T* un, const AnchorSums<T, PairLabel>& sums,                  \
                                       std::int64_t begin, std::int64_t end) {                             \
        all_candidates<T, false>(c, problem, up, un, sums, begin, end);                                    \
    }                                                                                                      \
    ROBUSTDML_CLONES void euclidean_clone(const Pairs<T>& c, const PairHingeProblem<T>& problem,           \
                                          const T* up, const T* un, const AnchorSums<T, PairLabel>& sums,  \
                                          std::int64_t begin, std::int64_t end) {                          \
        all_candidates<T, true>(c, problem, up, un, sums, begin, end);                                     \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

// Upstream gradients of all anchors, one for each; zeros where none is wanted.
template <class T>
std::vector<T> spread_out(const T* upstream, std::int64_t stride, std::int64_t n) {
    std::vector<T> all(n, T(0));
    for (std::int64_t x = 0; upstream && x < n; ++x) all[x] = upstream[x * stride];
    return all;
}

// Sums of one chunk, which has few terms, and of blocks.
template <class T>
struct HingeSums {
    HingeSums(std::int64_t n, int lanes, std::int64_t blocks, bool hardest)
        : n(n),
          lane(2 * n * lanes),
          lane_count(2 * n * lanes),
          block(2 * n * blocks, 0.0),
          count(2 * n * blocks, 0),
          lowest(hardest ? n * lanes : 0, kInfinity<T>),
          highest(hardest ? n * lanes : 0, -kInfinity<T>) {}

    AnchorSums<T, PairLabel> of_chunk(int index) {
        T* sums = lane.data() + 2 * n * index;
        PairLabel* counts = lane_count.data() + 2 * n * index;
        std::fill(sums, sums + 2 * n, T(0));
        std::fill(counts, counts + 2 * n, 0);
        if (lowest.empty()) return {sums, sums + n, counts, counts + n, nullptr, nullptr};
        return {sums, sums + n, counts, counts + n, lowest.data() + n * index, highest.data() + n * index};
    }
    void add(int of_lane, std::int64_t to_block) {
        for (std::int64_t i = 0; i < 2 * n; ++i) {
            block[2 * n * to_block + i] += lane[2 * n * of_lane + i];
            count[2 * n * to_block + i] += lane_count[2 * n * of_lane + i];
        }
    }

    std::int64_t n;
    std::vector<T> lane;  // (lanes, 2, n)
    std::vector<PairLabel> lane_count;
    std::vector<double> block;  // (blocks, 2, n)
    std::vector<std::int64_t> count;
    std::vector<T> lowest, highest;  // (lanes, n), or empty
};

}  // namespace

template <class T, class Problem>
bool pair_sweep(const Pairs<T>& whole, const Problem& problem, const Sweep<T>& sweep) {
    return sweep_lanes(sweep, [&](const Chunk<T>& part) {
        Pairs<T> chunk = part_of(whole, part.first, part.count, part.S);
        chunk.inverse_norm = part.scale;
        pair_sums(chunk, part_of(problem, part.first), 1);
    });
}

template <class T>
bool pair_hinge_sweep(const Pairs<T>& whole, const PairHingeProblem<T>& problem, const Sweep<T>& sweep,
                      T* candidate_scale) {
    const std::int64_t n = whole.rows, blocks = sweep.blocks();
    const auto positive_upstream = spread_out(whole.upstream_positive, whole.upstream_positive_stride, n);
    const auto negative_upstream = spread_out(whole.upstream_negative, whole.upstream_negative_stride, n);
    HingeSums<T> sums(n, sweep.lanes(), blocks, whole.hardest_positive);
    const bool out_of_reach = sweep_lanes(sweep, [&](const Chunk<T>& part) {
        // Candidates and anchors change places.
        Pairs<T> chunk = whole;
        chunk.S = part.S;
        chunk.rows = part.count;
        chunk.m = n;
        chunk.labels = whole.candidate_labels + part.first;
        chunk.candidate_labels = whole.labels;
        chunk.inverse_norm = part.scale;
        if (whole.itself >= 0) chunk.itself = part.first;
        PairHingeProblem<T> turned = problem;
        if (problem.euclidean) {
            turned.anchors = static_cast<const T*>(problem.candidates) + part.first * problem.D;
            turned.candidates = problem.anchors;
        }
        const AnchorSums<T, PairLabel> of_chunk = sums.of_chunk(part.lane);
        const T *const up = positive_upstream.data(), *const un = negative_upstream.data();
        const auto add = [&](const Pairs<T>& rows, std::int64_t first, std::int64_t last) {
            if (problem.euclidean)
                euclidean_clone(rows, turned, up, un, of_chunk, first, last);
            else
                cosine_clone(rows, turned, up, un, of_chunk, first, last);
        };
        chunk.relations_row = part.first;
        if (chunk.relations)
            each_related_row(chunk, 0, chunk.rows,
                             [&](const Pairs<T>& rows, std::int64_t row) { add(rows, row, row + 1); });
        else
            add(chunk, 0, chunk.rows);
        sums.add(part.lane, part.block);
        std::copy(part.inverse_norm, part.inverse_norm + part.count, candidate_scale + part.first);
    });
    for (std::int64_t x = 0; x < n; ++x) {
        double positive = 0, negative = 0;
        std::int64_t positives = 0, negatives = 0;
        // In the order of the blocks, so the same call gives the same bits.
        for (std::int64_t block = 0; block < blocks; ++block) {
            positive += sums.block[2 * n * block + x];
            negative += sums.block[2 * n * block + n + x];
            positives += sums.count[2 * n * block + x];
            negatives += sums.count[2 * n * block + n + x];
        }
        const bool absent = whole.labels[x] == kAbsent<PairLabel>;
        whole.positive[x] = absent ? T(0) : static_cast<T>(positive);
        whole.negative[x] = absent ? T(0) : static_cast<T>(negative);
        problem.positive_count[x] = positives;
        problem.negative_count[x] = negatives;
        if (!whole.hardest_positive) continue;
        T lowest = kInfinity<T>, highest = -kInfinity<T>;
        for (std::size_t i = x; i < sums.lowest.size(); i += n) {
            lowest = std::min(lowest, sums.lowest[i]);
            highest = std::max(highest, sums.highest[i]);
        }
        whole.hardest_positive[x] = absent ? kInfinity<T> : lowest;
        whole.hardest_negative[x] = absent ? -kInfinity<T> : highest;
    }
    return out_of_reach;
}

#define ROBUSTDML_STAMP(T)                                                                     \
    template bool pair_sweep(const Pairs<T>&, const PairLSEProblem<T>&, const Sweep<T>&);      \
    template bool pair_sweep(const Pairs<T>&, const PairContrastProblem<T>&, const Sweep<T>&); \
    template bool pair_hinge_sweep<T>(const Pairs<T>&, const PairHingeProblem<T>&, const Sweep<T>&, T*);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
