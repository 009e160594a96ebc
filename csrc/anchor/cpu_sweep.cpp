#include "anchor/cpu_sweep.h"

namespace robustdml::cpu {
namespace {

// Where chunks leave what is summed over all of them.
template <class T>
struct EpilogueSums {
    EpilogueSums(const AnchorChunk<T>& whole, const Sweep<T>& sweep)
        : totals(sweep.blocks(), 0.0),
          biases(whole.dpositive_bias ? 2 * sweep.B * sweep.blocks() : 0, T(0)),
          lse(whole.lse_positive ? 0 : 2 * sweep.chunk_rows * sweep.lanes()) {}

    std::vector<double> totals;  // (blocks,)
    std::vector<T> biases;       // (blocks, 2, B)
    std::vector<T> lse;          // (lanes, 2, chunk), where nobody else keeps them
};

template <class T>
AnchorChunk<T> chunk_of(const AnchorChunk<T>& whole, const Sweep<T>& sweep, const Chunk<T>& part,
                        EpilogueSums<T>& sums) {
    AnchorChunk<T> chunk = whole;
    chunk.S = part.S;
    chunk.rows = part.count;
    chunk.inverse_norm = part.scale;
    if (whole.anchor_bias) chunk.anchor_bias += part.first;
    chunk.lse_positive = whole.lse_positive ? whole.lse_positive + part.first
                                            : sums.lse.data() + 2 * sweep.chunk_rows * part.lane;
    chunk.lse_negative =
        whole.lse_positive ? whole.lse_negative + part.first : chunk.lse_positive + sweep.chunk_rows;
    if (!sums.biases.empty()) {
        chunk.dpositive_bias = sums.biases.data() + 2 * sweep.B * part.block;
        chunk.dnegative_bias = chunk.dpositive_bias + sweep.B;
    }
    const bool gradients = sweep.differentiates() || !sums.biases.empty();
    if (!gradients || !whole.upstream_positive) {
        chunk.upstream_positive = chunk.upstream_negative = nullptr;
        return chunk;
    }
    chunk.upstream_positive += part.first * whole.upstream_positive_stride;
    chunk.upstream_negative += part.first * whole.upstream_negative_stride;
    return chunk;
}

template <class T>
double weighted_sum(const AnchorChunk<T>& whole, const AnchorChunk<T>& chunk, std::int64_t first) {
    double total = 0;
    for (std::int64_t row = 0; row < chunk.rows; ++row)
        total += double(whole.upstream_positive[(first + row) * whole.upstream_positive_stride]) *
                     chunk.lse_positive[row] +
                 double(whole.upstream_negative[(first + row) * whole.upstream_negative_stride]) *
                     chunk.lse_negative[row];
    return total;
}

// `run(chunk, part)` is the epilogue.
template <class T, class Run>
bool anchor_sweep(const AnchorChunk<T>& whole, const Sweep<T>& sweep, double* total, Run run) {
    EpilogueSums<T> sums(whole, sweep);
    const bool out_of_reach = sweep_lanes(sweep, [&](const Chunk<T>& part) {
        const AnchorChunk<T> chunk = chunk_of(whole, sweep, part, sums);
        run(chunk, part);
        if (whole.upstream_positive) sums.totals[part.block] += weighted_sum(whole, chunk, part.first);
    });
    if (total)
        for (const double part : sums.totals) *total += part;
    for (std::int64_t block = 0; whole.dpositive_bias && block < sweep.blocks(); ++block) {
        const T* dpositive = sums.biases.data() + 2 * sweep.B * block;
        for (std::int64_t x = 0; x < sweep.B; ++x) {
            whole.dpositive_bias[x] += dpositive[x];
            whole.dnegative_bias[x] += dpositive[sweep.B + x];
        }
    }
    return out_of_reach;
}

}  // namespace

template <class T>
bool anchor_sweep_labels(const AnchorChunk<T>& whole, const LabelSets& sets, const Sweep<T>& sweep,
                         double* total) {
    return anchor_sweep(whole, sweep, total, [&](const AnchorChunk<T>& chunk, const Chunk<T>& part) {
        LabelSets of_chunk = sets;
        of_chunk.first_label += part.first;
        anchor_lse_labels(chunk, of_chunk, 1);
    });
}

template <class T>
bool anchor_sweep_confidences(const AnchorChunk<T>& whole, const ConfidenceSets<T>& sets,
                              const ConfidenceFactors<T>& factors, const Sweep<T>& sweep, double* total) {
    const Buffer<T> logits(factors.hidden ? sweep.chunk_rows * sweep.B * sweep.lanes() : 0);
    return anchor_sweep(whole, sweep, total, [&](const AnchorChunk<T>& chunk, const Chunk<T>& part) {
        ConfidenceSets<T> of_chunk = sets;
        if (factors.hidden) {
            T* values = logits.get() + sweep.chunk_rows * sweep.B * part.lane;
            for (std::int64_t row = 0; row < part.count; ++row)
                std::fill_n(values + row * sweep.B, sweep.B, factors.bias[part.first + row]);
            const Rows<const T> weight{factors.weight + part.first * factors.K, factors.K, 1};
            multiply<T>(sweep.gemm, weight, {factors.hidden, 1, factors.K}, {values, sweep.B, 1}, part.count,
                        sweep.B, factors.K, true);
            of_chunk.values = values;
        } else {
            of_chunk.values += part.first * sets.anchor_stride;
        }
        anchor_lse_confidences(chunk, of_chunk, 1);
    });
}

#define ROBUSTDML_STAMP(T)                                                                                   \
    template bool anchor_sweep_labels<T>(const AnchorChunk<T>&, const LabelSets&, const Sweep<T>&, double*); \
    template bool anchor_sweep_confidences<T>(const AnchorChunk<T>&, const ConfidenceSets<T>&,               \
                                              const ConfidenceFactors<T>&, const Sweep<T>&, double*);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
