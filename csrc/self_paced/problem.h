// Arguments of the descent of the sample weights.
#pragma once

#include <cstdint>
#include <tuple>

#include "common/fields.h"

namespace robustdml {

// Samples are sorted by class, and no class is empty.
template <class T>
struct SelfPacedProblem {
    T* weights;                   // (N,) in, out: w, in [0, 1]
    const T* positive;            // (N,) in: ξ⁺
    const T* negative;            // (N,) in: ξ⁻
    const std::int64_t* classes;  // (N,) in: class of each sample, ascending
    const std::int64_t* starts;   // (C + 1,) in: class c is starts[c] .. starts[c + 1] − 1
    const double* rates;          // (C,) in: γ / N^c
    std::int64_t N;
    std::int64_t C;
    double lam;
    double mu;
    double decay;  // γ of step t is γ / (1 + decay·t)
    std::int64_t classes_per_step;
    std::int64_t samples_per_class;
    std::uint64_t seed;
    std::int64_t steps;

    static constexpr auto fields() {
        return std::tuple{
            field("weights", &SelfPacedProblem::weights),
            field("positive", &SelfPacedProblem::positive),
            field("negative", &SelfPacedProblem::negative),
            field("classes", &SelfPacedProblem::classes),
            field("starts", &SelfPacedProblem::starts),
            field("rates", &SelfPacedProblem::rates),
            field("N", &SelfPacedProblem::N),
            field("C", &SelfPacedProblem::C),
            field("lam", &SelfPacedProblem::lam),
            field("mu", &SelfPacedProblem::mu),
            field("decay", &SelfPacedProblem::decay),
            field("classes_per_step", &SelfPacedProblem::classes_per_step),
            field("samples_per_class", &SelfPacedProblem::samples_per_class),
            field("seed", &SelfPacedProblem::seed),
            field("steps", &SelfPacedProblem::steps),
        };
    }
};

}  // namespace robustdml
