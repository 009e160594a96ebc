// Compiled without fused multiply-add: the same seed gives the same bits on every machine, and in the Python
// twin (robustdml_ops/ops/self_paced/backends.py), which sums in the same order.
#include "self_paced/cpu.h"

#include <algorithm>
#include <vector>

#include "common/cpu/clones.h"
#include "math/counter_random.h"

namespace robustdml::cpu {
namespace {

constexpr std::int64_t kBlock = 16;  // steps drawn at a time: they stay in the first cache

// All that a step reads of a sample, side by side: one cache line serves a small class.
template <class T>
struct Sample {
    T weight;
    T positive;
    T negative;
};

struct Class {
    std::int64_t start;
    std::int64_t size;
    std::int64_t last_step;  // that drew it
};

// The samples of a block of steps. A step has R = P + 1 rows of K: P other classes and, last, the anchor's
// own. Rows lie side by side, so that all of them are drawn by the same vector instructions. Nothing depends
// on the weights.
struct Draws {
    std::vector<double> units;          // (K, kBlock·R), scratch
    std::vector<std::int64_t> anchors;  // (kBlock,)
    std::vector<std::int64_t> first;    // (kBlock·R,) where the class begins
    std::vector<std::int64_t> size;     // (kBlock·R,) from how many is drawn
    std::vector<double> count;          // (kBlock·R,) how many are drawn: min(K, size)
    std::vector<std::int64_t>
        chosen;  // (K, kBlock·R); beyond the count what it holds is in range, and is not used
    std::vector<std::int64_t> taken;  // (kBlock·R,) scratch

    Draws(std::int64_t rows, std::int64_t K)
        : units(K * kBlock * rows),
          anchors(kBlock),
          first(kBlock * rows),
          size(kBlock * rows),
          count(kBlock * rows),
          chosen(K * kBlock * rows),
          taken(kBlock * rows) {}
};

ROBUSTDML_CLONES void fill_units(std::uint64_t key, std::uint64_t first, std::int64_t count, double* units) {
    for (std::int64_t i = 0; i < count; ++i) units[i] = random_unit(random_word(key, first + i));
}

// Entry `i` of every row: Floyd's sampling without replacement, O(K²) for a row, which at the paper's K = 4
// beats any table. A draw that the row has already gives way to `last`. No branch: chance would decide it.
ROBUSTDML_CLONES void choose_entry(std::int64_t i, std::int64_t K, std::int64_t rows, std::int64_t stride,
                                   const std::int64_t* first, const std::int64_t* size, const double* units,
                                   std::int64_t* chosen, std::int64_t* taken) {
    std::int64_t* const drawn = chosen + i * stride;
    for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t last =
            std::max<std::int64_t>(std::min(std::max(size[r] - K, std::int64_t(0)) + i, size[r] - 1), 0);
        drawn[r] = first[r] + scale_unit(units[i * stride + r], last + 1);
        taken[r] = 0;
    }
    for (std::int64_t j = 0; j < i; ++j)
        for (std::int64_t r = 0; r < rows; ++r) taken[r] |= -std::int64_t(chosen[j * stride + r] == drawn[r]);
    for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t last =
            std::max<std::int64_t>(std::min(std::max(size[r] - K, std::int64_t(0)) + i, size[r] - 1), 0);
        drawn[r] ^= (drawn[r] ^ (first[r] + last)) & taken[r];
    }
}

// Of every row: sum of w (ξ⁻ + ξ⁻ of the anchor) over its samples, over their number.
template <class T>
ROBUSTDML_HD void mean_of_rows(std::int64_t K, std::int64_t rows, std::int64_t stride,
                               const Sample<T>* samples, const std::int64_t* chosen, const double* count,
                               double anchor, double* means) {
    for (std::int64_t r = 0; r < rows; ++r) means[r] = 0;
    for (std::int64_t i = 0; i < K; ++i)
        for (std::int64_t r = 0; r < rows; ++r) {
            const Sample<T>& sample = samples[chosen[i * stride + r]];
            const double weight = double(double(i) < count[r]) * double(sample.weight);
            means[r] += weight * (double(sample.negative) + anchor);
        }
    for (std::int64_t r = 0; r < rows; ++r) means[r] /= count[r];
}

