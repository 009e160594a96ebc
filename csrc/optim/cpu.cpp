#include "optim/cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "common/cpu/clones.h"
#include "math/counter_random.h"
#include "math/portable.h"

namespace robustdml::cpu {
namespace {

// Moments in the type of the proxies.
template <class T>
struct Plain {
    T* data;

    ROBUSTDML_HD T read(std::int64_t i) const { return data[i]; }
    ROBUSTDML_HD void write(std::int64_t i, T value, std::uint64_t) const { data[i] = value; }
};

// Moments in bfloat16, the upper half of a float. 16 random bits are added below it before the lower half
// goes, so it rounds up as often as it is above.
template <class T>
struct Bfloat16 {
    std::uint16_t* data;

    ROBUSTDML_HD T read(std::int64_t i) const {
        const std::uint32_t bits = std::uint32_t(data[i]) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return T(value);
    }
    ROBUSTDML_HD void write(std::int64_t i, T value, std::uint64_t random) const {
        const float rounded = float(value);
        std::uint32_t bits;
        std::memcpy(&bits, &rounded, sizeof bits);
        data[i] = std::uint16_t((bits + (std::uint32_t(random) & 0xFFFFu)) >> 16);
    }
};

// Elements side by side: P, its moments and its gradient.
template <class T, class Moments>
struct Piece {
    T* P;
    Moments M1, M2;
    const T* G;
    std::int64_t count;
    // Random words of the elements: row * D + column in the matrix, however it lies in memory and is divided.
    std::int64_t word;         // of the first
    std::int64_t word_stride;  // from one to the next
};

template <class T>
constexpr bool is_plain(const Plain<T>&) {
    return true;
}
template <class T>
constexpr bool is_plain(const Bfloat16<T>&) {
    return false;
}

template <class T, class Moments>
ROBUSTDML_HD void adamw(const Piece<T, Moments>& piece, const ProxyUpdate<T>& u) {
    const T keep = T(1 - u.lr * u.weight_decay), towards1 = T(1 - u.beta1), beta2 = T(u.beta2);
    const T towards2 = T(1 - u.beta2), step_size = T(u.step_size), inverse_root = T(u.inverse_root);
    const T eps = T(u.eps);
    T* P = piece.P;
    const T* G = piece.G;
    const Moments M1 = piece.M1, M2 = piece.M2;
    const std::uint64_t key = u.key, word = std::uint64_t(piece.word),
                        stride = std::uint64_t(piece.word_stride);
#pragma omp simd
    for (std::int64_t i = 0; i < piece.count; ++i) {
        const T g = G[i], before = M1.read(i);
        const T m1 = before + towards1 * (g - before);
        const T m2 = beta2 * M2.read(i) + towards2 * (g * g);
        const std::uint64_t random = is_plain(M1) ? 0 : random_word(key, word + std::uint64_t(i) * stride);
        M1.write(i, m1, random);
        M2.write(i, m2, random >> 16);
        P[i] = keep * P[i] - step_size * m1 / (std::sqrt(m2) * inverse_root + eps);
    }
}

template <class T, class Moments>
ROBUSTDML_HD void sgd(const Piece<T, Moments>& piece, const ProxyUpdate<T>& u) {
    const T lr = T(u.lr), weight_decay = T(u.weight_decay), momentum = T(u.momentum);
    const T before = u.first_step ? T(0) : momentum, towards = u.first_step ? T(1) : T(1 - u.dampening);
    // What of the gradient and of the momentum is stepped along.
    const T along_gradient = u.nesterov ? T(1) : T(0), along_momentum = u.nesterov ? momentum : T(1);
    T* P = piece.P;
    const T* G = piece.G;
    const Moments M1 = piece.M1;
    const std::uint64_t key = u.key, word = std::uint64_t(piece.word),
                        stride = std::uint64_t(piece.word_stride);
    if (!M1.data) {
#pragma omp simd
        for (std::int64_t i = 0; i < piece.count; ++i) P[i] -= lr * (G[i] + weight_decay * P[i]);
        return;
    }
#pragma omp simd
    for (std::int64_t i = 0; i < piece.count; ++i) {
        const T g = G[i] + weight_decay * P[i];
        const T m1 = before * M1.read(i) + towards * g;
        M1.write(i, m1, is_plain(M1) ? 0 : random_word(key, word + std::uint64_t(i) * stride));
        P[i] -= lr * (along_gradient * g + along_momentum * m1);
    }
}

template <class T, class Moments>
ROBUSTDML_HD void update_piece(const Piece<T, Moments>& piece, const ProxyUpdate<T>& u) {
    if (u.kind == UpdateKind::adamw)
        adamw(piece, u);
    else
        sgd(piece, u);
}

template <class T, class Moments>
ROBUSTDML_HD Moments moments_at(void* first, std::int64_t place) {
    using Element = std::remove_pointer_t<decltype(Moments::data)>;
    return {first ? static_cast<Element*>(first) + place : nullptr};
}

// AdamW and SGD know no rows: the pieces are as long as elements lie side by side.
template <class T, class Moments>
ROBUSTDML_HD void update_elements(const ProxyUpdate<T>& u, const Rows<const T>& G, const Rows<const T>& P,
                                  std::int64_t first, std::int64_t count, std::int64_t D) {
    const bool columns = P.by_columns();
    const std::int64_t pieces = columns ? D : count, length = columns ? count : D;
    for (std::int64_t k = 0; k < pieces; ++k) {
        const std::int64_t place = first * P.row_stride + k * (columns ? P.column_stride : P.row_stride);
        const T* g = columns ? G.column(k) : G.row(k);
        update_piece(Piece<T, Moments>{u.P + place, moments_at<T, Moments>(u.M1, place),
                                       moments_at<T, Moments>(u.M2, place), g, length,
                                       columns ? first * D + k : (first + k) * D, columns ? D : 1},
                     u);
    }
}

// Adagrad by rows, whose elements lie side by side.
template <class T>
ROBUSTDML_HD void adagrad_rows(const ProxyUpdate<T>& u, const Rows<const T>& G, const Rows<T>& P, T* M1,
                               std::int64_t count, std::int64_t D) {
    const T weight_decay = T(u.weight_decay);
    for (std::int64_t i = 0; i < count; ++i) {
        const T* g = G.row(i);
        T* p = P.row(i);
        T square = 0;
#pragma omp simd reduction(+ : square)
        for (std::int64_t d = 0; d < D; ++d)
            square += (g[d] + weight_decay * p[d]) * (g[d] + weight_decay * p[d]);
        M1[i] += square / T(D);
        const T rate = T(u.lr) / (std::sqrt(M1[i]) + T(u.eps));
#pragma omp simd
        for (std::int64_t d = 0; d < D; ++d) p[d] -= rate * (g[d] + weight_decay * p[d]);
    }
}

template <class T>
ROBUSTDML_HD void adagrad_columns(const ProxyUpdate<T>& u, const Rows<const T>& G, const Rows<T>& P, T* M1,
                                  std::int64_t count, std::int64_t D) {
    const T weight_decay = T(u.weight_decay);
    for (std::int64_t from = 0; from < count; from += kRowsTogether) {
        const std::int64_t length = std::min(kRowsTogether, count - from);
        T square[kRowsTogether] = {}, rate[kRowsTogether];
        for (std::int64_t d = 0; d < D; ++d) {
            const T* g = G.column(d) + from;
            const T* p = P.column(d) + from;
#pragma omp simd
            for (std::int64_t i = 0; i < length; ++i)
                square[i] += (g[i] + weight_decay * p[i]) * (g[i] + weight_decay * p[i]);
        }
        for (std::int64_t i = 0; i < length; ++i) {
            M1[from + i] += square[i] / T(D);
            rate[i] = T(u.lr) / (std::sqrt(M1[from + i]) + T(u.eps));
        }
        for (std::int64_t d = 0; d < D; ++d) {
            const T* g = G.column(d) + from;
            T* p = P.column(d) + from;
#pragma omp simd
            for (std::int64_t i = 0; i < length; ++i) p[i] -= rate[i] * (g[i] + weight_decay * p[i]);
        }
    }
}

template <class T>
ROBUSTDML_HD bool all_finite(const Rows<const T>& G, std::int64_t count, std::int64_t D) {
    const bool columns = G.by_columns();
    const std::int64_t pieces = columns ? D : count, length = columns ? count : D;
    T poison = 0;  // 0 as long as all are numbers, then NaN
    for (std::int64_t k = 0; k < pieces; ++k) {
        const T* g = columns ? G.column(k) : G.row(k);
#pragma omp simd reduction(+ : poison)
        for (std::int64_t i = 0; i < length; ++i) poison += g[i] * T(0);
    }
    return poison == T(0);
}

// Rows side by side in the matrix, from `first` on.
template <class T>
ROBUSTDML_HD void update_run(const ProxyUpdate<T>& u, const Rows<const T>& G, const Rows<const T>& P,
                             std::int64_t first, std::int64_t count, std::int64_t D) {
    if (u.kind == UpdateKind::adagrad) {
        const Rows<T> rows{u.P + first * P.row_stride, P.row_stride, P.column_stride};
        T* M1 = static_cast<T*>(u.M1) + first;
        if (P.by_columns())
            adagrad_columns(u, G, rows, M1, count, D);
        else
            adagrad_rows(u, G, rows, M1, count, D);
    } else if (u.bfloat16) {
        update_elements<T, Bfloat16<T>>(u, G, P, first, count, D);
    } else {
        update_elements<T, Plain<T>>(u, G, P, first, count, D);
    }
}

template <class T>
ROBUSTDML_HD bool update_chunk(const ProxyUpdate<T>& u, const Rows<const T>& G, const Rows<const T>& P,
                               std::int64_t first, const std::int64_t* met, std::int64_t count,
                               std::int64_t D) {
    if (!all_finite(G, count, D)) return false;
    if (!met) {
        update_run(u, G, P, first, count, D);
        return true;
    }
    met += first;
    for (std::int64_t from = 0, to; from < count; from = to) {
        for (to = from + 1; to < count && met[to] == met[to - 1] + 1;) ++to;
        const Rows<const T> of_run{G.row(from), G.row_stride, G.column_stride};
        update_run(u, of_run, P, met[from], to - from, D);
    }
    return true;
}

// target_clones takes no templates: plain functions of both types.
#define ROBUSTDML_STAMP(T)                                                                                  \
    ROBUSTDML_CLONES bool update_clone(const ProxyUpdate<T>& u, const Rows<const T>& G,                     \
                                       const Rows<const T>& P, std::int64_t first, const std::int64_t* met, \
                                       std::int64_t count, std::int64_t D) {                                \
        return update_chunk(u, G, P, first, met, count, D);                                                 \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace

template <class T>
bool update_rows(const ProxyUpdate<T>& update, const Rows<const T>& G, const Rows<const T>& P_layout,
                 std::int64_t first, const std::int64_t* met, std::int64_t count, std::int64_t D) {
    return update_clone(update, G, P_layout, first, met, count, D);
}

#define ROBUSTDML_STAMP(T)                                                                          \
    template bool update_rows<T>(const ProxyUpdate<T>&, const Rows<const T>&, const Rows<const T>&, \
                                 std::int64_t, const std::int64_t*, std::int64_t, std::int64_t);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
