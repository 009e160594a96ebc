#include "pairs/cpu_step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <type_traits>
#include <vector>

#include "math/limits.h"
#include "pairs/cpu_relations.h"

namespace robustdml::cpu {

void narrow_labels(const std::int64_t* labels, std::int64_t count, PairLabel* narrow) {
    constexpr std::int64_t absent = kAbsent<std::int64_t>;
    std::int64_t low = std::numeric_limits<std::int64_t>::max(), high = absent;
    for (std::int64_t i = 0; i < count; ++i) {
        if (labels[i] != absent) low = std::min(low, labels[i]);
        high = std::max(high, labels[i]);
    }
    if (low > kAbsent<PairLabel> && high <= std::numeric_limits<PairLabel>::max()) {
        std::transform(labels, labels + count, narrow, [](std::int64_t label) {
            return label == absent ? kAbsent<PairLabel> : static_cast<PairLabel>(label);
        });
        return;
    }
    std::vector<std::int64_t> distinct(labels, labels + count);
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::transform(labels, labels + count, narrow, [&](std::int64_t label) {
        const auto place = std::lower_bound(distinct.begin(), distinct.end(), label) - distinct.begin();
        return label == absent ? kAbsent<PairLabel> : static_cast<PairLabel>(place);
    });
}

namespace {

// Labels of anchors and candidates.
struct Labels {
    std::vector<PairLabel> all;
    std::int64_t n;
    std::int64_t m;
    const PairLabel* anchors;
    const PairLabel* candidates;
    std::optional<Relations> relations;  // where a sample has several labels, or an id

