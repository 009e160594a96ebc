#include "classes/cpu_terms.h"

#include <algorithm>
#include <vector>

#include "classes/cpu_pooling.h"
#include "classes/cpu_seen.h"
#include "common/cpu/clones.h"
#include "common/cpu/parts.h"
#include "math/exp.h"
#include "math/limits.h"

namespace robustdml::cpu {
namespace {

// The exponents of a class in base 2, as a function of s: one rounding, since Z is the sum of the very E.
template <class T>
struct Exponents {
    T slope;
    T offset;
};

template <class T>
ROBUSTDML_HD T class_scale(const ClassChunk<T>& c, std::int64_t k) {
    return c.scale[k * c.scale_stride];
}

template <class T>
ROBUSTDML_HD Exponents<T> exponents_of(const ClassChunk<T>& c, std::int64_t k, T cosine) {
    const double bias = (c.bias ? double(c.bias[k]) : 0.0) - kTermShift;
    return {static_cast<T>(kLog2E * class_scale(c, k) * cosine), static_cast<T>(kLog2E * bias)};
}

// e[x] = 2^exponent for the samples from `from` on, exactly 0 for labels and above the limits; a sum of them
// is added to `sum`.
template <class T>
ROBUSTDML_HD void exponentials_but(const ClassChunk<T>& c, const LabelSets& labels, const LabelRange& own,
                                   const Exponents<T>& line, const T* s, T cosine, std::int64_t from,
                                   std::int64_t columns, T* e, T* sum) {
    if (c.drop_similar_negatives) {
        const T* limit = c.drop_similar_negatives + from;
#pragma omp simd
        for (std::int64_t x = 0; x < columns; ++x) {
            const T exponent = line.slope * s[x] + line.offset;
            e[x] = s[x] * cosine > limit[x] ? -kInfinity<T> : exponent;
        }
    } else {
#pragma omp simd
        for (std::int64_t x = 0; x < columns; ++x) e[x] = line.slope * s[x] + line.offset;
    }
    for (std::int64_t p = own.begin; p < own.end; ++p) {
        const std::int64_t x = labels.order[p] / c.labels_each - from;
        if (0 <= x && x < columns) e[x] = -kInfinity<T>;
    }
#pragma omp simd
    for (std::int64_t x = 0; x < columns; ++x) {
        e[x] = exp2_fast(e[x]);
        sum[x] += e[x];
    }
}

// What the labels of one class leave: target (B, K) and slopes (B K, H), or null.
template <class T>
struct LabelResults {
    T* target;
    T* slopes;
};

// A class with one proxy: S becomes E.
template <class T>
ROBUSTDML_HD void terms_of_class(const ClassChunk<T>& c, const LabelSets& labels, const LabelRange& own,
                                 std::int64_t k, std::int64_t from, std::int64_t columns, T* sum,
                                 const LabelResults<T>& results, const Seen<T, T>& seen) {
    T* s = c.S + k * c.B + from;
    const T cosine = cosine_factor(c, k), factor = class_scale(c, k) * cosine;
    if (seen.own) see_class(c, labels, own, k, s, cosine, from, columns, seen);
    const Exponents<T> line = exponents_of(c, k, cosine);
    if (own.begin == own.end && !c.drop_similar_negatives && line.offset > T(-120)) {
#pragma omp simd
        for (std::int64_t x = 0; x < columns; ++x) {
            const T e = exp2_in_range(line.slope * s[x] + line.offset);
            sum[x] += e;
            s[x] = e * factor;
        }
        return;
    }
    const double bias = c.bias ? double(c.bias[k]) : 0.0;
    for (std::int64_t p = own.begin; p < own.end; ++p) {
        const std::int64_t entry = labels.order[p], x = entry / c.labels_each - from;
        if (x < 0 || x >= columns) continue;
        if (results.target)
            results.target[entry] = static_cast<T>(double(class_scale(c, k)) * cosine * s[x] + bias);
        if (results.slopes) results.slopes[entry] = factor;
    }
    T e[kColumns];
    exponentials_but(c, labels, own, line, s, cosine, from, columns, e, sum);
#pragma omp simd
    for (std::int64_t x = 0; x < columns; ++x) s[x] = e[x] * factor;
}

// A class of several centres.
template <class T>
ROBUSTDML_HD void terms_of_centers(const ClassChunk<T>& c, const LabelSets& labels, const LabelRange& own,
                                   std::int64_t k, std::int64_t from, std::int64_t columns, T* sum,
                                   const LabelResults<T>& results, const Seen<T, T>& seen, T* weights) {
    T pooled[kColumns], inverse[kColumns], gradient[kColumns];
    pool(c, k, from, columns, pooled, inverse, weights);
    if (seen.own) see_class(c, labels, own, k, pooled, T(1), from, columns, seen);
    const T scale = class_scale(c, k);
    exponentials_but(c, labels, own, exponents_of(c, k, T(1)), pooled, T(1), from, columns, gradient, sum);
#pragma omp simd
    for (std::int64_t x = 0; x < columns; ++x) gradient[x] *= scale;
    const double bias = c.bias ? double(c.bias[k]) : 0.0;
    for (std::int64_t p = own.begin; p < own.end; ++p) {
        const std::int64_t entry = labels.order[p], x = entry / c.labels_each - from;
        if (x < 0 || x >= columns) continue;
        if (results.target) results.target[entry] = static_cast<T>(double(scale) * pooled[x] + bias);
        gradient[x] = scale;
    }
    if (c.pooling == Pooling::max)
        unpool_max(c, k, from, columns, pooled, gradient);
    else
        unpool_softmax(c, k, from, columns, pooled, inverse, weights, gradient);
    for (std::int64_t p = own.begin; p < own.end; ++p) {
        const std::int64_t entry = labels.order[p], x = entry / c.labels_each - from;
        if (x < 0 || x >= columns) continue;
        for (std::int64_t h = 0; h < c.centers; ++h) {
            T& s = c.S[(k * c.centers + h) * c.B + from + x];
            if (results.slopes) results.slopes[entry * c.centers + h] = s;
            s = 0;
        }
    }
}

// What a chunk adds to its block, (B,) each, or null.
template <class T>
struct TermSums {
    double* total;
    Seen<T, double> seen;
};

// S of a chunk becomes E; `block` grows by its sums.
template <class T>
ROBUSTDML_HD void terms_of_chunk(const ClassChunk<T>& c, const LabelSets& labels,
                                 const LabelResults<T>& results, const TermSums<T>& block, T* weights) {
    const std::int64_t* sorted = labels.sorted_labels;
    const std::int64_t entries = c.B * c.labels_each;
    const std::int64_t begin = std::lower_bound(sorted, sorted + entries, labels.first_label) - sorted;
    for (std::int64_t from = 0; from < c.B; from += kColumns) {
        const std::int64_t columns = std::min(kColumns, c.B - from);
        T sum[kColumns], nearest[kColumns], above[kColumns];
        std::fill(sum, sum + columns, T(0));
        std::fill(nearest, nearest + columns, -kInfinity<T>);
        std::fill(above, above + columns, T(0));
        const Seen<T, T> seen{block.seen.own ? block.seen.own + from : nullptr, nearest, above};
        LabelRange own{begin, begin};
        for (std::int64_t k = 0; k < c.classes; ++k) {
            own.begin = own.end;
            while (own.end < entries && sorted[own.end] == labels.first_label + k) ++own.end;
            if (c.pooling == Pooling::none)
                terms_of_class(c, labels, own, k, from, columns, sum, results, seen);
            else
                terms_of_centers(c, labels, own, k, from, columns, sum, results, seen, weights);
        }
        for (std::int64_t x = 0; block.total && x < columns; ++x) block.total[from + x] += sum[x];
        for (std::int64_t x = 0; seen.own && x < columns; ++x) {
            T& known = block.seen.nearest[from + x];
            known = std::max(known, nearest[x]);
            block.seen.above[from + x] += above[x];
        }
    }
}

// target_clones takes no templates: one plain function per type.
#define ROBUSTDML_STAMP(T)                                                                      \
    ROBUSTDML_CLONES void terms_clone(const ClassChunk<T>& c, const LabelSets& labels,          \
                                      const LabelResults<T>& results, const TermSums<T>& block, \
                                      T* weights) {                                             \
        terms_of_chunk(c, labels, results, block, weights);                                     \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

// One of both passes over all chunks.
template <class T>
struct Pass {
    const ClassChunk<T>& whole;
    const LabelSets& labels;
    const ClassTerms<T>& terms;
    const Sweep<T>& sweep;
    std::int64_t room;       // of a lane for pooling
    std::vector<T> weights;  // (lanes, room)
    std::atomic<bool> out_of_reach{false};

    Pass(const ClassChunk<T>& whole, const LabelSets& labels, const ClassTerms<T>& terms,
         const Sweep<T>& sweep)
        : whole(whole),
          labels(labels),
          terms(terms),
          sweep(sweep),
          room(whole.pooling == Pooling::softmax ? whole.centers * kColumns : 0),
          weights(room * sweep.lanes()) {}

    bool is_kept(std::int64_t first, std::int64_t count) const {
        return terms.E && first + count <= terms.kept;
    }

    // Products in bfloat16 write whole steps of rows, and a chunk of other rows has no place for them in E.
    bool in_place(std::int64_t first, std::int64_t count) const {
        return is_kept(first, count) && (!sweep.brgemm || count == whole_steps(count));
    }

    // E of a chunk, where own.S is.
    ChunkRows<T> make(LaneMemory<T>& own, int lane, const SharedFactors& shared, std::int64_t first,
                      std::int64_t count, const LabelResults<T>& results, const TermSums<T>& block) {
        const ChunkRows<T> rows = similarities(sweep, shared, own, first, count, out_of_reach);
        const std::int64_t first_class = first / whole.centers;
        ClassChunk<T> chunk = whole.part(first_class, count / whole.centers);
        chunk.S = own.S;
        chunk.inverse_norm = rows.as_they_are ? own.inverse_norm.get() : nullptr;
        terms_clone(chunk, labels_from(first_class), results, block, weights.data() + room * lane);
        return rows;
    }

    LabelSets labels_from(std::int64_t first_class) const {
        LabelSets here = labels;
        here.first_label += first_class;
        return here;
    }

    // run(entry, row in the chunk) for the labels of a chunk and each of their centres.
    template <class Run>
    void for_labels(std::int64_t first, std::int64_t count, Run run) const {
        const std::int64_t entries = whole.B * whole.labels_each, H = whole.centers;
        const std::int64_t* sorted = labels.sorted_labels;
        const std::int64_t label = labels.first_label + first / H;
        for (std::int64_t p = std::lower_bound(sorted, sorted + entries, label) - sorted;
             p < entries && sorted[p] < label + count / H; ++p)
            for (std::int64_t h = 0; h < H; ++h) run(labels.order[p], h, (sorted[p] - label) * H + h);
    }
};

// to (D,) += factor * row.
template <class T>
void add_row(T factor, const T* row, std::int64_t stride, T* to, std::int64_t to_stride, std::int64_t D) {
    for (std::int64_t d = 0; d < D; ++d) to[d * to_stride] += factor * row[d * stride];
}

}  // namespace

template <class T>
bool class_terms(const ClassChunk<T>& whole, const LabelSets& labels, const ClassTerms<T>& terms,
                 const ClassTermSums<T>& sums, const Sweep<T>& sweep) {
    const std::int64_t B = sweep.B, D = sweep.D, H = whole.centers, blocks = sweep.blocks();
    Pass<T> pass(whole, labels, terms, sweep);
    const SharedFactors shared = shared_factors(sweep, sweep.X, false);
    std::vector<double> totals(B * blocks, 0.0), above(sums.own ? B * blocks : 0, 0.0);
    std::vector<T> nearest(above.size(), -kInfinity<T>);
    if (terms.label_slopes) std::fill_n(terms.label_slopes, B * whole.labels_each * H, T(0));
    if (terms.label_rows) std::fill_n(terms.label_rows, B * whole.labels_each * D, T(0));
    take_chunks(sweep, [&](LaneMemory<T>& own, int lane, std::int64_t block, std::int64_t first,
                           std::int64_t count, T* G, bool first_of_block) {
        own.S = pass.in_place(first, count) ? terms.E + first * B : own.room.get();
        TermSums<T> of_block{totals.data() + B * block, {}};
        if (sums.own) of_block.seen = {sums.own, nearest.data() + B * block, above.data() + B * block};
        const ChunkRows<T> rows =
            pass.make(own, lane, shared, first, count, {sums.target, terms.label_slopes}, of_block);
        if (G) multiply_into_batch(sweep, own, rows.V, count, G, !first_of_block);
        if (terms.label_rows)
            pass.for_labels(first, count, [&](std::int64_t entry, std::int64_t h, std::int64_t row) {
                add_row(terms.label_slopes[entry * H + h], rows.V.row(row), rows.V.column_stride,
                        terms.label_rows + entry * D, 1, D);
            });
        if (terms.inverse_norm) std::copy_n(own.inverse_norm.get(), count, terms.inverse_norm + first);
        if (pass.is_kept(first, count) && !pass.in_place(first, count))
            std::copy_n(own.S, count * B, terms.E + first * B);
    });
    // In the order of the blocks, so the same call gives the same bits.
    std::fill_n(sums.total, B, 0.0);
    for (std::int64_t block = 0; block < blocks; ++block)
        for (std::int64_t x = 0; x < B; ++x) {
            sums.total[x] += totals[B * block + x];
            if (!sums.own) continue;
            sums.nearest[x] = std::max(sums.nearest[x], nearest[B * block + x]);
            sums.above[x] += above[B * block + x];
        }
    return pass.out_of_reach;
}

template <class T>
bool class_terms_backward(const ClassChunk<T>& whole, const LabelSets& labels, const ClassTerms<T>& terms,
                          const ClassTermFactors<T>& factors, const Sweep<T>& sweep) {
    const std::int64_t B = sweep.B, D = sweep.D, H = whole.centers, K = whole.labels_each;
    Buffer<T> weighted(B * D);
    in_parts(B, sweep.threads, B * D > 32768, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t x = begin; x < end; ++x) {
            const T f = factors.factor[x];
            for (std::int64_t d = x * D; d < (x + 1) * D; ++d) weighted.get()[d] = f * sweep.X[d];
            if (!sweep.dX || !factors.G) continue;
            for (std::int64_t d = x * D; d < (x + 1) * D; ++d) sweep.dX[d] = f * factors.G[d];
            for (std::int64_t entry = x * K; entry < (x + 1) * K; ++entry)
                if (std::any_of(terms.label_slopes + entry * H, terms.label_slopes + (entry + 1) * H,
                                [](T slope) { return slope != T(0); }))
                    add_row(factors.dlogit[entry], terms.label_rows + entry * D, 1, sweep.dX + x * D, 1, D);
        }
    });
    if (!sweep.dP && !sweep.update) return false;
    Sweep<T> of_rows = sweep;
    of_rows.X = weighted.get();
    of_rows.dX = nullptr;
    Pass<T> pass(whole, labels, terms, sweep);
    const bool all_kept = pass.is_kept(0, sweep.rows);
    const SharedFactors shared = all_kept ? SharedFactors() : shared_factors(sweep, sweep.X, false),
                        of_weighted = shared_factors(of_rows, of_rows.X, true);
    take_chunks(of_rows, [&](LaneMemory<T>& own, int lane, std::int64_t, std::int64_t first,
                             std::int64_t count, T*, bool) {
        ChunkRows<T> rows;
        own.S = pass.in_place(first, count) ? terms.E + first * B : own.room.get();
        if (pass.is_kept(first, count)) {
            const T* inverse_norm = terms.inverse_norm + first;
            if (!pass.in_place(first, count)) std::copy_n(terms.E + first * B, count * B, own.S);
            std::copy_n(inverse_norm, count, own.inverse_norm.get());
            rows = {selected_rows(sweep, own.P.get(), first, count), true};
            if (std::any_of(inverse_norm, inverse_norm + count, out_of_reach<T>)) {
                pass.out_of_reach = true;
                rows = {unit_rows(sweep, own, rows.V, count), false};
            }
        } else {
            rows = pass.make(own, lane, shared, first, count, {nullptr, nullptr}, TermSums<T>{});
        }
        gradients(of_rows, of_weighted, own, rows, first, count, static_cast<T*>(nullptr), false,
                  [&](const Rows<T>& dV) {
                      pass.for_labels(
                          first, count, [&](std::int64_t entry, std::int64_t h, std::int64_t row) {
                              const T slope = factors.dlogit[entry] * terms.label_slopes[entry * H + h];
                              add_row(slope, sweep.X + entry / K * D, 1, dV.row(row), dV.column_stride, D);
                          });
                  });
    });
    return pass.out_of_reach;
}

#define ROBUSTDML_STAMP(T)                                                                              \
    template bool class_terms<T>(const ClassChunk<T>&, const LabelSets&, const ClassTerms<T>&,          \
                                 const ClassTermSums<T>&, const Sweep<T>&);                             \
    template bool class_terms_backward<T>(const ClassChunk<T>&, const LabelSets&, const ClassTerms<T>&, \
                                          const ClassTermFactors<T>&, const Sweep<T>&);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
