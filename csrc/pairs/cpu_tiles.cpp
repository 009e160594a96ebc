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

// A matrix whose rows have losses over those of the other one, while the sweep lasts.
template <class T>
struct Side {
    Pairs<T> chunk;
    const T* X;
    T* dX;
    std::int64_t n;
    std::vector<double> sums;  // (kSums, n)
    std::vector<T> factors;    // (kFactors, n)

    Side(const Pairs<T>& chunk, const T* X, T* dX)
        : chunk(chunk), X(X), dX(dX), n(chunk.rows), sums(kSums * n, 0.0), factors(kFactors * n, T(0)) {
        std::fill_n(sums.begin(), kE * n, -kInfinity<double>);
    }

    Edge<T> edge(std::int64_t first, std::int64_t count, T* tile_sums) const {
        return {count,    chunk.labels + first, chunk.inverse_norm + first, factors.data() + first, n,
                tile_sums};
    }
    double& of(Sum sum, std::int64_t i) { return sums[sum * n + i]; }
    T& of(Factor factor, std::int64_t i) { return factors[factor * n + i]; }

    void add(std::int64_t first, const Edge<T>& edge, Sum from, Sum to) {
        for (int sum = from; sum < to; ++sum)
            for (std::int64_t x = 0; x < edge.count; ++x) of(Sum(sum), first + x) += edge.of(Sum(sum))[x];
    }
    // A sum of e, in terms of its end.
    void add_exponentials(std::int64_t first, const Edge<T>& edge, double base2, Sum end, Sum e) {
        for (std::int64_t x = 0; x < edge.count; ++x) {
            const double of_tile = edge.of(end)[x];
            double& known = of(end, first + x);
            if (of_tile == -kInfinity<double>) continue;
            const double before = of_tile > known ? std::exp2(base2 * (known - of_tile)) : 1.0;
            const double now = of_tile > known ? 1.0 : std::exp2(base2 * (of_tile - known));
            of(e, first + x) = of(e, first + x) * before + edge.of(e)[x] * now;
            known = std::max(known, of_tile);
        }
    }
};

template <class T>
void finish_softmax(Side<T>& side, const Logits<T>& logits, std::int64_t i) {
    const SoftmaxSums sums{side.of(kE, i), side.of(kNegativeE, i), side.of(kCosine, i), side.of(kNumber, i)};
    const SoftmaxRow row =
        softmax_of_sums(sums, side.of(kEnd, i), side.of(kNegativeEnd, i), logits.base2, logits.bias,
                        logits.form == Contrast::inside, upstream_of_row(side.chunk, i));
    side.chunk.positive[i] = static_cast<T>(row.loss);
    side.chunk.negative[i] = static_cast<T>(row.lse);
    side.of(kPositiveFactor, i) = static_cast<T>(row.positive);
    side.of(kNegativeFactor, i) = static_cast<T>(row.negative);
    side.of(kConstant, i) = static_cast<T>(row.constant);
}

// Before the pass over the positives: the logarithm of the negatives' sum.
template <class T>
void begin_each(Side<T>& side, const Logits<T>& logits, std::int64_t i) {
    side.of(kConstant, i) =
        static_cast<T>(logits.scale * side.of(kNegativeEnd, i) + std::log(side.of(kNegativeE, i)));
}

template <class T>
void finish_each(Side<T>& side, std::int64_t i) {
    const double upstream = upstream_of_row(side.chunk, i).positive, above = side.of(kAbove, i);
    side.chunk.positive[i] = static_cast<T>(side.of(kLoss, i));
    side.chunk.negative[i] = T(0);
    side.of(kPositiveFactor, i) = static_cast<T>(upstream);
    side.of(kNegativeFactor, i) = static_cast<T>(above > 0 ? upstream * above / side.of(kNegativeE, i) : 0.0);
}

// The ends as the gradient takes them. An empty set has none, and no pair of it asks.
template <class T>
void begin_gradient(Side<T>& side, std::int64_t i) {
    const double end = side.of(kEnd, i), negative_end = side.of(kNegativeEnd, i);
    side.of(kPositiveStart, i) = end == -kInfinity<double> ? T(0) : static_cast<T>(end);
    side.of(kNegativeStart, i) = negative_end == -kInfinity<double> ? T(0) : static_cast<T>(negative_end);
}

std::int64_t tile_rows(std::int64_t n, int threads) {
    const std::int64_t share = (n / (2 * threads) + kLeast - 1) / kLeast * kLeast;
    return threads == 1 ? kMost : std::clamp(share, kLeast, kMost);
}

template <class T>
struct TileSweep {
    const ContrastTiles<T>& tiles;
    Side<T>& rows;
    Side<T>& columns;
    const Logits<T> logits;
    const std::int64_t size = tile_rows(std::min(rows.n, columns.n), tiles.threads);
    Rounds rounds{(rows.n + size - 1) / size, (columns.n + size - 1) / size, tiles.alone};
    const int lanes = static_cast<int>(std::min<std::int64_t>(tiles.threads, rounds.tasks()));
    const std::int64_t stored =
        std::min(rounds.tasks(), tiles.S_bytes / std::int64_t(sizeof(T) * size * size));
    const Buffer<T> S = Buffer<T>((stored + lanes) * size * size);
    const Buffer<T> sums = Buffer<T>(lanes * 2 * kSums * kMost);
    std::vector<char> positives = std::vector<char>(rounds.tasks());  // whether a tile has any

    void run(Pass pass) {
        rounds.begin();
        in_lanes(rounds.tasks(), lanes, tiles.set_threads, [&](int lane, std::int64_t task) {
            const auto place = rounds.place(task);
            if (rounds.exists(place) && (pass != kPositives || positives[task]))
                sweep_tile(pass, lane, task, place);
            else
                rounds.wait(place);
            rounds.leave(place);
        });
    }

