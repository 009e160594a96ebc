// Classes that a von Mises-Fisher distribution each is fitted to, as both devices see them.
#pragma once

#include <cstdint>
#include <tuple>

#include "common/fields.h"
#include "math/vmf_fit.h"

namespace robustdml {

template <class T>
struct VmfClasses {
    const T* sums;                // (C, D) in: sums of unit vectors
    std::int64_t D;               // columns of the sums
    const std::int64_t* counts;   // (C,) in: how many vectors; null: `fractions` tells
    const double* fractions;      // (C,) in, or null
    const std::int64_t* classes;  // (n,) in: which rows are fitted; null: the first n
    std::int64_t n;
    double dim;  // of the sphere
    double largest;
    std::int64_t estimator;   // VmfEstimator
    std::int64_t correction;  // VmfCorrection
    T* kappa;                 // (n,) out
    T* log_peak;              // (n,) out
    double* norm;             // (n,) out: length of the sum

    VmfSphere sphere() const {
        return {dim, largest, static_cast<VmfEstimator>(estimator), static_cast<VmfCorrection>(correction)};
    }
    ROBUSTDML_HD std::int64_t row(std::int64_t i) const { return classes ? classes[i] : i; }
    ROBUSTDML_HD double count(std::int64_t i) const {
        return counts ? static_cast<double>(counts[row(i)]) : fractions[row(i)];
    }

    static constexpr auto fields() {
        return std::tuple{
            field("sums", &VmfClasses::sums),
            field("D", &VmfClasses::D),
            field("counts", &VmfClasses::counts),
            field("fractions", &VmfClasses::fractions),
            field("classes", &VmfClasses::classes),
            field("n", &VmfClasses::n),
            field("dim", &VmfClasses::dim),
            field("largest", &VmfClasses::largest),
            field("estimator", &VmfClasses::estimator),
            field("correction", &VmfClasses::correction),
            field("kappa", &VmfClasses::kappa),
            field("log_peak", &VmfClasses::log_peak),
            field("norm", &VmfClasses::norm),
        };
    }
};

}  // namespace robustdml