    std::int64_t positive_pairs(bool itself) const {
        if (relations) return related_pairs(itself).positive;
        std::vector<PairLabel> sorted(candidates, candidates + m);
        std::sort(sorted.begin(), sorted.end());
        std::int64_t pairs = 0;
        for (std::int64_t i = 0; i < n; ++i) {
            if (anchors[i] == kAbsent<PairLabel>) continue;
            const auto equal = std::equal_range(sorted.begin(), sorted.end(), anchors[i]);
            pairs += equal.second - equal.first - (itself ? 1 : 0);
        }
        return pairs;
    }
    struct Pairs {
        std::int64_t positive;
        std::int64_t negative;
    };
    Pairs related_pairs(bool itself) const {
        std::vector<PairLabel> sorted(candidates, candidates + m);
        std::sort(sorted.begin(), sorted.end());
        const std::int64_t present =
            m - std::count(sorted.begin(), sorted.end(), kAbsent<PairLabel>) - (itself ? 1 : 0);
        RowLabels own(*relations, candidates, 0, m);
        Pairs all{0, 0};
        for (std::int64_t i = 0; i < n; ++i) {
            if (anchors[i] == kAbsent<PairLabel>) continue;
            own.begin(i, anchors[i]);
            const RowLabels::Numbers numbers = own.numbers(anchors[i], itself ? i : m);
            own.end();
            std::int64_t positives = numbers.positives;
            if (!relations->several) {
                const auto equal = std::equal_range(sorted.begin(), sorted.end(), anchors[i]);
                positives += equal.second - equal.first - (itself ? 1 : 0);
            }
            all.positive += positives;
            all.negative += present - positives - numbers.excluded;
        }
        return all;
    }
    bool have_negatives(bool itself) const {
        if (relations) return related_pairs(itself).negative > 0;
        PairLabel first = kAbsent<PairLabel>;
        for (const PairLabel label : all) {
            if (label == kAbsent<PairLabel>) continue;
            if (first != kAbsent<PairLabel> && label != first) return true;
            first = label;
        }
        return false;
    }
};

// The label of a sample; of K > 1 labels 1, or none where all are absent.
std::int64_t label_of(const std::int64_t* labels, std::int64_t i, std::int64_t K) {
    constexpr std::int64_t absent = kAbsent<std::int64_t>;
    if (K == 1) return labels[i];
    return std::all_of(labels + i * K, labels + (i + 1) * K, [](auto label) { return label == absent; })
               ? absent
               : 1;
}

// Whether a row of labels (count, K) has one twice, which is an error of the caller.
bool repeat(const std::int64_t* labels, std::int64_t count, std::int64_t K) {
    for (const std::int64_t* row = labels; labels && row < labels + count * K; row += K)
        for (std::int64_t k = 1; k < K; ++k)
            if (row[k] >= 0 && std::find(row, row + k, row[k]) < row + k) return true;
    return false;
}

template <class T>
Labels labels_of(const PairShape<T>& shape, const PairFormula& formula, const std::int64_t* labels,
                 const std::int64_t* candidate_labels, const std::vector<T>& weights) {
    constexpr std::int64_t absent = kAbsent<std::int64_t>;
    const std::int64_t K = formula.labels_each;
    std::vector<std::int64_t> all(shape.n + (candidate_labels ? shape.m : 0));
    for (std::int64_t i = 0; i < shape.n; ++i) {
        const bool is_absent = weights[i] == T(0) && formula.absent_zero_weights;
        all[i] = is_absent ? absent : labels ? label_of(labels, i, K) : i;
    }
    for (std::int64_t x = 0; candidate_labels && x < shape.m; ++x)
        all[shape.n + x] = formula.has_ignored && candidate_labels[x] == formula.ignored
                               ? absent
                               : label_of(candidate_labels, x, K);
    Labels narrow{std::vector<PairLabel>(all.size()), shape.n, shape.m, nullptr, nullptr, std::nullopt};
    narrow_labels(all.data(), all.size(), narrow.all.data());
    narrow.anchors = narrow.all.data();
    narrow.candidates = candidate_labels ? narrow.anchors + shape.n : narrow.anchors;
    return narrow;
}

// As largest_weight() of engine/validation.py: a loss times two of them, summed over a batch, is finite.
template <class T>
bool is_weight(double weight) {
    return weight >= 0 && weight <= std::sqrt(double(std::numeric_limits<T>::max())) / 16;
}

// Weights of the samples, empty where one is none.
template <class T>
std::vector<T> weights_of(const PairShape<T>& shape, const PairFormula& formula, const void* given) {
    std::vector<T> weights(shape.n, T(1));
    for (std::int64_t i = 0; i < shape.n; ++i) {
        if (given)
            weights[i] = formula.bool_weights ? T(static_cast<const bool*>(given)[i])
                                              : static_cast<const T*>(given)[i];
        if (!is_weight<T>(weights[i])) return {};
    }
    return weights;
}

// Matrices and gradients of a call.
template <class T>
struct Matrices {
    const T* X;
    const T* candidates;
    T* dX;
    T* dcandidates;
};

// Sums of the rows of one side, which are anchors of the other.
template <class T>
struct SideSums {
    std::vector<T> positive, negative, dscale, dbias;
    std::vector<std::int64_t> counts;
    explicit SideSums(std::int64_t n) : positive(n), negative(n), dscale(n), dbias(n), counts(2 * n) {}

    void fill(PairLSEProblem<T>&, const Matrices<T>&, std::int64_t) {}
    void fill(PairHingeProblem<T>& problem, const Matrices<T>& given, std::int64_t D) {
        problem.positive_count = counts.data();
        problem.negative_count = counts.data() + positive.size();
        problem.anchors = given.X;
        problem.candidates = given.candidates ? given.candidates : given.X;
        problem.D = D;
    }
    void fill(PairContrastProblem<T>& problem, const Matrices<T>&, std::int64_t) {
        problem.dscale = dscale.data();
        problem.dbias = dbias.data();
    }
    std::int64_t terms(int side) const {
        const auto first = counts.begin() + side * positive.size();
        return std::max<std::int64_t>(1, std::accumulate(first, first + positive.size(), std::int64_t(0)));
    }
};

// A step while it runs: constants of the samples, and sums.
template <class T, class Problem>
struct Running {
    const PairShape<T>& shape;
    const PairFormula& formula;
    const Matrices<T>& given;
    Problem problem;
    const Labels& labels;
    std::vector<T> positive_scale, negative_scale;  // (n,) factors of the sums
    SideSums<T> sums, column_sums;

    Running(const PairShape<T>& shape, const PairFormula& formula, const Matrices<T>& given,
            const Problem& problem, const Labels& labels)
        : shape(shape),
          formula(formula),
          given(given),
          problem(problem),
          labels(labels),
          sums(shape.n),
          column_sums(formula.both_sides ? shape.m : 0) {
        sums.fill(this->problem, given, shape.D);
    }

