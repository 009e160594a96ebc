#include "pairs/cpu_relations.h"

#include <tuple>
#include <utility>

namespace robustdml::cpu {
namespace {

// A value, the slot that it is compared in, and the column that has it.
using Entry = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

}  // namespace

Sharing::Sharing(const std::int64_t* rows, std::int64_t n, const std::int64_t* columns, std::int64_t m,
                 std::int64_t slots, std::int64_t least, bool by_slot)
    : slots_(slots), begins_(n * slots, 0), ends_(n * slots, 0) {
    std::vector<Entry> entries;
    entries.reserve(m * slots);
    for (std::int64_t i = 0; i < m * slots; ++i)
        if (columns[i] >= least) entries.emplace_back(columns[i], by_slot ? i % slots : 0, i / slots);
    std::sort(entries.begin(), entries.end());
    entries.erase(std::unique(entries.begin(), entries.end()), entries.end());
    members_.resize(entries.size());
    std::transform(entries.begin(), entries.end(), members_.begin(),
                   [](const Entry& entry) { return std::get<2>(entry); });
    for (std::int64_t i = 0; i < n * slots; ++i) {
        if (rows[i] < least) continue;
        const std::int64_t slot = by_slot ? i % slots : 0;
        const auto from = std::lower_bound(entries.begin(), entries.end(), Entry{rows[i], slot, 0});
        const auto to = std::lower_bound(from, entries.end(), Entry{rows[i], slot, m});
        begins_[i] = from - entries.begin();
        ends_[i] = to - entries.begin();
    }
}

Relations::Relations(const std::int64_t* label_rows, const std::int64_t* label_columns, std::int64_t n,
                     std::int64_t m, std::int64_t K, const std::int64_t* id_rows,
                     const std::int64_t* id_columns, std::int64_t I, bool keeps_positives)
    : several(K > 1), keeps_positives(keeps_positives) {
    const std::int64_t some_label = kAbsent<std::int64_t> + 1;
    if (several)
        labels = Sharing(label_rows, n, label_columns ? label_columns : label_rows, m, K, some_label, false);
    if (I) ids = Sharing(id_rows, n, id_columns ? id_columns : id_rows, m, I, 0, true);
}

RowLabels::RowLabels(const Relations& relations, const PairLabel* given, std::int64_t first,
                     std::int64_t count)
    : relations_(relations), given_(given), first_(first), count_(count), labels_(count) {
    for (std::int64_t x = 0; x < count; ++x) labels_[x] = plain(x);
}

const PairLabel* RowLabels::begin(std::int64_t row, PairLabel label) {
    const auto change = [&](std::int64_t column, PairLabel to) {
        const std::int64_t x = column - first_;
        if (labels_[x] == kAbsent<PairLabel> || labels_[x] == to) return;
        if (labels_[x] == plain(x)) changed_.push_back(x);
        labels_[x] = to;
    };
    if (label == kAbsent<PairLabel>) return labels_.data();
    relations_.labels.visit(row, first_, first_ + count_,
                            [&](std::int64_t column) { change(column, label); });
    relations_.ids.visit(row, first_, first_ + count_, [&](std::int64_t column) {
        if (!relations_.keeps_positives || labels_[column - first_] != label)
            change(column, kAbsent<PairLabel>);
    });
    return labels_.data();
}

void RowLabels::end() {
    for (const std::int64_t x : changed_) labels_[x] = plain(x);
    changed_.clear();
}

RowLabels::Numbers RowLabels::numbers(PairLabel label, std::int64_t own) const {
    Numbers found{0, 0};
    for (const std::int64_t x : changed_) {
        if (x == own) continue;
        found.positives += (labels_[x] == label ? 1 : 0) - (plain(x) == label ? 1 : 0);
        found.excluded += labels_[x] == kAbsent<PairLabel> ? 1 : 0;
    }
    return found;
}

}  // namespace robustdml::cpu
