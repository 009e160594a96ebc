#include "classes/cpu_step.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "math/limits.h"

namespace robustdml::cpu {
namespace {

// f(s) and f'(s) of the label's cosine.
struct Moved {
    double cosine, slope;
};

// Of cos(t + angle).
Moved turned(double angle, double cosine) {
    // The sine's derivative has a pole where the vectors are parallel: there it is a constant 0.
    const double sine = std::abs(cosine) < 1 ? std::sqrt((1 - cosine) * (1 + cosine)) : 0;
    const double slope = sine > 0 ? std::sin(angle) * cosine / sine : 0;
    return {cosine * std::cos(angle) - sine * std::sin(angle), std::cos(angle) + slope};
}

// `m` of the sample; for Margin::quality its quality z, beside the margin of all.
Moved moved_by(Margin kind, double margin, double m, double cosine) {
    if (kind == Margin::cosine) return {cosine - m, 1};
    const double angle = std::acos(std::clamp(cosine, -1.0, 1.0));
    if (kind == Margin::angle) {
        // Beyond pi - m the cosine of the sum would rise again.
        if (angle > M_PI - m) return {cosine - m * std::sin(m), 1};
        return turned(m, cosine);
    }
    constexpr double kEnd = 1e-3;
    const double turn = -margin * m, wanted = angle + turn, end = std::clamp(wanted, kEnd, M_PI - kEnd);
    const Moved moved = wanted == end ? turned(turn, cosine) : Moved{std::cos(end), 0};
    return {moved.cosine - margin * (1 + m), moved.slope};
}

// log(e^a + e^b); a may be -inf.
double log_add(double a, double b) {
    const double largest = std::max(a, b);
    return largest == -kInfinity<double> ? largest : largest + std::log1p(std::exp(std::min(a, b) - largest));
}

// The number of samples of positive weight, at least 1; 0 where a weight is negative, NaN or too large.
template <class T>
std::int64_t present(const T* weights, std::int64_t B) {
    if (!weights) return B;
    const T most = std::sqrt(kLargest<T>) / T(16);  // as `largest_weight`
    std::int64_t number = 0;
    for (std::int64_t x = 0; x < B; ++x) {
        if (!(weights[x] >= T(0) && weights[x] <= most)) return 0;
        number += weights[x] > T(0);
    }
    return std::max<std::int64_t>(1, number);
}

template <class T>
Sweep<T> sweep_of(const ClassStep<T>& step, const T* U, const T* P) {
    Sweep<T> sweep{};
    sweep.gemm = step.gemm;
    sweep.set_threads = step.set_threads;
    sweep.X = U;
    sweep.B = step.B;
    sweep.D = step.D;
    sweep.P = P;
    sweep.P_row_stride = sweep.dP_row_stride = step.P_row_stride;
    sweep.P_column_stride = sweep.dP_column_stride = step.P_column_stride;
    sweep.rows = step.C * step.H;
    sweep.normalize = true;
    sweep.chunk_rows = step.chunk_rows;
    sweep.threads = step.threads;
    return sweep;
}

template <class T>
ClassChunk<T> whole_of(const ClassStep<T>& step) {
    ClassChunk<T> whole{};
    whole.classes = step.C;
    whole.centers = step.H;
    whole.B = step.B;
    whole.scale = &step.scale;
    whole.pooling = step.pooling;
    whole.gamma = step.gamma;
    whole.labels_each = 1;
    return whole;
}

}  // namespace

template <class T>
bool class_step(const ClassStep<T>& step, const T* X, const T* P, const std::int64_t* labels,
                const T* weights, const T* margins, T* E, T* dX, T* dP, T* loss) {
    const std::int64_t B = step.B, C = step.C, D = step.D, H = step.H, number = present(weights, B);
    if (!number ||
        !std::all_of(labels, labels + B, [=](std::int64_t label) { return 0 <= label && label < C; }))
        return false;
    std::vector<T> unit(B * D), norms(B), G(dX ? B * D : 0);
    if (!normalize_rows<T>({X, D, 1}, {unit.data(), D, 1}, norms.data(), B, D, step.threads)) return false;
    // Where an embedding has NaN or inf.
    if (std::any_of(norms.begin(), norms.end(), [](T norm) { return norm != norm; })) return false;
    std::vector<std::int64_t> sorted(B), order(B);
    sort_labels(labels, B, sorted.data(), order.data());
    const LabelSets sets{sorted.data(), order.data(), 0};
    const ClassChunk<T> whole = whole_of(step);
    Sweep<T> sweep = sweep_of(step, unit.data(), P);

    std::vector<double> total(B);
    std::vector<T> target(B), factor(B), dlogit(B);
    std::vector<T> inverse_norm(dP ? C * H : 0), slopes(dX || dP ? B * H : 0), rows(dX ? B * D : 0);
    const ClassTerms<T> terms{dP ? E : nullptr, dP ? step.kept : 0, dP ? inverse_norm.data() : nullptr,
                              slopes.empty() ? nullptr : slopes.data(), dX ? rows.data() : nullptr};
    sweep.dX = dX ? G.data() : nullptr;
    if (class_terms(whole, sets, terms, {total.data(), target.data(), nullptr, nullptr, nullptr}, sweep))
        return false;

    double sum = 0;
    for (std::int64_t x = 0; x < B; ++x) {
        const double m =
            margins ? double(step.margin_unit) * margins[step.class_margins ? labels[x] : x] : step.margin;
        if (!std::isfinite(m)) return false;
        const Moved moved = moved_by(step.margin_kind, step.margin, m, double(target[x]) / step.scale);
        const double own = step.scale * moved.cosine;
        const double others = kTermShift + std::log(total[x]);
        const double lse = step.exclude_target ? others : log_add(others, own);
        if (lse == -kInfinity<double>) return false;
        // Of the difference of log-sum-exps a loss near 0 would keep no digits.
        const double behind = others - own;
        const double value = step.exclude_target ? behind
                             : behind > 0        ? behind + std::log1p(std::exp(-behind))
                                                 : std::log1p(std::exp(behind));
        const double upstream = (weights ? double(weights[x]) : 1.0) / number;
        sum += upstream * value;
        factor[x] = static_cast<T>(upstream * std::exp(kTermShift - lse));
        dlogit[x] =
            static_cast<T>(-upstream * moved.slope * (step.exclude_target ? 1.0 : std::exp(others - lse)));
    }
    *loss = static_cast<T>(sum);
    if (!std::isfinite(*loss)) return false;
    if (!dX && !dP) return true;

    sweep.dX = dX;
    sweep.dP = dP;
    if (class_terms_backward(whole, sets, terms, {factor.data(), dlogit.data(), dX ? G.data() : nullptr},
                             sweep))
        return false;
    if (dX) normalize_rows_backward<T>({dX, D, 1}, {unit.data(), D, 1}, norms.data(), B, D, step.threads);
    return true;
}

template bool class_step(const ClassStep<float>&, const float*, const float*, const std::int64_t*,
                         const float*, const float*, float*, float*, float*, float*);
template bool class_step(const ClassStep<double>&, const double*, const double*, const std::int64_t*,
                         const double*, const double*, double*, double*, double*, double*);

}  // namespace robustdml::cpu
