// Doubly stochastic projected coordinate descent for the sample weights of balanced self-paced metric
// learning (Zhang et al. 2023, Algorithm 3 with the gradient of Eq. 8).
#pragma once

#include <cstdint>

namespace robustdml::cpu {

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
};

template <class T>
void self_paced_sweep(const SelfPacedProblem<T>& problem);

}  // namespace robustdml::cpu