    Divisor divisor() const { return static_cast<Divisor>(formula.divisor); }

    // False where a scale is beyond the weights that are served.
    bool scale_samples(const std::vector<T>& weights) {
        const std::int64_t present = std::count_if(weights.begin(), weights.end(), [](T w) { return w > 0; });
        const double samples = divisor() == Divisor::present   ? std::max<std::int64_t>(1, present)
                               : divisor() == Divisor::samples ? shape.n
                                                               : 1;
        const auto scaled = [&](double side) {
            std::vector<T> scales(shape.n);
            std::transform(weights.begin(), weights.end(), scales.begin(),
                           [=](T weight) { return static_cast<T>(weight / (samples * side)); });
            return scales;
        };
        positive_scale = scaled(formula.positive_divisor);
        negative_scale = scaled(formula.negative_divisor);
        const auto served = [](T scale) { return is_weight<T>(scale); };
        return std::all_of(positive_scale.begin(), positive_scale.end(), served) &&
               std::all_of(negative_scale.begin(), negative_scale.end(), served);
    }

    Pairs<T> side(SideSums<T>& of_side, const PairLabel* own, const PairLabel* others, bool differentiates) {
        Pairs<T> whole{};
        whole.relations = labels.relations ? &*labels.relations : nullptr;
        whole.rows = own == labels.anchors ? shape.n : shape.m;
        whole.m = own == labels.anchors ? shape.m : shape.n;
        whole.labels = own;
        whole.candidate_labels = others;
        whole.itself = formula.itself ? 0 : -1;
        whole.upstream_positive = differentiates ? positive_scale.data() : nullptr;
        whole.upstream_negative = differentiates ? negative_scale.data() : nullptr;
        whole.upstream_positive_stride = whole.upstream_negative_stride = 1;
        whole.positive = of_side.positive.data();
        whole.negative = of_side.negative.data();
        return whole;
    }

    bool sweep(T* dX, T* dcandidates, bool differentiates) {
        SideSums<T>& of_columns = formula.both_sides ? column_sums : sums;
        return pair_whole_sweep(shape, problem, side(sums, labels.anchors, labels.candidates, differentiates),
                                side(of_columns, labels.candidates, labels.anchors, differentiates), given.X,
                                given.candidates, dX, dcandidates);
    }

    bool run(bool differentiates) {
        const bool twice = divisor() == Divisor::terms && static_cast<PairWay>(shape.way) != PairWay::batch;
        if (!twice) return sweep(given.dX, given.dcandidates, differentiates);
        // The number of terms is known after a sweep.
        if (!sweep(nullptr, nullptr, false)) return false;
        if (!differentiates) return true;
        const T terms[] = {static_cast<T>(sums.terms(0)), static_cast<T>(sums.terms(1))};
        const std::vector<T> scales[] = {positive_scale, negative_scale};
        for (T& scale : positive_scale) scale /= terms[0];
        for (T& scale : negative_scale) scale /= terms[1];
        const bool served = sweep(given.dX, given.dcandidates, true);
        positive_scale = scales[0];
        negative_scale = scales[1];
        return served;
    }

    double total() const {
        double positive = 0, negative = 0;
        for (std::int64_t i = 0; i < shape.n; ++i) {
            positive += positive_scale[i] * sums.positive[i];
            if (formula.both_sides) positive += positive_scale[i] * column_sums.positive[i];
            negative += negative_scale[i] * sums.negative[i];
        }
        if (divisor() != Divisor::terms) return positive + negative;
        return positive / sums.terms(0) + negative / sums.terms(1);
    }

