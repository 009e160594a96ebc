#include "classes/cpu_sweep.h"

#include <cmath>
#include <limits>

#include "common/cpu/parts.h"

namespace robustdml::cpu {
namespace {

template <class T>
ClassChunk<T> chunk_of(const ClassChunk<T>& whole, const Chunk<T>& part) {
    ClassChunk<T> chunk = whole.part(part.first / whole.centers, part.count / whole.centers);
    chunk.S = part.S;
    chunk.inverse_norm = part.scale;
    return chunk;
}

template <class T>
LabelSets labels_of(const LabelSets& labels, const ClassChunk<T>& whole, const Chunk<T>& part) {
    LabelSets of_chunk = labels;
    of_chunk.first_label += part.first / whole.centers;
    return of_chunk;
}

}  // namespace

template <class T>
bool class_sweep(const ClassChunk<T>& whole, const LabelSets& labels, const ClassSums<T>& sums,
                 const Sweep<T>& sweep) {
    const std::int64_t B = sweep.B, blocks = sweep.blocks();
    std::vector<double> shift(B * blocks, -std::numeric_limits<double>::infinity()), total(B * blocks, 0.0);
    std::vector<double> weighted(sums.weighted ? B * blocks : 0, 0.0);
    std::vector<T> nearest(sums.own ? B * blocks : 0, -std::numeric_limits<T>::infinity());
    std::vector<double> above(nearest.size(), 0.0);
    const bool out_of_reach = sweep_lanes(sweep, [&](const Chunk<T>& part) {
        const ClassSums<T> of_block{shift.data() + B * part.block,
                                    total.data() + B * part.block,
                                    sums.target,
                                    sums.weighted ? weighted.data() + B * part.block : nullptr,
                                    sums.own,
                                    sums.own ? nearest.data() + B * part.block : nullptr,
                                    sums.own ? above.data() + B * part.block : nullptr};
        class_lse(chunk_of(whole, part), labels_of(labels, whole, part), of_block, 1);
    });
    // In the order of the blocks, so the same call gives the same bits.
    in_parts(B, sweep.threads, B * blocks > 8192, [&](std::int64_t begin, std::int64_t end) {
        std::vector<double> largest(sums.shift + begin, sums.shift + end);
        for (std::int64_t block = 0; block < blocks; ++block)
            for (std::int64_t x = begin; x < end; ++x)
                largest[x - begin] = std::max(largest[x - begin], shift[B * block + x]);
        for (std::int64_t x = begin; x < end; ++x) {
            sums.total[x] *= std::exp(sums.shift[x] - largest[x - begin]);
            sums.shift[x] = largest[x - begin];
        }
        for (std::int64_t block = 0; block < blocks; ++block)
            for (std::int64_t x = begin; x < end; ++x)
                sums.total[x] += total[B * block + x] * std::exp(shift[B * block + x] - sums.shift[x]);
        for (std::int64_t block = 0; sums.weighted && block < blocks; ++block)
            for (std::int64_t x = begin; x < end; ++x) sums.weighted[x] += weighted[B * block + x];
        for (std::int64_t block = 0; sums.own && block < blocks; ++block)
            for (std::int64_t x = begin; x < end; ++x) {
                sums.nearest[x] = std::max(sums.nearest[x], nearest[B * block + x]);
                sums.above[x] += above[B * block + x];
            }
    });
    return out_of_reach;
}

template <class T>
bool class_sweep_backward(const ClassChunk<T>& whole, const LabelSets& labels,
                          const ClassUpstream<T>& upstream, const Sweep<T>& sweep) {
    return sweep_lanes(sweep, [&](const Chunk<T>& part) {
        class_lse_backward(chunk_of(whole, part), labels_of(labels, whole, part), upstream, 1);
    });
}

#define ROBUSTDML_STAMP(T)                                                                                 \
    template bool class_sweep<T>(const ClassChunk<T>&, const LabelSets&, const ClassSums<T>&,              \
                                 const Sweep<T>&);                                                         \
    template bool class_sweep_backward<T>(const ClassChunk<T>&, const LabelSets&, const ClassUpstream<T>&, \
                                          const Sweep<T>&);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