// target_clones takes no templates: one plain function per type.
#define ROBUSTDML_STAMP(T)                                                                   \
    ROBUSTDML_CLONES void mean_clone(std::int64_t K, std::int64_t rows, std::int64_t stride, \
                                     const Sample<T>* samples, const std::int64_t* chosen,   \
                                     const double* count, double anchor, double* means) {    \
        mean_of_rows(K, rows, stride, samples, chosen, count, anchor, means);                \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

template <class T>
class Descent {
  public:
    explicit Descent(const SelfPacedProblem<T>& problem)
        : problem_(problem),
          K_(problem.samples_per_class),
          P_(std::min(problem.classes_per_step, problem.C - 1)),
          rows_(P_ + 1),
          samples_(problem.N),
          classes_(problem.C),
          class_sums_(problem.C),
          class_units_(kBlock * P_),
          means_(rows_),
          draws_(rows_, K_) {
        for (std::int64_t i = 0; i < problem.N; ++i)
            samples_[i] = {problem.weights[i], problem.positive[i], problem.negative[i]};
        for (std::int64_t c = 0; c < problem.C; ++c) {
            const std::int64_t start = problem.starts[c], size = problem.starts[c + 1] - start;
            classes_[c] = {start, size, -1};
            for (std::int64_t i = start; i < start + size; ++i) class_sums_[c] += samples_[i].weight;
            sum_of_means_ += class_sums_[c] / static_cast<double>(size);
        }
    }

    void run() {
        for (std::int64_t step = 0; step < problem_.steps; step += kBlock) {
            const std::int64_t block = std::min(kBlock, problem_.steps - step);
            draw(step, block);
            for (std::int64_t i = 0; i < block; ++i) update(step + i, i);
        }
        for (std::int64_t i = 0; i < problem_.N; ++i) problem_.weights[i] = samples_[i].weight;
    }

  private:
    // Streams of the seed: 0 anchors, 1 classes, 2 + i the i-th sample of every class.
    void fill(std::uint64_t stream, std::int64_t first, std::int64_t count, double* units) const {
        fill_units(random_key(problem_.seed, stream), static_cast<std::uint64_t>(first), count, units);
    }

    void draw(std::int64_t step, std::int64_t block) {
        fill(0, step, block, draws_.units.data());
        for (std::int64_t i = 0; i < block; ++i) draws_.anchors[i] = scale_unit(draws_.units[i], problem_.N);
        fill(1, step * P_, block * P_, class_units_.data());
        for (std::int64_t i = 0; i < block; ++i) draw_classes(step + i, i);
        const std::int64_t stride = kBlock * rows_;
        for (std::int64_t i = 0; i < K_; ++i) {
            fill(2 + i, step * rows_, block * rows_, draws_.units.data() + i * stride);
            choose_entry(i, K_, block * rows_, stride, draws_.first.data(), draws_.size.data(),
                         draws_.units.data(), draws_.chosen.data(), draws_.taken.data());
        }
        // The own class was drawn without its last sample: that one stands in for the anchor.
        for (std::int64_t i = 0; i < block; ++i) {
            const std::int64_t own = i * rows_ + P_, last = draws_.first[own] + draws_.size[own];
            for (std::int64_t k = 0; k < K_; ++k) {
                std::int64_t& chosen = draws_.chosen[k * stride + own];
                chosen ^= (chosen ^ last) & -std::int64_t(chosen == draws_.anchors[i]);
            }
        }
    }

    // Other classes, by Floyd as well; a mark at a class tells whether this step has it already.
    void draw_classes(std::int64_t step, std::int64_t slot) {
        const std::int64_t C = problem_.C, c = problem_.classes[draws_.anchors[slot]];
        for (std::int64_t i = 0; i < P_; ++i) {
            const std::int64_t last = C - 1 - P_ + i;
            std::int64_t k = scale_unit(class_units_[slot * P_ + i], last + 1);
            k = k == c ? C - 1 : k;  // the last class stands in for the anchor's
            k = classes_[k].last_step == step ? (last == c ? C - 1 : last) : k;
            classes_[k].last_step = step;
            set_row(slot * rows_ + i, classes_[k].start, classes_[k].size);
        }
        set_row(slot * rows_ + P_, classes_[c].start, classes_[c].size - 1);
    }

    void set_row(std::int64_t row, std::int64_t first, std::int64_t size) {
        draws_.first[row] = first;
        draws_.size[row] = size;
        draws_.count[row] = static_cast<double>(std::min(size, K_));
    }

    void update(std::int64_t step, std::int64_t slot) {
        const std::int64_t a = draws_.anchors[slot], c = problem_.classes[a], stride = kBlock * rows_;
        const std::int64_t* const chosen = draws_.chosen.data() + slot * rows_;
        const double* const count = draws_.count.data() + slot * rows_;
        const Sample<T> anchor = samples_[a];
        const auto size = static_cast<double>(classes_[c].size);

        double G_p = 0;
        for (std::int64_t i = 0; i < K_; ++i) {
            const Sample<T>& sample = samples_[chosen[i * stride + P_]];
            const double weight = double(double(i) < count[P_]) * double(sample.weight);
            G_p += weight * (double(sample.positive) + double(anchor.positive));
        }
        G_p /= std::max(count[P_], 1.0);

        double G_n = 0, G_b = 0;
        if (P_ > 0) {
            mean_clone(K_, P_, stride, samples_.data(), chosen, count, anchor.negative, means_.data());
            for (std::int64_t k = 0; k < P_; ++k) G_n += means_[k];
            G_n /= static_cast<double>(P_);
            const double mean = class_sums_[c] / size;
            G_b = 2 * problem_.mu * (mean - (sum_of_means_ - mean) / static_cast<double>(problem_.C - 1));
        }

        const double rate = problem_.rates[c] / (1 + problem_.decay * static_cast<double>(step));
        const double moved = double(anchor.weight) - rate * (G_p + G_n + G_b - problem_.lam);
        samples_[a].weight = static_cast<T>(std::min(std::max(moved, 0.0), 1.0));
        const double change = double(samples_[a].weight) - double(anchor.weight);
        class_sums_[c] += change;
        sum_of_means_ += change / size;
    }

    const SelfPacedProblem<T>& problem_;
    const std::int64_t K_;
    const std::int64_t P_;  // as many as there are
    const std::int64_t rows_;
    std::vector<Sample<T>> samples_;
    std::vector<Class> classes_;
    std::vector<double> class_sums_;
    double sum_of_means_ = 0;
    std::vector<double> class_units_;  // (kBlock, P)
    std::vector<double> means_;
    Draws draws_;
};

}  // namespace

template <class T>
void self_paced_descent(const SelfPacedProblem<T>& problem) {
    Descent<T>(problem).run();
}

template void self_paced_descent<float>(const SelfPacedProblem<float>&);
template void self_paced_descent<double>(const SelfPacedProblem<double>&);

}  // namespace robustdml::cpu
