#include "pairs/cpu_tiles.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "common/cpu/clones.h"
#include "common/cpu/parts.h"
#include "math/exp.h"
#include "math/limits.h"
#include "math/log.h"
#include "pairs/cpu_softmax.h"
#include "rows/cpu.h"

namespace robustdml::cpu {
namespace {

// Rows of a tile: products of so many are as fast as larger ones, and a tile fits a core's cache.
constexpr std::int64_t kMost = 512, kLeast = 64;

// Of a row over its pairs: the ends, which are the largest cosines s of either set; sums over both sets of
// e = 2^(base2 (s - end)) and of s e; and of the positives' s and number. Contrast::each has three more sums,
// which need those of the negatives.
enum Sum {
    kEnd,
    kNegativeEnd,
    kE,
    kNegativeE,
    kSlope,
    kNegativeSlope,
    kCosine,
    kNumber,
    kLoss,
    kAbove,
    kAboveSlope,
    kSums
};

// Logits are scale s + bias. The bias cancels but in the logarithm of a sum.
template <class T>
struct Logits {
    T scale;
    T base2;
    T bias;
    Contrast form;

    explicit Logits(const ContrastTiles<T>& tiles)
        : scale(tiles.coefficients[0]),
          base2(static_cast<T>(scale * kLog2E)),
          bias(tiles.coefficients[1]),
          form(static_cast<Contrast>(tiles.form)) {}
};

// What the gradient takes of a row: dL/dz is e `negative` of a negative, and e `positive` - `constant` of a
// positive, or -`positive` sigmoid(`constant` - z) with Contrast::each.
enum Factor { kPositiveFactor, kNegativeFactor, kConstant, kPositiveStart, kNegativeStart, kFactors };

// Rows, or columns, of a tile.
template <class T>
struct Edge {
    std::int64_t count;
    const PairLabel* labels;
    const T* inverse_norm;
    const T* factors;     // (kFactors, n) in, from the first row on
    std::int64_t stride;  // n
    T* sums;              // (kSums, kMost) out, of this tile

    const T* of(Factor factor) const { return factors + factor * stride; }
    T* of(Sum sum) const { return sums + sum * kMost; }
};

template <class T>
struct Tile {
    T* S;  // in: products; out of the last pass: their gradient
    Edge<T> rows;
    Edge<T> columns;
    bool diagonal;  // of a batch with itself: columns are the rows, whose sums are all

