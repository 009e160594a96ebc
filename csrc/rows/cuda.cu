#include "rows/cuda.h"

#include <type_traits>

#include "common/cuda/device.h"
#include "common/cuda/grid.h"
#include "common/cuda/reduce.h"
#include "math/length.h"
#include "math/limits.h"

namespace robustdml::cuda {
namespace {

// One warp a row: a row of 32 to 1024 elements keeps every lane busy, and no row waits for another.
constexpr int kRowsPerBlock = 8;

template <class U>
using Compute = std::conditional_t<std::is_same_v<U, double>, double, float>;

// Of p * factor, by a warp; every lane has it.
template <class Compute, class P>
__device__ double sum_of_squares(const P* p, std::int64_t D, int lane, Compute factor) {
    double square[1] = {0};
    for (std::int64_t d = lane; d < D; d += kWarp) {
        const double value = static_cast<Compute>(p[d]) * factor;
        square[0] += value * value;
    }
    reduce<kWarp>(square, Add{});
    return square[0];
}

template <class P, class U>
__global__ void normalize_kernel(const P* __restrict__ P_rows,           // (rows, D) in
                                 U* __restrict__ U_rows,                 // (rows, D) out
                                 Compute<U>* __restrict__ inverse_norm,  // (rows,) out
                                 std::int64_t rows, std::int64_t D) {
    const int lane = threadIdx.x;
    const std::int64_t row = std::int64_t(blockIdx.x) * kRowsPerBlock + threadIdx.y;
    if (row >= rows) return;
    const P* p = P_rows + row * D;
    // In double, where no square of a float overflows or vanishes. Memory is what this kernel waits for.
    double square = sum_of_squares<Compute<U>>(p, D, lane, Compute<U>(1));
    // The square of a double may; and 1 / |p| alone may be a number of few digits, or none.
    const Compute<U> near_one = near_one_factor(static_cast<Compute<U>>(square));
    if (near_one != Compute<U>(1)) square = sum_of_squares<Compute<U>>(p, D, lane, near_one);
    const double norm = std::sqrt(square);
    // NaN must stay NaN, so ask for "below" rather than "not above".
    const bool zero = norm < double(kSmallestNormal<Compute<U>>) * double(near_one);
    const Compute<U> scale = zero ? Compute<U>(0) : static_cast<Compute<U>>(1.0 / norm);
    if (lane == 0) inverse_norm[row] = near_one * scale;
    U* u = U_rows + row * D;
    for (std::int64_t d = lane; d < D; d += kWarp)
        u[d] = static_cast<U>(static_cast<Compute<U>>(p[d]) * near_one * scale);
}

template <class U>
__global__ void backward_kernel(Compute<U>* __restrict__ G_rows,              // (rows, D) in/out
                                const U* __restrict__ U_rows,                 // (rows, D) in
                                const Compute<U>* __restrict__ inverse_norm,  // (rows,) in
                                std::int64_t rows, std::int64_t D) {
    const int lane = threadIdx.x;
    const std::int64_t row = std::int64_t(blockIdx.x) * kRowsPerBlock + threadIdx.y;
    if (row >= rows) return;
    Compute<U>* g = G_rows + row * D;
    const U* u = U_rows + row * D;
    Compute<U> dot[1] = {0};
    for (std::int64_t d = lane; d < D; d += kWarp) dot[0] += g[d] * static_cast<Compute<U>>(u[d]);
    reduce<kWarp>(dot, Add{});
    const Compute<U> scale = inverse_norm[row];
    for (std::int64_t d = lane; d < D; d += kWarp)
        g[d] = (g[d] - dot[0] * static_cast<Compute<U>>(u[d])) * scale;
}

// Calls action with a null pointer to the type that `element` names.
template <class Action>
void with_type(Element element, Action action) {
    switch (element) {
        case Element::f16:
            return action(static_cast<half*>(nullptr));
        case Element::bf16:
            return action(static_cast<bfloat16*>(nullptr));
        case Element::f32:
            return action(static_cast<float*>(nullptr));
        case Element::f64:
            return action(static_cast<double*>(nullptr));
    }
}

}  // namespace

void normalize_rows(const void* P_rows, Element P_type, void* U_rows, Element U_type, void* inverse_norm,
                    std::int64_t rows, std::int64_t D, std::uintptr_t stream) {
    if (rows == 0) return;
    with_type(P_type, [&](auto* P_pointer) {
        with_type(U_type, [&](auto* U_pointer) {
            using P = std::remove_pointer_t<decltype(P_pointer)>;
            using U = std::remove_pointer_t<decltype(U_pointer)>;
            if constexpr (std::is_same_v<P, double> && !std::is_same_v<U, double>) {
                throw std::invalid_argument("normalize_rows: float64 rows need float64 results");
            } else {
                launch("normalize_rows", normalize_kernel<P, U>, blocks(rows, kRowsPerBlock),
                       dim3(kWarp, kRowsPerBlock), stream, static_cast<const P*>(P_rows),
                       static_cast<U*>(U_rows), static_cast<Compute<U>*>(inverse_norm), rows, D);
            }
        });
    });
}

void normalize_rows_backward(void* G, const void* U_rows, Element U_type, const void* inverse_norm,
                             std::int64_t rows, std::int64_t D, std::uintptr_t stream) {
    if (rows == 0) return;
    with_type(U_type, [&](auto* U_pointer) {
        using U = std::remove_pointer_t<decltype(U_pointer)>;
        launch("normalize_rows_backward", backward_kernel<U>, blocks(rows, kRowsPerBlock),
               dim3(kWarp, kRowsPerBlock), stream, static_cast<Compute<U>*>(G), static_cast<const U*>(U_rows),
               static_cast<const Compute<U>*>(inverse_norm), rows, D);
    });
}

}  // namespace robustdml::cuda