  private:
    void sweep_tile(Pass pass, int lane, std::int64_t task, const typename Rounds::Place& place) {
        const std::int64_t D = tiles.D, i = place.row * size, j = place.column * size;
        const std::int64_t height = std::min(size, rows.n - i), width = std::min(size, columns.n - j);
        const bool is_stored = task < stored;
        T* const own = sums.get() + lane * 2 * kSums * kMost;
        const Tile<T> tile{S.get() + (is_stored ? task : stored + lane) * size * size,
                           rows.edge(i, height, own), columns.edge(j, width, own + kSums * kMost),
                           tiles.alone && i == j};
        const TileRelations related{rows.chunk.relations, i, j};
        const Rows<const T> X{rows.X + i * D, D, 1}, Y{columns.X + j * D, D, 1};
        if (pass == kExponentials || !is_stored) {
            multiply(tiles.gemm, X, transposed(Y), {tile.S, width, 1}, height, width, D, false);
            pass_of_tile(tile, logits, kCosines, related);
        }
        for (const Edge<T>* edge : {&tile.rows, &tile.columns}) {
            std::fill_n(edge->of(kEnd), kE * kMost, -kInfinity<T>);
            std::fill_n(edge->of(kE), (kSums - kE) * kMost, T(0));
        }
        const bool hardest = rows.chunk.hardest_positive;
        if (pass == kExponentials) pass_of_tile(tile, logits, kEnds, related);
        if (pass == kExponentials && hardest) pass_of_tile(tile, logits, kFarthestPositives, related);
        const bool each = logits.form == Contrast::each && positives[task];
        pass_of_tile(tile, logits, pass == kGradient && each ? kGradientOfEach : pass, related);
        rounds.wait(place);
        if (pass == kGradient) {
            const Rows<const T> dS{tile.S, width, 1};
            if (rows.dX) multiply(tiles.gemm, dS, Y, {rows.dX + i * D, D, 1}, height, D, width, true);
            if (columns.dX && !tile.diagonal)
                multiply(tiles.gemm, transposed(dS), X, {columns.dX + j * D, D, 1}, width, D, height, true);
            return rows.add(i, tile.rows, kDScale, kSums);
        }
        add(pass, rows, i, tile.rows);
        if (!tile.diagonal) add(pass, columns, j, tile.columns);
        if (pass == kExponentials)
            positives[task] = std::any_of(tile.rows.of(kNumber), tile.rows.of(kNumber) + height,
                                          [](T number) { return number > T(0); });
    }

    void add(Pass pass, Side<T>& side, std::int64_t first, const Edge<T>& edge) const {
        if (pass == kPositives) return side.add(first, edge, kLoss, kDScale);
        for (std::int64_t x = 0; x < edge.count; ++x) {
            double& farthest = side.of(kFarthest, first + x);
            farthest = std::max(farthest, double(edge.of(kFarthest)[x]));
        }
        side.add_exponentials(first, edge, logits.base2, kEnd, kE);
        side.add_exponentials(first, edge, logits.base2, kNegativeEnd, kNegativeE);
        side.add(first, edge, kCosine, kLoss);
    }
};

}  // namespace

template <class T>
void pair_contrast_tiles(const Pairs<T>& rows, const Pairs<T>& columns, const PairContrastProblem<T>& problem,
                         const ContrastTiles<T>& tiles) {
    std::vector<Side<T>> sides{Side<T>(rows, tiles.X, tiles.dX)};
    if (!tiles.alone) sides.emplace_back(columns, tiles.others, tiles.dothers);
    TileSweep<T> sweep{tiles, sides.front(), sides.back(), Logits<T>(problem)};
    const auto every_row = [&](auto finish) {
        for (Side<T>& side : sides)
            in_parts(side.n, tiles.threads, side.n > 1024, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i) finish(side, i);
            });
    };
    sweep.run(kExponentials);
    for (std::int64_t i = 0; rows.hardest_positive && i < rows.rows; ++i) {
        rows.hardest_positive[i] = static_cast<T>(-sides.front().of(kFarthest, i));
        rows.hardest_negative[i] = static_cast<T>(sides.front().of(kNegativeEnd, i));
    }
    if (sweep.logits.form == Contrast::each) {
        every_row([&](Side<T>& side, std::int64_t i) { begin_each(side, sweep.logits, i); });
        sweep.run(kPositives);
        every_row([&](Side<T>& side, std::int64_t i) { finish_each(side, i); });
    } else {
        every_row([&](Side<T>& side, std::int64_t i) { finish_softmax(side, sweep.logits, i); });
    }
    if (!rows.upstream_positive) return;
    every_row([](Side<T>& side, std::int64_t i) { begin_gradient(side, i); });
    sweep.run(kGradient);
    for (std::int64_t i = 0; i < rows.rows; ++i) {
        problem.dscale[i] = static_cast<T>(sides.front().of(kDScale, i));
        problem.dbias[i] = static_cast<T>(sides.front().of(kDBias, i));
    }
    for (const Side<T>& side : sides)
        if (side.dX)
            subtract_radial<T>({side.dX, tiles.D, 1}, {side.X, tiles.D, 1}, side.chunk.inverse_norm, side.n,
                               tiles.D, tiles.threads);
}

template void pair_contrast_tiles(const Pairs<float>&, const Pairs<float>&, const PairContrastProblem<float>&,
                                  const ContrastTiles<float>&);
template void pair_contrast_tiles(const Pairs<double>&, const Pairs<double>&,
                                  const PairContrastProblem<double>&, const ContrastTiles<double>&);

}  // namespace robustdml::cpu
