// ROBUSTDML_HD: a scalar function that host and device share.
#pragma once

#if defined(__CUDACC__)
#define ROBUSTDML_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define ROBUSTDML_HD inline __attribute__((always_inline))
#else
#define ROBUSTDML_HD inline
#endif
