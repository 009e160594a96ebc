// Compiled variants: every function with every pair of lengths of its two series. Lengths known to the
// compiler leave no loop in a function.
#pragma once

#include <stdexcept>
#include <type_traits>

#include "math/vmf.h"

namespace robustdml {

template <VmfFunction function>
using VmfConstant = std::integral_constant<VmfFunction, function>;

template <int kDebye, int kSeries>
struct VmfTerms {
    static constexpr int debye = kDebye, series = kSeries;
};

// Calls action(VmfTerms) for the lengths of `order`: many terms of the power series where v is small, few of
// Debye's where v is large.
template <class T, class Action>
void with_vmf_terms(const VmfOrder<T>& order, Action action) {
    constexpr bool kDouble = sizeof(T) == 8;
    const auto attempt = [&](auto terms) {
        const bool chosen = order.debye_terms == terms.debye && order.series_terms == terms.series;
        if (chosen) action(terms);
        return chosen;
    };
    if (!(attempt(VmfTerms<kDouble ? 10 : 5, kDouble ? 48 : 24>{}) ||
          attempt(VmfTerms<kDouble ? 10 : 5, 8>{}) || attempt(VmfTerms<kDouble ? 6 : 3, 8>{})))
        throw std::invalid_argument("vmf: series of these lengths are not compiled");
}

// Calls action(function, VmfTerms), the function as a constant of the type's.
template <class T, class Action>
void with_vmf(VmfFunction function, const VmfOrder<T>& order, Action action) {
    const auto compiled = [&](auto constant) {
        with_vmf_terms(order, [&](auto terms) { action(constant, terms); });
    };
    switch (function) {
        case VmfFunction::log_0f1:
            return compiled(VmfConstant<VmfFunction::log_0f1>{});
        case VmfFunction::peak:
            return compiled(VmfConstant<VmfFunction::peak>{});
        case VmfFunction::ratio:
            return compiled(VmfConstant<VmfFunction::ratio>{});
        case VmfFunction::ratio_derivative:
            return compiled(VmfConstant<VmfFunction::ratio_derivative>{});
        case VmfFunction::log_i:
            if constexpr (sizeof(T) == 8)
                return compiled(VmfConstant<VmfFunction::log_i>{});
            else
                throw std::invalid_argument(
                    "vmf: log_i crosses zero, which float can't follow; give it doubles");
    }
}

}  // namespace robustdml
