// A tile of S with the sums and the gradient of its rows and columns, see cpu_tiles.h.
#pragma once

#include <cstdint>

#include "math/exp.h"
#include "pairs/cpu_tiles.h"

namespace robustdml::cpu {

// Rows of a tile at most: products of so many are as fast as larger ones, and a tile fits a core's cache.
constexpr std::int64_t kMost = 512;

// Of a row over its pairs: the ends, which are the largest cosines s of either set; the largest -s of the
// positives, where the hardest pairs are wanted; sums over both sets of
// e = 2^(base2 (s - end)); and of the positives' s and number. Contrast::each has two more sums, which need
// those of the negatives. The gradient has those of s dL/dz and of dL/dz, which the rows of a tile have
// alone.
enum Sum {
    kEnd,
    kNegativeEnd,
    kFarthest,
    kE,
    kNegativeE,
    kCosine,
    kNumber,
    kLoss,
    kAbove,
    kDScale,
    kDBias,
    kSums
};

// Logits are scale s + bias. The bias cancels but in the logarithm of a sum.
template <class T>
struct Logits {
    T scale;
    T base2;
    T bias;
    Contrast form;

    explicit Logits(const PairContrastProblem<T>& problem)
        : scale(problem.coefficients[0]),
          base2(static_cast<T>(scale * kLog2E)),
          bias(problem.coefficients[1]),
          form(static_cast<Contrast>(problem.form)) {}
};

// Factors of a row in its gradient: dL/dz is e `negative` of a negative, and e `positive` - `constant` of a
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
    T* S;  // in: products, then cosines; out of the last pass: the gradient of the products
    Edge<T> rows;
    Edge<T> columns;
    bool diagonal;  // of a batch with itself: columns are the rows, whose sums are all

    // Columns before and behind a row's own place.
    std::int64_t begin(int side, std::int64_t row) const { return side == 0 ? 0 : row + 1; }
    std::int64_t end(int side, std::int64_t row) const { return side == 0 && diagonal ? row : columns.count; }
    int sides() const { return diagonal ? 2 : 1; }
};

// A pass over all elements of a tile. kCosines comes after its product, kEnds before kExponentials, and
// kFarthestPositives with it.
enum Pass { kCosines, kEnds, kFarthestPositives, kExponentials, kPositives, kGradient, kGradientOfEach };

// `relations` of the rows from `first_row` on, and the columns from `first_column` on; null: none.
struct TileRelations {
    const Relations* relations;
    std::int64_t first_row;
    std::int64_t first_column;
};

template <class T>
void pass_of_tile(const Tile<T>& tile, const Logits<T>& logits, Pass pass, const TileRelations& related);

}  // namespace robustdml::cpu
