// The class log-sum-exp in three products, on the CPU by lanes, where logits are known to be within +-64.
//
//   E[k, x] = exp(logit[k, x] - kTermShift) dlogit[k, x]/ds[k, x],  0 for the labels of x
//   Z[x] = sum over k of exp(logit[k, x] - kTermShift)              without the labels of x
//   G[x] = sum over k of E[k, x] p[k]
//
// The first pass makes all of them, chunk by chunk: of a sample the factor f[x] = dL/dlse exp(kTermShift -
// lse) is missing, and comes after the sum. The second pass makes the gradient of the rows, E (f X), from the
// E that were kept, and from those of the other chunks made again, with the same bits. Labels are few: their
// elements are added to both gradients by themselves.
#pragma once

#include "classes/chunk.h"
#include "common/cpu/labels.h"
#include "common/cpu/lanes.h"

namespace robustdml::cpu {

// Keeps E, f and f x within the type's range, also where a sample is opposite to all classes or near all.
constexpr double kTermShift = 12;

// What the first pass leaves for the second.
template <class T>
struct ClassTerms {
    T* E;               // (kept, B) out: of the first rows; or null
    std::int64_t kept;  // rows that E has room for; chunks behind them are made again
    T* inverse_norm;    // (rows,) out: 1 / |p|; or null: no second pass comes
    T* label_slopes;    // (B K, H) out: dlogit/ds of the labels; or null, likewise
    T* label_rows;      // (B K, D) out: dlogit/dx of the labels; or null: dL/dx is not wanted

    static constexpr auto fields() {
        return std::tuple{
            field("E", &ClassTerms::E),
            field("kept", &ClassTerms::kept),
            field("inverse_norm", &ClassTerms::inverse_norm),
            field("label_slopes", &ClassTerms::label_slopes),
            field("label_rows", &ClassTerms::label_rows),
        };
    }
};

template <class T>
struct ClassTermSums {
    double* total;  // (B,) out: Z
    T* target;      // (B, K) out: logits of the labels, where their classes are in the sweep
    const T* own;   // see ClassSums
    T* nearest;
    double* above;

    static constexpr auto fields() {
        return std::tuple{
            field("total", &ClassTermSums::total), field("target", &ClassTermSums::target),
            field("own", &ClassTermSums::own),     field("nearest", &ClassTermSums::nearest),
            field("above", &ClassTermSums::above),
        };
    }
};

template <class T>
struct ClassTermFactors {
    const T* factor;  // (B,) in: f
    const T* dlogit;  // (B, K) in: dL/dlogit of the labels
    const T* G;       // (B, D) in; or null: dL/dx is not wanted

    static constexpr auto fields() {
        return std::tuple{
            field("factor", &ClassTermFactors::factor),
            field("dlogit", &ClassTermFactors::dlogit),
            field("G", &ClassTermFactors::G),
        };
    }
};

// First pass: `whole` as in class_sweep; G goes to sweep.dX, if it is wanted. True if some row was out of
// reach: see sweep_lanes.
template <class T>
bool class_terms(const ClassChunk<T>& whole, const LabelSets& labels, const ClassTerms<T>& terms,
                 const ClassTermSums<T>& sums, const Sweep<T>& sweep);

// Second pass: dL/dx of the unit rows goes to sweep.dX, dL/dp to sweep.dP or its update, if they are wanted.
// E keeps its values.
template <class T>
bool class_terms_backward(const ClassChunk<T>& whole, const LabelSets& labels, const ClassTerms<T>& terms,
                          const ClassTermFactors<T>& factors, const Sweep<T>& sweep);

}  // namespace robustdml::cpu