    // What a sweep does not know before its end.
    double remaining_divisor() const {
        if (divisor() == Divisor::pairs)
            return std::max<std::int64_t>(1, labels.positive_pairs(formula.itself));
        if (divisor() != Divisor::above) return 1;
        if (!labels.have_negatives(formula.itself)) return kInfinity<double>;
        return std::max<std::int64_t>(
            1, std::count_if(sums.positive.begin(), sums.positive.end(), [](T loss) { return loss > T(0); }));
    }
};

template <class T>
void scale_by(T* values, std::int64_t count, T factor) {
    for (std::int64_t i = 0; values && i < count; ++i) values[i] *= factor;
}

}  // namespace

template <class T, class Problem>
bool pair_step(const PairShape<T>& shape, const PairFormula& formula, const Problem& problem, const T* X,
               const T* candidates, const std::int64_t* labels, const std::int64_t* candidate_labels,
               const void* weights, const T* logit_scale, const T* logit_bias, const std::int64_t* ids,
               const std::int64_t* candidate_ids, T* dX, T* dcandidates, T* dlogit_scale, T* dlogit_bias,
               T* loss) {
    const std::vector<T> w = weights_of(shape, formula, weights);
    if (w.empty() || repeat(labels, shape.n, formula.labels_each) ||
        repeat(candidate_labels, shape.m, formula.labels_each))
        return false;
    Labels narrow = labels_of(shape, formula, labels, candidate_labels, w);
    if (formula.labels_each > 1 || formula.ids_each > 0) {
        // By candidates, these are the rows, see pair_hinge_sweep.
        const bool turned = static_cast<PairWay>(shape.way) == PairWay::candidates;
        const std::int64_t* const label_sides[] = {labels, candidate_labels ? candidate_labels : labels};
        const std::int64_t* const id_sides[] = {ids, candidate_ids ? candidate_ids : ids};
        narrow.relations.emplace(label_sides[turned], label_sides[!turned], turned ? shape.m : shape.n,
                                 turned ? shape.n : shape.m, formula.labels_each, id_sides[turned],
                                 id_sides[!turned], formula.ids_each, formula.ids_keep_positives);
    }
    const Matrices<T> given{X, candidates, dX, dcandidates};
    Running<T, Problem> running(shape, formula, given, problem, narrow);
    if (!running.scale_samples(w)) return false;
    T coefficients[] = {static_cast<T>(formula.scale), T(0)};
    if constexpr (std::is_same_v<Problem, PairContrastProblem<T>>) {
        // As `TwoTowerLoss` refuses it: an exponential beyond the type.
        if (logit_scale && !(std::abs(*logit_scale) <= (sizeof(T) == 4 ? 80 : 700))) return false;
        if (logit_scale) coefficients[0] = static_cast<T>(std::exp(double(*logit_scale)));
        if (logit_bias) coefficients[1] = *logit_bias;
        if (!std::isfinite(coefficients[0]) || !std::isfinite(coefficients[1])) return false;
        running.problem.coefficients = coefficients;
    }
    if constexpr (std::is_same_v<Problem, PairLSEProblem<T>>)
        if (formula.candidate_weights) running.problem.candidate_weights = w.data();
    if (!running.run(dX || dcandidates || dlogit_scale || dlogit_bias)) return false;
    const T divisor = static_cast<T>(running.remaining_divisor());
    *loss = static_cast<T>(running.total()) / divisor;
    if (divisor != T(1)) {
        scale_by(dX, shape.n * shape.D, 1 / divisor);
        scale_by(dcandidates, shape.m * shape.D, 1 / divisor);
    }
    const auto sum = [](const std::vector<T>& parts) {
        return static_cast<T>(std::accumulate(parts.begin(), parts.end(), 0.0));
    };
    if (dlogit_scale) *dlogit_scale = sum(running.sums.dscale) * coefficients[0];
    if (dlogit_bias) *dlogit_bias = sum(running.sums.dbias);
    return std::isfinite(*loss);
}

#define ROBUSTDML_STAMP(T, Problem)                                                                         \
    template bool pair_step(const PairShape<T>&, const PairFormula&, const Problem<T>&, const T*, const T*, \
                            const std::int64_t*, const std::int64_t*, const void*, const T*, const T*,      \
                            const std::int64_t*, const std::int64_t*, T*, T*, T*, T*, T*);
ROBUSTDML_STAMP(float, PairLSEProblem)
ROBUSTDML_STAMP(float, PairHingeProblem)
ROBUSTDML_STAMP(float, PairContrastProblem)
ROBUSTDML_STAMP(double, PairLSEProblem)
ROBUSTDML_STAMP(double, PairHingeProblem)
ROBUSTDML_STAMP(double, PairContrastProblem)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
