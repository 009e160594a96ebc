#include "pairs/cpu_tiles.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/cpu/parts.h"
#include "common/cpu/rounds.h"
#include "math/limits.h"
#include "pairs/cpu_softmax.h"
#include "pairs/cpu_tile.h"
#include "rows/cpu.h"

namespace robustdml::cpu {
namespace {

// Rows of a tile at least.
constexpr std::int64_t kLeast = 64;

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
        if (pass == kExponentials || !stays) {
            multiply(tiles.gemm, X, transposed(Y), {tile.S, width, 1}, height, width, D, false);
            pass_of_tile(tile, logits, kCosines);
        }
        for (const Edge<T>* edge : {&tile.rows, &tile.columns}) {
            std::fill_n(edge->of(kEnd), 2 * kMost, -kInfinity<T>);
            std::fill_n(edge->of(kE), (kSums - kE) * kMost, T(0));
        }
        if (pass == kExponentials) pass_of_tile(tile, logits, kEnds);
        const bool each = logits.form == Contrast::each && positives[task];
        pass_of_tile(tile, logits, pass == kGradient && each ? kGradientOfEach : pass);
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