    // Columns before and behind a row's own place.
    std::int64_t begin(int side, std::int64_t row) const { return side == 0 ? 0 : row + 1; }
    std::int64_t end(int side, std::int64_t row) const { return side == 0 && diagonal ? row : columns.count; }
    int sides() const { return diagonal ? 2 : 1; }
};

template <class T>
ROBUSTDML_HD void ends_of_row(const Tile<T>& t, std::int64_t row) {
    const PairLabel label = t.rows.labels[row];
    const T scale = t.rows.inverse_norm[row];
    const T* s = t.S + row * t.columns.count;
    const PairLabel* labels = t.columns.labels;
    const T* scales = t.columns.inverse_norm;
    T* ends = t.columns.of(kEnd);
    T* negative_ends = t.columns.of(kNegativeEnd);
    T end = -kInfinity<T>, negative_end = -kInfinity<T>;
    for (int side = 0; side < t.sides(); ++side) {
        const std::int64_t from = t.begin(side, row), to = t.end(side, row);
#pragma omp simd reduction(max : end, negative_end)
        for (std::int64_t x = from; x < to; ++x) {
            const bool same = labels[x] == label;
            const T cosine = s[x] * scale * scales[x];
            const T of_positive = same ? cosine : -kInfinity<T>;
            const T of_negative = !same && labels[x] != kAbsent<PairLabel> ? cosine : -kInfinity<T>;
            end = of_positive > end ? of_positive : end;
            negative_end = of_negative > negative_end ? of_negative : negative_end;
            ends[x] = of_positive > ends[x] ? of_positive : ends[x];
            negative_ends[x] = of_negative > negative_ends[x] ? of_negative : negative_ends[x];
        }
    }
    t.rows.of(kEnd)[row] = end;
    t.rows.of(kNegativeEnd)[row] = negative_end;
}

template <class T>
ROBUSTDML_HD void sums_of_row(const Tile<T>& t, const Logits<T>& logits, std::int64_t row) {
    const PairLabel label = t.rows.labels[row];
    const T scale = t.rows.inverse_norm[row], base2 = logits.base2;
    const T end = t.rows.of(kEnd)[row], negative_end = t.rows.of(kNegativeEnd)[row];
    const T* s = t.S + row * t.columns.count;
    const PairLabel* labels = t.columns.labels;
    const T* scales = t.columns.inverse_norm;
    const T* ends = t.columns.of(kEnd);
    const T* negative_ends = t.columns.of(kNegativeEnd);
    T* E = t.columns.of(kE);
    T* negative_E = t.columns.of(kNegativeE);
    T* slopes = t.columns.of(kSlope);
    T* negative_slopes = t.columns.of(kNegativeSlope);
    T* cosines = t.columns.of(kCosine);
    T* numbers = t.columns.of(kNumber);
    T e_sum = 0, negative_sum = 0, slope = 0, negative_slope = 0, cosine_sum = 0, number = 0;
    for (int side = 0; side < t.sides(); ++side) {
        const std::int64_t from = t.begin(side, row), to = t.end(side, row);
#pragma omp simd reduction(+ : e_sum, negative_sum, slope, negative_slope, cosine_sum, number)
        for (std::int64_t x = from; x < to; ++x) {
            const bool same = labels[x] == label, present = labels[x] != kAbsent<PairLabel>;
            const T cosine = s[x] * scale * scales[x];
            const T power = exp2_fast(base2 * (cosine - (same ? end : negative_end)));
            const T its_power = exp2_fast(base2 * (cosine - (same ? ends[x] : negative_ends[x])));
            const T e = present ? power : T(0), its = present ? its_power : T(0);
            const T one = same ? T(1) : T(0), of_positive = same ? cosine : T(0);
            e_sum += same ? e : T(0);
            negative_sum += same ? T(0) : e;
            slope += same ? e * cosine : T(0);
            negative_slope += same ? T(0) : e * cosine;
            cosine_sum += of_positive;
            number += one;
            E[x] += same ? its : T(0);
            negative_E[x] += same ? T(0) : its;
            slopes[x] += same ? its * cosine : T(0);
            negative_slopes[x] += same ? T(0) : its * cosine;
            cosines[x] += of_positive;
            numbers[x] += one;
        }
    }
    t.rows.of(kE)[row] = e_sum;
    t.rows.of(kNegativeE)[row] = negative_sum;
    t.rows.of(kSlope)[row] = slope;
    t.rows.of(kNegativeSlope)[row] = negative_slope;
    t.rows.of(kCosine)[row] = cosine_sum;
    t.rows.of(kNumber)[row] = number;
}

// 1 / (1 + e^-t) and log(1 + e^t).
template <class T>
struct Logistic {
    T sigmoid;
    T softplus;
};

template <class T>
ROBUSTDML_HD Logistic<T> logistic(T t) {
    const T e = exp_fast(t < T(0) ? t : -t);
    return {(t < T(0) ? e : T(1)) / (T(1) + e), log1p_positive(e, t < T(0) ? T(0) : t)};
}

// Contrast::each: of the positives log(1 + e^(constant - z)), its derivative, and s times that.
template <class T>
ROBUSTDML_HD void positives_of_row(const Tile<T>& t, const Logits<T>& logits, std::int64_t row) {
    const PairLabel label = t.rows.labels[row];
    const T scale = t.rows.inverse_norm[row], constant = t.rows.of(kConstant)[row];
    const T* s = t.S + row * t.columns.count;
    const PairLabel* labels = t.columns.labels;
    const T* scales = t.columns.inverse_norm;
    const T* constants = t.columns.of(kConstant);
    T* losses = t.columns.of(kLoss);
    T* aboves = t.columns.of(kAbove);
    T* slopes = t.columns.of(kAboveSlope);
    T loss = 0, above = 0, slope = 0;
    for (int side = 0; side < t.sides(); ++side) {
        const std::int64_t from = t.begin(side, row), to = t.end(side, row);
#pragma omp simd reduction(+ : loss, above, slope)
        for (std::int64_t x = from; x < to; ++x) {
            const bool same = labels[x] == label;
            const T cosine = s[x] * scale * scales[x], z = logits.scale * cosine;
            const Logistic<T> mine = logistic(constant - z), its = logistic(constants[x] - z);
            const T sigmoid = same ? mine.sigmoid : T(0), its_sigmoid = same ? its.sigmoid : T(0);
            loss += same ? mine.softplus : T(0);
            above += sigmoid;
            slope += sigmoid * cosine;
            losses[x] += same ? its.softplus : T(0);
            aboves[x] += its_sigmoid;
            slopes[x] += its_sigmoid * cosine;
        }
    }
    t.rows.of(kLoss)[row] = loss;
    t.rows.of(kAbove)[row] = above;
    t.rows.of(kAboveSlope)[row] = slope;
}

template <class T, bool Each>
ROBUSTDML_HD void gradient_of_row(const Tile<T>& t, const Logits<T>& logits, std::int64_t row) {
    const PairLabel label = t.rows.labels[row];
    const T scale = t.rows.inverse_norm[row], gradient = logits.scale * scale, base2 = logits.base2;
    const T positive = t.rows.of(kPositiveFactor)[row], negative = t.rows.of(kNegativeFactor)[row];
    const T constant = t.rows.of(kConstant)[row];
    const T start = t.rows.of(kPositiveStart)[row], negative_start = t.rows.of(kNegativeStart)[row];
    T* s = t.S + row * t.columns.count;
    const PairLabel* labels = t.columns.labels;
    const T* scales = t.columns.inverse_norm;
    const T* negatives = t.columns.of(kNegativeFactor);
    const T* positives = t.columns.of(kPositiveFactor);
    const T* constants = t.columns.of(kConstant);
    const T* starts = t.columns.of(kPositiveStart);
    const T* negative_starts = t.columns.of(kNegativeStart);
#pragma omp simd
    for (std::int64_t x = 0; x < t.columns.count; ++x) {
        const bool same = labels[x] == label;
        const T cosine = s[x] * scale * scales[x];
        const T e = exp2_fast(base2 * (cosine - (same ? start : negative_start)));
        const T its = exp2_fast(base2 * (cosine - (same ? starts[x] : negative_starts[x])));
        const T of_negative = e * negative + its * negatives[x];
        T of_positive;
        if (Each) {
            const T z = logits.scale * cosine;
            of_positive = -(positive * logistic(constant - z).sigmoid +
                            positives[x] * logistic(constants[x] - z).sigmoid);
        } else {
            of_positive = e * positive + its * positives[x] - (constant + constants[x]);
        }
        const T dz = same ? of_positive : of_negative;
        s[x] = labels[x] != kAbsent<PairLabel> ? dz * gradient * scales[x] : T(0);
    }
    if (t.diagonal) s[row] = T(0);
}

enum Pass { kEnds, kExponentials, kPositives, kGradient, kGradientOfEach };

// An absent row has sums of 0, and adds nothing to those of the columns.
template <class T>
ROBUSTDML_HD void absent_row(const Tile<T>& t, std::int64_t row, Pass pass) {
    for (int sum = kE; sum < kSums; ++sum) t.rows.of(Sum(sum))[row] = T(0);
    t.rows.of(kEnd)[row] = t.rows.of(kNegativeEnd)[row] = -kInfinity<T>;
    if (pass >= kGradient) std::fill_n(t.S + row * t.columns.count, t.columns.count, T(0));
}

template <class T>
ROBUSTDML_HD void pass_of_rows(const Tile<T>& t, const Logits<T>& logits, Pass pass) {
    for (std::int64_t row = 0; row < t.rows.count; ++row) {
        if (t.rows.labels[row] == kAbsent<PairLabel>)
            absent_row(t, row, pass);
        else if (pass == kEnds)
            ends_of_row(t, row);
        else if (pass == kExponentials)
            sums_of_row(t, logits, row);
        else if (pass == kPositives)
            positives_of_row(t, logits, row);
        else if (pass == kGradient)
            gradient_of_row<T, false>(t, logits, row);
        else
            gradient_of_row<T, true>(t, logits, row);
    }
}

#define ROBUSTDML_STAMP(T)                                                                      \
    ROBUSTDML_CLONES void pass_clone(const Tile<T>& tile, const Logits<T>& logits, Pass pass) { \
        pass_of_rows(tile, logits, pass);                                                       \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

// A side while its sweep lasts.
template <class T>
struct Working {
    ContrastSide<T> side;
    std::vector<double> sums;  // (kSums, n)
    std::vector<T> factors;    // (kFactors, n)

    explicit Working(const ContrastSide<T>& given)
        : side(given), sums(kSums * given.n, 0.0), factors(kFactors * given.n, T(0)) {
        std::fill_n(sums.begin(), 2 * given.n, -kInfinity<double>);
    }

    Edge<T> edge(std::int64_t first, std::int64_t count, T* tile_sums) const {
        return {count,    side.labels + first, side.inverse_norm + first, factors.data() + first, side.n,
                tile_sums};
    }
    double& of(Sum sum, std::int64_t i) { return sums[sum * side.n + i]; }
    T& of(Factor factor, std::int64_t i) { return factors[factor * side.n + i]; }

    void add(std::int64_t first, const Edge<T>& edge, Sum from, Sum to) {
        for (int sum = from; sum < to; ++sum)
            for (std::int64_t x = 0; x < edge.count; ++x) of(Sum(sum), first + x) += edge.of(Sum(sum))[x];
    }
    // Two sums of e, each in terms of its end.
    void add_exponentials(std::int64_t first, const Edge<T>& edge, double base2, Sum end, Sum e, Sum slope) {
        for (std::int64_t x = 0; x < edge.count; ++x) {
            const double met = edge.of(end)[x];
            double& known = of(end, first + x);
            if (met == -kInfinity<double>) continue;
            const double before = met > known ? std::exp2(base2 * (known - met)) : 1.0;
            const double now = met > known ? 1.0 : std::exp2(base2 * (met - known));
            of(e, first + x) = of(e, first + x) * before + edge.of(e)[x] * now;
            of(slope, first + x) = of(slope, first + x) * before + edge.of(slope)[x] * now;
            known = std::max(known, met);
        }
    }
};

template <class T>
void finish_softmax(Working<T>& w, const Logits<T>& logits, std::int64_t i) {
    const ContrastSide<T>& side = w.side;
    SoftmaxSums sums{w.of(kE, i),      w.of(kNegativeE, i), w.of(kSlope, i), w.of(kNegativeSlope, i),
                     w.of(kCosine, i), w.of(kNumber, i)};
    const SoftmaxUpstream upstream =
        side.upstream_positive ? SoftmaxUpstream{side.upstream_positive[i * side.upstream_positive_stride],
                                                 side.upstream_negative[i * side.upstream_negative_stride]}
                               : SoftmaxUpstream{0, 0};
    const SoftmaxRow row = softmax_of_sums(sums, w.of(kEnd, i), w.of(kNegativeEnd, i), logits.base2,
                                           logits.bias, logits.form == Contrast::inside, upstream);
    side.loss[i] = static_cast<T>(row.loss);
    side.lse[i] = static_cast<T>(row.lse);
    if (!side.upstream_positive) return;
    side.slope[i] = static_cast<T>(row.slope);
    side.shift[i] = static_cast<T>(row.shift);
    w.of(kPositiveFactor, i) = static_cast<T>(row.positive);
    w.of(kNegativeFactor, i) = static_cast<T>(row.negative);
    w.of(kConstant, i) = static_cast<T>(row.constant);
}

// The ends as the gradient takes them. An empty set has none, and no pair of it asks.
template <class T>
void begin_gradient(Working<T>& w, std::int64_t i) {
    const double end = w.of(kEnd, i), negative_end = w.of(kNegativeEnd, i);
    w.of(kPositiveStart, i) = end == -kInfinity<double> ? T(0) : static_cast<T>(end);
    w.of(kNegativeStart, i) = negative_end == -kInfinity<double> ? T(0) : static_cast<T>(negative_end);
}

// Before the pass over the positives: the logarithm of the negatives' sum.
template <class T>
void begin_each(Working<T>& w, const Logits<T>& logits, std::int64_t i) {
    w.of(kConstant, i) = static_cast<T>(logits.scale * w.of(kNegativeEnd, i) + std::log(w.of(kNegativeE, i)));
}

template <class T>
void finish_each(Working<T>& w, std::int64_t i) {
    const ContrastSide<T>& side = w.side;
    side.loss[i] = static_cast<T>(w.of(kLoss, i));
    side.lse[i] = T(0);
    if (!side.upstream_positive) return;
    const double upstream = side.upstream_positive[i * side.upstream_positive_stride],
                 above = w.of(kAbove, i);
    const double share = above > 0 ? above / w.of(kNegativeE, i) : 0.0;
    side.slope[i] = static_cast<T>(upstream * (share * w.of(kNegativeSlope, i) - w.of(kAboveSlope, i)));
    side.shift[i] = T(0);
    w.of(kPositiveFactor, i) = static_cast<T>(upstream);
    w.of(kNegativeFactor, i) = static_cast<T>(upstream * share);
}

// Tiles in rounds: those of a round share neither rows nor columns, so lanes seldom wait for each other. Rows
// and columns take what tiles add to them in the order of the rounds: the bits don't depend on who does what.
class Rounds {
  public:
    Rounds(std::int64_t rows, std::int64_t columns, bool alone)
        : size_(alone ? rows | 1 : std::max(rows, columns)),
          alone_(alone),
          rows_(rows),
          columns_(columns),
          row_turns_(size_),
          column_turns_(alone ? 0 : size_) {
        begin();
    }

    struct Place {
        std::int64_t row, column, round;
    };

    std::int64_t tasks() const { return size_ * per_round(); }
    void begin() {
        for (auto& turn : row_turns_) turn = 0;
        for (auto& turn : column_turns_) turn = 0;
    }
    // Alone: in round r the pairs with i + j = 2 r (mod size), each once.
    Place place(std::int64_t task) const {
        const std::int64_t round = task / per_round(), k = task % per_round();
        if (!alone_) return {k, (k + round) % size_, round};
        const std::int64_t i = (round + k) % size_, j = (round - k + size_) % size_;
        return {std::min(i, j), std::max(i, j), round};
    }
    bool exists(const Place& place) const { return place.row < rows_ && place.column < columns_; }
    void wait(const Place& place) {
        for (Turn* turn : turns(place))
            while (turn->load(std::memory_order_acquire) != place.round) std::this_thread::yield();
    }
    void leave(const Place& place) {
        for (Turn* turn : turns(place)) turn->store(place.round + 1, std::memory_order_release);
    }

  private:
    using Turn = std::atomic<std::int64_t>;
    std::int64_t per_round() const { return alone_ ? (size_ + 1) / 2 : size_; }
    std::array<Turn*, 2> turns(const Place& place) {
        return {&row_turns_[place.row], &(alone_ ? row_turns_ : column_turns_)[place.column]};
    }

    std::int64_t size_;
    bool alone_;
    std::int64_t rows_, columns_;
    std::vector<Turn> row_turns_, column_turns_;
};

std::int64_t tile_rows(std::int64_t n, int threads) {
    const std::int64_t share = (n / (2 * threads) + kLeast - 1) / kLeast * kLeast;
    return threads == 1 ? kMost : std::clamp(share, kLeast, kMost);
}

template <class T>
struct TileSweep {
    const ContrastTiles<T>& tiles;
    Working<T>& rows;
    Working<T>& columns;
    const Logits<T> logits{tiles};
    const std::int64_t size = tile_rows(std::min(rows.side.n, columns.side.n), tiles.threads);
    Rounds rounds{(rows.side.n + size - 1) / size, (columns.side.n + size - 1) / size, tiles.alone};
    const int lanes = static_cast<int>(std::min<std::int64_t>(tiles.threads, rounds.tasks()));
    const std::int64_t kept = std::min(rounds.tasks(), tiles.kept / std::int64_t(sizeof(T) * size * size));
    const Buffer<T> S = Buffer<T>((kept + lanes) * size * size);
    const Buffer<T> sums = Buffer<T>(lanes * 2 * kSums * kMost);
    std::vector<char> positives = std::vector<char>(rounds.tasks());  // whether a tile has any

    void run(Pass pass) {
        rounds.begin();
        in_lanes(rounds.tasks(), lanes, tiles.set_threads, [&](int lane, std::int64_t task) {
            const auto place = rounds.place(task);
            if (rounds.exists(place) && (pass != kPositives || positives[task]))
                meet(pass, lane, task, place);
            else
                rounds.wait(place);
            rounds.leave(place);
        });
    }

  private:
    void meet(Pass pass, int lane, std::int64_t task, const typename Rounds::Place& place) {
        const std::int64_t D = tiles.D, i = place.row * size, j = place.column * size;
        const std::int64_t height = std::min(size, rows.side.n - i),
                           width = std::min(size, columns.side.n - j);
        const bool stays = task < kept;
        T* const own = sums.get() + lane * 2 * kSums * kMost;
        const Tile<T> tile{S.get() + (stays ? task : kept + lane) * size * size, rows.edge(i, height, own),
                           columns.edge(j, width, own + kSums * kMost), tiles.alone && i == j};
        const Rows<const T> X{rows.side.X + i * D, D, 1}, Y{columns.side.X + j * D, D, 1};
        if (pass == kExponentials || !stays)
            multiply(tiles.gemm, X, transposed(Y), {tile.S, width, 1}, height, width, D, false);
        for (const Edge<T>* edge : {&tile.rows, &tile.columns}) {
            std::fill_n(edge->of(kEnd), 2 * kMost, -kInfinity<T>);
            std::fill_n(edge->of(kE), (kSums - kE) * kMost, T(0));
        }
        if (pass == kExponentials) pass_clone(tile, logits, kEnds);
        const bool each = logits.form == Contrast::each && positives[task];
        pass_clone(tile, logits, pass == kGradient && each ? kGradientOfEach : pass);
        rounds.wait(place);
        if (pass == kGradient) {
            const Rows<const T> dS{tile.S, width, 1};
            if (rows.side.dX)
                multiply(tiles.gemm, dS, Y, {rows.side.dX + i * D, D, 1}, height, D, width, true);
            if (columns.side.dX && !tile.diagonal)
                multiply(tiles.gemm, transposed(dS), X, {columns.side.dX + j * D, D, 1}, width, D, height,
                         true);
            return;
        }
        add(pass, rows, i, tile.rows);
        if (!tile.diagonal) add(pass, columns, j, tile.columns);
        if (pass == kExponentials)
            positives[task] = std::any_of(tile.rows.of(kNumber), tile.rows.of(kNumber) + height,
                                          [](T number) { return number > T(0); });
    }

    void add(Pass pass, Working<T>& side, std::int64_t first, const Edge<T>& edge) const {
        if (pass == kPositives) return side.add(first, edge, kLoss, kSums);
        side.add_exponentials(first, edge, logits.base2, kEnd, kE, kSlope);
        side.add_exponentials(first, edge, logits.base2, kNegativeEnd, kNegativeE, kNegativeSlope);
        side.add(first, edge, kCosine, kLoss);
    }
};

}  // namespace

template <class T>
void pair_contrast_tiles(const ContrastSide<T>& rows, const ContrastSide<T>& columns,
                         const ContrastTiles<T>& tiles) {
    Working<T> of_rows(rows);
    Working<T> of_columns(tiles.alone ? ContrastSide<T>{} : columns);
    Working<T>& others = tiles.alone ? of_rows : of_columns;
    TileSweep<T> sweep{tiles, of_rows, others};
    const auto every_row = [&](auto finish) {
        for (Working<T>* working : {&of_rows, &of_columns})
            in_parts(working->side.n, tiles.threads, working->side.n > 1024,
                     [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t i = begin; i < end; ++i) finish(*working, i);
                     });
    };
    sweep.run(kExponentials);
    if (sweep.logits.form == Contrast::each) {
        every_row([&](Working<T>& working, std::int64_t i) { begin_each(working, sweep.logits, i); });
        sweep.run(kPositives);
        every_row([&](Working<T>& working, std::int64_t i) { finish_each(working, i); });
    } else {
        every_row([&](Working<T>& working, std::int64_t i) { finish_softmax(working, sweep.logits, i); });
    }
    if (!rows.dX && !columns.dX) return;
    every_row([](Working<T>& working, std::int64_t i) { begin_gradient(working, i); });
    sweep.run(kGradient);
    for (const ContrastSide<T>* side : {&of_rows.side, &of_columns.side})
        if (side->dX)
            project_rows<T>({side->dX, tiles.D, 1}, {side->X, tiles.D, 1}, side->inverse_norm, side->n,
                            tiles.D, tiles.threads);
}

template void pair_contrast_tiles<float>(const ContrastSide<float>&, const ContrastSide<float>&,
                                         const ContrastTiles<float>&);
template void pair_contrast_tiles<double>(const ContrastSide<double>&, const ContrastSide<double>&,
                                          const ContrastTiles<double>&);

}  // namespace robustdml::cpu
