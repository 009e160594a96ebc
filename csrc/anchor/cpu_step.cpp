#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "anchor/cpu_sweep.h"
#include "math/limits.h"

namespace robustdml::cpu {
namespace {

// Margins of Adaptive Proxy-Anchor.
template <class T>
struct LearntMargins {
    const T* values;        // (count,) in
    std::int64_t count;     // 1: one margin of all samples; else that of each class
    double regularization;  // lambda: the loss adds lambda / mean(m)
    T* gradients;           // (count,) out
};

// Adds log weight to the biases (B,) of the exponents, and counts |P+|: the classes that have a sample of
// positive weight. False for a weight that is negative, NaN or beyond `most`.
template <class T>
bool weigh(const T* weights, T most, const std::vector<std::int64_t>& sorted,
           const std::vector<std::int64_t>& order, std::vector<T>& biases, std::int64_t& present) {
    present = 0;
    std::int64_t last = -1;
    for (std::size_t place = 0; place < order.size(); ++place) {
        const T weight = weights[order[place]];
        if (!(weight >= T(0) && weight <= most)) return false;
        biases[order[place]] += weight > T(0) ? std::log(weight) : -kInfinity<T>;
        if (weight > T(0) && sorted[place] != last) {
            last = sorted[place];
            ++present;
        }
    }
    return true;
}

// The biases (B,) alpha m of learnt margins, and their mean. False where the mean is not positive.
template <class T>
bool take_margins(const LearntMargins<T>& margins, const std::int64_t* labels, double alpha,
                  std::vector<T>& biases, double& mean) {
    mean = std::accumulate(margins.values, margins.values + margins.count, 0.0) / margins.count;
    for (std::size_t x = 0; x < biases.size(); ++x)
        biases[x] = static_cast<T>(alpha) * margins.values[margins.count == 1 ? 0 : labels[x]];
    return mean > 0;
}

// dL/dm of the sums, whose gradients of the biases (B,) are given, and of lambda / mean(m).
template <class T>
void margin_gradients(const LearntMargins<T>& margins, const std::int64_t* labels, double alpha, double mean,
                      const std::vector<T>& dpositive, const std::vector<T>& dnegative) {
    std::vector<double> sums(margins.count, -margins.regularization / (margins.count * mean * mean));
    for (std::size_t x = 0; x < dpositive.size(); ++x)
        sums[margins.count == 1 ? 0 : labels[x]] += alpha * (double(dpositive[x]) + dnegative[x]);
    std::copy(sums.begin(), sums.end(), margins.gradients);
}

}  // namespace

template <class T>
bool anchor_step(Gemm<T> gemm, SetThreads set_threads, const T* X, const std::int64_t* labels,
                 const T* weights, const T* P, std::int64_t B, std::int64_t D, std::int64_t C, double alpha,
                 double bias, const T* margins, std::int64_t margin_count, double regularization,
                 std::int64_t chunk_rows, int threads, T* dX, T* dP, T* dmargins, T* loss) {
    if (!std::all_of(labels, labels + B, [=](std::int64_t label) { return 0 <= label && label < C; }))
        return false;
    std::vector<T> unit(B * D), inverse_norm(B);
    const Rows<T> U{unit.data(), D, 1};
    if (!normalize_rows({X, D, 1}, U, inverse_norm.data(), B, D, threads)) return false;
    // Where an embedding has NaN or inf.
    if (std::any_of(inverse_norm.begin(), inverse_norm.end(), [](T norm) { return norm != norm; }))
        return false;
    std::vector<std::int64_t> sorted(B), order(B);
    std::int64_t present = sort_labels(labels, B, sorted.data(), order.data());
    std::vector<T> biases(B, static_cast<T>(bias));
    const LearntMargins<T> learnt{margins, margin_count, regularization, dmargins};
    double mean_margin = 0;
    if (margins && !take_margins(learnt, labels, alpha, biases, mean_margin)) return false;
    // As `largest_weight`.
    const T most = std::sqrt(kLargest<T>) / T(16);
    if (weights && !weigh(weights, most, sorted, order, biases, present)) return false;
    const T of_positives = static_cast<T>(1.0 / std::max<std::int64_t>(1, present)),
            of_negatives = static_cast<T>(1.0 / C);
    if (dX) std::fill_n(dX, B * D, T(0));

    Sweep<T> sweep{};
    sweep.gemm = gemm;
    sweep.set_threads = set_threads;
    sweep.X = unit.data();
    sweep.B = B;
    sweep.D = sweep.P_row_stride = sweep.dP_row_stride = D;
    sweep.P = P;
    sweep.P_column_stride = sweep.dP_column_stride = 1;
    sweep.rows = C;
    sweep.normalize = true;
    sweep.dX = dX;
    sweep.dP = dP;
    sweep.chunk_rows = chunk_rows;
    sweep.threads = threads;
    AnchorChunk<T> whole{};
    whole.rows = C;
    whole.B = B;
    whole.alpha = static_cast<T>(alpha);
    whole.labels_each = 1;
    whole.positive_bias = whole.negative_bias = biases.data();
    // As `AnchorProblem.needs_row_max`.
    const T largest = *std::max_element(biases.begin(), biases.end());
    whole.row_max = alpha + largest + std::log(B) > (sizeof(T) == 4 ? 85.0 : 700.0);
    whole.upstream_positive = &of_positives;
    whole.upstream_negative = &of_negatives;
    std::vector<T> dpositive(dmargins ? B : 0, T(0)), dnegative(dpositive);
    if (dmargins) {
        whole.dpositive_bias = dpositive.data();
        whole.dnegative_bias = dnegative.data();
    }
    double total = margins ? regularization / mean_margin : 0;
    if (anchor_sweep_labels(whole, {sorted.data(), order.data(), 0}, sweep, &total)) return false;
    if (dX) normalize_rows_backward({dX, D, 1}, {unit.data(), D, 1}, inverse_norm.data(), B, D, threads);
    if (dmargins) margin_gradients(learnt, labels, alpha, mean_margin, dpositive, dnegative);
    *loss = static_cast<T>(total);
    return std::isfinite(*loss);
}

#define ROBUSTDML_STAMP(T)                                                                               \
    template bool anchor_step<T>(Gemm<T>, SetThreads, const T*, const std::int64_t*, const T*, const T*, \
                                 std::int64_t, std::int64_t, std::int64_t, double, double, const T*,     \
                                 std::int64_t, double, std::int64_t, int, T*, T*, T*, T*);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
