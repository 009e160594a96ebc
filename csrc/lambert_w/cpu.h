// Lambert's W and the sigmas made of it, elementwise.
#pragma once

#include <cstdint>

namespace robustdml::cpu {

template <class T>
void lambert_w(const T* x,  // (count,) in
               T* w,        // (count,) out
               std::int64_t count, int threads);

template <class T>
void procsim_sigma(const T* losses,      // (count,) in
                   const T* thresholds,  // (count,), or one where stride is 0, in
                   std::int64_t stride,  // 1 or 0
                   T lambda,
                   T* sigma,  // (count,) out
                   std::int64_t count, int threads);

template <class T>
void superloss(const T* losses,      // (count,) in
               const T* taus,        // (count,), or one where stride is 0, in
               std::int64_t stride,  // 1 or 0
               T lambda,
               T* values,  // (count,) out
               T* sigma,   // (count,) out
               std::int64_t count, int threads);

}  // namespace robustdml::cpu
