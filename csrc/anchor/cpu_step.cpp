#include <algorithm>
#include <cmath>
#include <vector>

#include "anchor/cpu_sweep.h"
#include "math/limits.h"

namespace robustdml::cpu {
namespace {

// Biases (B,) of the exponents, alpha margin + log weight, and |P+|: the number of classes that have a
// sample of positive weight. False for a weight that is negative, NaN or beyond `most`.
template <class T>
bool weigh(const T* weights, T bias, T most, const std::vector<std::int64_t>& sorted,
           const std::vector<std::int64_t>& order, std::vector<T>& biases, std::int64_t& present) {
    present = 0;
    std::int64_t last = -1;
    for (std::size_t place = 0; place < order.size(); ++place) {
        const T weight = weights[order[place]];
        if (!(weight >= T(0) && weight <= most)) return false;
        biases[order[place]] = weight > T(0) ? bias + std::log(weight) : -kInfinity<T>;
        if (weight > T(0) && sorted[place] != last) {
            last = sorted[place];
            ++present;
        }
    }
    return true;
}

}  // namespace

template <class T>
bool anchor_step(Gemm<T> gemm, SetThreads set_threads, const T* X, const std::int64_t* labels,
                 const T* weights, const T* P, std::int64_t B, std::int64_t D, std::int64_t C, double alpha,
                 double bias, std::int64_t chunk_rows, int threads, T* dX, T* dP, T* loss) {
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
    // As `largest_weight`.
    const T most = std::sqrt(kLargest<T>) / T(16);
    if (weights && !weigh(weights, static_cast<T>(bias), most, sorted, order, biases, present)) return false;
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
    double total = 0;
    if (anchor_sweep_labels(whole, {sorted.data(), order.data(), 0}, sweep, &total)) return false;
    if (dX) normalize_rows_backward({dX, D, 1}, {unit.data(), D, 1}, inverse_norm.data(), B, D, threads);
    *loss = static_cast<T>(total);
    return std::isfinite(*loss);
}

#define ROBUSTDML_STAMP(T)                                                                               \
    template bool anchor_step<T>(Gemm<T>, SetThreads, const T*, const std::int64_t*, const T*, const T*, \
                                 std::int64_t, std::int64_t, std::int64_t, double, double, std::int64_t, \
                                 int, T*, T*, T*);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
