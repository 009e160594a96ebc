#include "pairs/cpu_whole.h"

#include <algorithm>
#include <type_traits>

#include "pairs/cpu_sweep.h"
#include "pairs/cpu_symmetric.h"
#include "pairs/cpu_tiles.h"

namespace robustdml::cpu {
namespace {

// Rows of length 1, with 1 / |row|.
template <class T>
struct UnitRows {
    Buffer<T> rows;
    Buffer<T> inverse_norm;
    bool are_plain;  // no row is out of reach, or has NaN or inf

    UnitRows(const PairShape<T>& shape, const T* given, std::int64_t count)
        : rows(count * shape.D), inverse_norm(count) {
        are_plain = normalize_rows<T>({given, shape.D, 1}, {rows.get(), shape.D, 1}, inverse_norm.get(),
                                      count, shape.D, shape.threads) &&
                    have_lengths(inverse_norm.get(), count);
    }

    static bool have_lengths(const T* inverse_norm, std::int64_t count) {
        return std::none_of(inverse_norm, inverse_norm + count, [](T norm) { return norm != norm; });
    }
    void differentiate(const PairShape<T>& shape, T* gradient, std::int64_t count) const {
        normalize_rows_backward<T>({gradient, shape.D, 1}, {rows.get(), shape.D, 1}, inverse_norm.get(),
                                   count, shape.D, shape.threads);
    }
};

template <class T>
bool inverse_lengths(const PairShape<T>& shape, const T* rows, T* inverse_norm, std::int64_t count) {
    return inverse_norms<T>({rows, shape.D, 1}, inverse_norm, count, shape.D, shape.threads) &&
           UnitRows<T>::have_lengths(inverse_norm, count);
}

// Matrices and gradients of a call.
template <class T>
struct Matrices {
    const T* X;
    const T* candidates;
    T* dX;
    T* dcandidates;
};

template <class T, class Problem>
bool sweep_of_batch(const PairShape<T>& shape, Pairs<T> whole, const Problem& problem,
                    const Matrices<T>& given) {
    const UnitRows<T> unit(shape, given.X, shape.n);
    if (!unit.are_plain) return false;
    const Buffer<T> S(shape.n * shape.n);
    whole.S = S.get();
    pair_symmetric(whole, problem,
                   Batch<T>{shape.gemm, shape.set_threads, unit.rows.get(), shape.n, shape.D, S.get(),
                            given.dX, shape.average, shape.threads});
    if (given.dX) unit.differentiate(shape, given.dX, shape.n);
    return true;
}

template <class T>
bool sweep_of_tiles(const PairShape<T>& shape, Pairs<T> rows, Pairs<T> columns,
                    const PairContrastProblem<T>& problem, const Matrices<T>& given) {
    const std::int64_t n = shape.n, m = shape.m;
    const Buffer<T> inverse_norm(n + m);
    if (!inverse_lengths(shape, given.X, inverse_norm.get(), n)) return false;
    if (given.candidates && !inverse_lengths(shape, given.candidates, inverse_norm.get() + n, m))
        return false;
    rows.inverse_norm = inverse_norm.get();
    columns.inverse_norm = inverse_norm.get() + n;
    if (given.dX) std::fill_n(given.dX, n * shape.D, T(0));
    if (given.dcandidates) std::fill_n(given.dcandidates, m * shape.D, T(0));
    const bool alone = !given.candidates;
    pair_contrast_tiles(
        rows, alone ? rows : columns, problem,
        ContrastTiles<T>{shape.gemm, shape.set_threads, shape.D, given.X, alone ? given.X : given.candidates,
                         given.dX, alone ? given.dX : given.dcandidates, alone, shape.S_bytes,
                         shape.threads});
    return true;
}

// Products of unit rows X (B, D) with `rows` rows of P.
template <class T>
Sweep<T> lanes_of(const PairShape<T>& shape, const UnitRows<T>& X, std::int64_t B, const void* P,
                  std::int64_t rows, T* dX, void* dP) {
    Sweep<T> sweep{};
    sweep.gemm = shape.gemm;
    sweep.set_threads = shape.set_threads;
    sweep.X = X.rows.get();
    sweep.B = B;
    sweep.P = P;
    sweep.rows = rows;
    sweep.D = sweep.P_row_stride = sweep.dP_row_stride = shape.D;
    sweep.P_column_stride = sweep.dP_column_stride = 1;
    sweep.normalize = true;
    sweep.dX = dX;
    sweep.dP = dP;
    sweep.chunk_rows = shape.chunk_rows;
    sweep.threads = shape.threads;
    return sweep;
}

template <class T, class Problem>
bool sweep_by_anchors(const PairShape<T>& shape, const Pairs<T>& whole, const Problem& problem,
                      const Matrices<T>& given) {
    const bool alone = !given.candidates;
    const UnitRows<T> unit(shape, alone ? given.X : given.candidates, shape.m);
    if (!unit.are_plain) return false;
    // A comparison with NaN is false: the sums would leave out such an anchor without a word.
    const Buffer<T> inverse_norm(alone ? 0 : shape.n);
    if (!alone && !inverse_lengths(shape, given.X, inverse_norm.get(), shape.n)) return false;
    const Buffer<T> own(alone && given.dX ? shape.m * shape.D : 0);
    T* const dcandidates = alone ? own.get() : given.dcandidates;
    pair_sweep(whole, problem, lanes_of(shape, unit, shape.m, given.X, shape.n, dcandidates, given.dX));
    if (dcandidates) unit.differentiate(shape, dcandidates, shape.m);
    for (std::int64_t i = 0; own.get() && i < shape.m * shape.D; ++i) given.dX[i] += dcandidates[i];
    return true;
}

template <class T>
bool sweep_by_candidates(const PairShape<T>& shape, const Pairs<T>& whole, const PairHingeProblem<T>& problem,
                         const T* X, const void* candidates, T* dX, void* dcandidates) {
    const UnitRows<T> unit(shape, X, shape.n);
    if (!unit.are_plain) return false;
    const Buffer<T> scale(shape.m);
    Sweep<T> sweep = lanes_of(shape, unit, shape.n, candidates, shape.m, dX, dcandidates);
    sweep.bfloat16 = shape.bfloat16;
    if (pair_hinge_sweep(whole, problem, sweep, scale.get())) return false;
    if (dX) unit.differentiate(shape, dX, shape.n);
    return UnitRows<T>::have_lengths(scale.get(), shape.m);
}

}  // namespace

template <class T, class Problem>
bool pair_whole_sweep(const PairShape<T>& shape, const Problem& problem, const Pairs<T>& rows,
                      const Pairs<T>& columns, const T* X, const void* candidates, T* dX, void* dcandidates) {
    const auto way = static_cast<PairWay>(shape.way);
    if constexpr (std::is_same_v<Problem, PairHingeProblem<T>>)
        if (way == PairWay::candidates)
            return sweep_by_candidates(shape, rows, problem, X, candidates, dX, dcandidates);
    const Matrices<T> given{X, static_cast<const T*>(candidates), dX, static_cast<T*>(dcandidates)};
    if constexpr (!std::is_same_v<Problem, PairHingeProblem<T>>)
        if (way == PairWay::anchors) return sweep_by_anchors(shape, rows, problem, given);
    if constexpr (std::is_same_v<Problem, PairContrastProblem<T>>)
        if (way == PairWay::tiles) return sweep_of_tiles(shape, rows, columns, problem, given);
    return sweep_of_batch(shape, rows, problem, given);
}

#define ROBUSTDML_STAMP(T, Problem)                                                                          \
    template bool pair_whole_sweep(const PairShape<T>&, const Problem<T>&, const Pairs<T>&, const Pairs<T>&, \
                                   const T*, const void*, T*, void*);
ROBUSTDML_STAMP(float, PairLSEProblem)
ROBUSTDML_STAMP(float, PairHingeProblem)
ROBUSTDML_STAMP(float, PairContrastProblem)
ROBUSTDML_STAMP(double, PairLSEProblem)
ROBUSTDML_STAMP(double, PairHingeProblem)
ROBUSTDML_STAMP(double, PairContrastProblem)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
