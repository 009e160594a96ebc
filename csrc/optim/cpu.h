// The rows of a chunk, stepped on while they are in the cache of one core.
#pragma once

#include "optim/update.h"
#include "rows/cpu_norm.h"

namespace robustdml::cpu {

// One step on the rows `first` ... `first + count`, or on those that `selected` names there, whose gradient
// is G. P_layout: strides of P and of the moments (its address is not read). False, and nothing written,
// where G has NaN or inf.
template <class T>
bool update_rows(const ProxyUpdate<T>& update, const Rows<const T>& G, const Rows<const T>& P_layout,
                 std::int64_t first, const std::int64_t* selected, std::int64_t count, std::int64_t D);

}  // namespace robustdml::cpu
