// Pairs that one label a sample does not tell: a candidate that shares one of several labels with an anchor
// is its positive, and one that shares an id with it is in neither of its sets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pairs/cpu.h"

namespace robustdml::cpu {

// The columns that share a value with each row, by the values: memory goes by rows and columns, not by pairs.
class Sharing {
  public:
    Sharing() = default;
    // Values (n, slots) of the rows and (m, slots) of the columns; those below `least` are none. `by_slot`: a
    // value is equal to those of the same slot alone.
    Sharing(const std::int64_t* rows, std::int64_t n, const std::int64_t* columns, std::int64_t m,
            std::int64_t slots, std::int64_t least, bool by_slot);

    // visit(x) of the columns first ... last - 1 that share a value with the row, once for each such value.
    template <class Visit>
    void visit(std::int64_t row, std::int64_t first, std::int64_t last, Visit visit) const {
        for (std::int64_t slot = row * slots_; slot < (row + 1) * slots_; ++slot) {
            const auto end = members_.begin() + ends_[slot];
            const auto begin = members_.begin() + begins_[slot];
            for (auto x = first ? std::lower_bound(begin, end, first) : begin; x < end && *x < last; ++x)
                visit(*x);
        }
    }

  private:
    std::int64_t slots_ = 0;
    std::vector<std::int64_t> members_;        // columns, by value, ascending in each
    std::vector<std::int64_t> begins_, ends_;  // (n, slots): the members of each value of a row
};

// What labels and ids of a call say, beside the labels of a chunk. With several labels those are 1 for every
// sample that has some.
struct Relations {
    bool several = false;
    bool keeps_positives = false;  // ids are of negatives alone
    Sharing labels, ids;

    // labels (n, K) and (m, K) if K > 1, which null candidates share with the anchors; ids likewise, (n, I)
    // and (m, I), I = 0 for none.
    Relations(const std::int64_t* labels, const std::int64_t* candidate_labels, std::int64_t n,
              std::int64_t m, std::int64_t K, const std::int64_t* ids, const std::int64_t* candidate_ids,
              std::int64_t I, bool keeps_positives);
};

// Labels of some candidates as one anchor after the other sees them. The row loops then compare labels, as
// without relations.
class RowLabels {
  public:
    // `given`: labels of the candidates first ... first + count - 1.
    RowLabels(const Relations& relations, const PairLabel* given, std::int64_t first, std::int64_t count);

    const PairLabel* begin(std::int64_t row, PairLabel label);
    void end();

    // Pairs of the row that has begun, own place left out, beside those that the labels given tell.
    struct Numbers {
        std::int64_t positives;  // more positives, below 0 for fewer
        std::int64_t excluded;
    };
    Numbers numbers(PairLabel label, std::int64_t own) const;

  private:
    PairLabel plain(std::int64_t x) const {
        return relations_.several && given_[x] != kAbsent<PairLabel> ? 0 : given_[x];
    }

    const Relations& relations_;
    const PairLabel* given_;
    std::int64_t first_, count_;
    std::vector<PairLabel> labels_;
    std::vector<std::int64_t> changed_;  // places whose label is not the plain one
};

// row_loop(part, row) of every row of a chunk: its relations are in the candidates' labels of `part`.
template <class T, class RowLoop>
void each_related_row(const Pairs<T>& chunk, std::int64_t begin, std::int64_t end, RowLoop row_loop) {
    RowLabels own(*chunk.relations, chunk.candidate_labels, 0, chunk.m);
    Pairs<T> part = chunk;
    for (std::int64_t row = begin; row < end; ++row) {
        part.candidate_labels = own.begin(chunk.relations_row + row, chunk.labels[row]);
        row_loop(part, row);
        own.end();
    }
}

}  // namespace robustdml::cpu
