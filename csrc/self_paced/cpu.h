// Doubly stochastic projected coordinate descent for the sample weights of balanced self-paced metric
// learning (Zhang et al. 2023, Algorithm 3 with the gradient of Eq. 8).
#pragma once

#include "self_paced/problem.h"

namespace robustdml::cpu {

template <class T>
void self_paced_descent(const SelfPacedProblem<T>& problem);

}  // namespace robustdml::cpu
