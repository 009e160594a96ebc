#include "optim/cpu.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "common/cpu/clones.h"
#include "math/bfloat16.h"
#include "math/counter_random.h"
#include "math/portable.h"

namespace robustdml::cpu {
namespace {

// Elements in the type of the sweep.
template <class T>
struct Plain {
    T* data;

    ROBUSTDML_HD T read(std::int64_t i) const { return data[i]; }
    ROBUSTDML_HD void write(std::int64_t i, T value, std::uint64_t) const { data[i] = value; }
};

// Elements in bfloat16, rounded at random.
template <class T>
struct Bfloat16 {
    std::uint16_t* data;

    ROBUSTDML_HD T read(std::int64_t i) const { return T(from_bfloat16(data[i])); }
    ROBUSTDML_HD void write(std::int64_t i, T value, std::uint64_t random) const {
        data[i] = round_at_random(float(value), random);
    }
};

// Lengths of the rows that the elements belong to, for rates in radians: of no interest, of one row, of one
// row each.
template <class T>
struct Unasked {
    ROBUSTDML_HD T at(std::int64_t) const { return T(1); }
    ROBUSTDML_HD T by_root_of_D(std::int64_t) const { return T(1); }
};
template <class T>
struct OfOne {
    T length, inverse_root;  // 1 / sqrt(D)

    ROBUSTDML_HD T at(std::int64_t) const { return length; }
    ROBUSTDML_HD T by_root_of_D(std::int64_t) const { return length * inverse_root; }
};
template <class T>
struct OfEach {
    const T* lengths;
    T inverse_root;

    ROBUSTDML_HD T at(std::int64_t i) const { return lengths[i]; }
    ROBUSTDML_HD T by_root_of_D(std::int64_t i) const { return lengths[i] * inverse_root; }
};

// Elements side by side: P, its moments and its gradient.
template <class T, class Proxies, class Moments, class Lengths = Unasked<T>>
struct Piece {
    Proxies P;
    Moments M1, M2;
    const T* G;
    std::int64_t count;
    // Random words of the elements: row * D + column in the matrix, however it lies in memory and is divided.
    // Its lowest 16 bits round M1, the next ones M2, the next ones P.
    std::int64_t word;         // of the first
    std::int64_t word_stride;  // from one to the next
    Lengths row{};
};

template <class T>
constexpr bool is_plain(const Plain<T>&) {
    return true;
}
template <class T>
constexpr bool is_plain(const Bfloat16<T>&) {
    return false;
}

template <class T, class Proxies, class Moments, class Lengths>
ROBUSTDML_HD void adamw(const Piece<T, Proxies, Moments, Lengths>& piece, const ProxyUpdate<T>& u) {
    const T keep = T(1 - u.lr * u.weight_decay), towards1 = T(1 - u.beta1), beta2 = T(u.beta2);
    const T towards2 = T(1 - u.beta2), step_size = T(u.step_size), inverse_root = T(u.inverse_root);
    const T eps = T(u.eps);
    const T* G = piece.G;
    const Proxies P = piece.P;
    const Moments M1 = piece.M1, M2 = piece.M2;
    const Lengths row = piece.row;
    const std::uint64_t key = u.key, word = std::uint64_t(piece.word),
                        stride = std::uint64_t(piece.word_stride);
#pragma omp simd
    for (std::int64_t i = 0; i < piece.count; ++i) {
        const T g = G[i] * row.at(i), before = M1.read(i);
        const T m1 = before + towards1 * (g - before);
        const T m2 = beta2 * M2.read(i) + towards2 * (g * g);
        const std::uint64_t random =
            is_plain(M1) && is_plain(P) ? 0 : random_word(key, word + std::uint64_t(i) * stride);
        M1.write(i, m1, random);
        M2.write(i, m2, random >> 16);
        const T step = step_size * row.by_root_of_D(i);
        P.write(i, keep * P.read(i) - step * m1 / (std::sqrt(m2) * inverse_root + eps), random >> 32);
    }
}

template <class T, class Proxies, class Moments, class Lengths>
ROBUSTDML_HD void sgd(const Piece<T, Proxies, Moments, Lengths>& piece, const ProxyUpdate<T>& u) {
    const T lr = T(u.lr), weight_decay = T(u.weight_decay), momentum = T(u.momentum);
    const T before = u.first_step ? T(0) : momentum, towards = u.first_step ? T(1) : T(1 - u.dampening);
    // The step is lr * (along_gradient * g + along_momentum * m).
    const T along_gradient = u.nesterov ? T(1) : T(0), along_momentum = u.nesterov ? momentum : T(1);
    const T* G = piece.G;
    const Proxies P = piece.P;
    const Moments M1 = piece.M1;
    const Lengths row = piece.row;
    const std::uint64_t key = u.key, word = std::uint64_t(piece.word),
                        stride = std::uint64_t(piece.word_stride);
    if (!M1.data) {
#pragma omp simd
        for (std::int64_t i = 0; i < piece.count; ++i) {
            const std::uint64_t random = is_plain(P) ? 0 : random_word(key, word + std::uint64_t(i) * stride);
            const T p = P.read(i);
            const T turn = row.at(i);
            P.write(i, p - lr * turn * (turn * (G[i] + weight_decay * p)), random >> 32);
        }
        return;
    }
#pragma omp simd
    for (std::int64_t i = 0; i < piece.count; ++i) {
        const T p = P.read(i), g = (G[i] + weight_decay * p) * row.at(i);
        const T m1 = before * M1.read(i) + towards * g;
        const std::uint64_t random =
            is_plain(M1) && is_plain(P) ? 0 : random_word(key, word + std::uint64_t(i) * stride);
        M1.write(i, m1, random);
        P.write(i, p - lr * row.at(i) * (along_gradient * g + along_momentum * m1), random >> 32);
    }
}

template <class T, class Proxies, class Moments, class Lengths>
ROBUSTDML_HD void update_piece(const Piece<T, Proxies, Moments, Lengths>& piece, const ProxyUpdate<T>& u) {
    if (u.kind == UpdateKind::adamw)
        adamw(piece, u);
    else
        sgd(piece, u);
}

template <class T, class Values>
ROBUSTDML_HD Values values_at(void* first, std::int64_t place) {
    using Element = std::remove_pointer_t<decltype(Values::data)>;
    return {first ? static_cast<Element*>(first) + place : nullptr};
}

// AdamW and SGD know no rows: the pieces are as long as elements lie side by side.
template <class T, class Proxies, class Moments>
ROBUSTDML_HD void update_elements(const ProxyUpdate<T>& u, const Rows<const T>& G, const Rows<const T>& P,
                                  std::int64_t first, std::int64_t count, std::int64_t D) {
    const bool columns = P.by_columns();
    const std::int64_t pieces = columns ? D : count, length = columns ? count : D;
    for (std::int64_t k = 0; k < pieces; ++k) {
        const std::int64_t place = first * P.row_stride + k * (columns ? P.column_stride : P.row_stride);
        const T* g = columns ? G.column(k) : G.row(k);
        update_piece(
            Piece<T, Proxies, Moments>{values_at<T, Proxies>(u.P, place), values_at<T, Moments>(u.M1, place),
                                       values_at<T, Moments>(u.M2, place), g, length,
                                       columns ? first * D + k : (first + k) * D, columns ? D : 1},
            u);
    }
}

// The same with rates in radians, which depend on the lengths of rows: a row, or kRowsTogether by columns, at
// a time.
template <class T, class Proxies, class Moments>
ROBUSTDML_HD void turn_rows(const ProxyUpdate<T>& u, const Rows<const T>& G, const Rows<const T>& P,
                            std::int64_t first, std::int64_t count, std::int64_t D) {
    const T inverse_root = T(1 / std::sqrt(double(D)));
    const auto update = [&](std::int64_t place, const T* g, std::int64_t length, std::int64_t word,
                            std::int64_t word_stride, auto row) {
        update_piece(Piece<T, Proxies, Moments, decltype(row)>{values_at<T, Proxies>(u.P, place),
                                                               values_at<T, Moments>(u.M1, place),
                                                               values_at<T, Moments>(u.M2, place), g, length,
                                                               word, word_stride, row},
                     u);
    };
    if (!P.by_columns()) {
        for (std::int64_t k = 0; k < count; ++k) {
            const std::int64_t place = (first + k) * P.row_stride;
            const Proxies p = values_at<T, Proxies>(u.P, place);
            T square = 0;
#pragma omp simd reduction(+ : square)
            for (std::int64_t d = 0; d < D; ++d) square += p.read(d) * p.read(d);
            update(place, G.row(k), D, (first + k) * D, 1, OfOne<T>{std::sqrt(square), inverse_root});
        }
        return;
    }
    for (std::int64_t from = 0; from < count; from += kRowsTogether) {
        const std::int64_t length = std::min(kRowsTogether, count - from);
        T lengths[kRowsTogether] = {};
        for (std::int64_t d = 0; d < D; ++d) {
            const Proxies p = values_at<T, Proxies>(u.P, d * P.column_stride + first + from);
#pragma omp simd
            for (std::int64_t i = 0; i < length; ++i) lengths[i] += p.read(i) * p.read(i);
        }
        for (std::int64_t i = 0; i < length; ++i) lengths[i] = std::sqrt(lengths[i]);
        for (std::int64_t d = 0; d < D; ++d)
            update(d * P.column_stride + first + from, G.column(d) + from, length, (first + from) * D + d, D,
                   OfEach<T>{lengths, inverse_root});
    }
}

// Adds the gradient of a row, by its squared length `square`, to `sum`, and gives its factor in the step.
// `length`: the squared length of the row itself.
template <class T>
ROBUSTDML_HD T adagrad_rate(const ProxyUpdate<T>& u, T& sum, T square, T length, std::int64_t D) {
    sum += u.radians ? square * length : square / T(D);
    return T(u.lr) * (u.radians ? length : T(1)) / (std::sqrt(sum) + T(u.eps));
}

// Adagrad by rows, whose elements lie side by side.
template <class T, class Proxies>
ROBUSTDML_HD void adagrad_rows(const ProxyUpdate<T>& u, const Rows<const T>& G, std::int64_t row_stride,
                               std::int64_t first, std::int64_t count, std::int64_t D) {
    const T weight_decay = T(u.weight_decay);
    const std::uint64_t key = u.key;
    T* M1 = static_cast<T*>(u.M1) + first;
    for (std::int64_t i = 0; i < count; ++i) {
        const T* g = G.row(i);
        const Proxies p = values_at<T, Proxies>(u.P, (first + i) * row_stride);
        T square = 0, length = 0;
#pragma omp simd reduction(+ : square, length)
        for (std::int64_t d = 0; d < D; ++d) {
            square += (g[d] + weight_decay * p.read(d)) * (g[d] + weight_decay * p.read(d));
            length += p.read(d) * p.read(d);
        }
        const T rate = adagrad_rate(u, M1[i], square, length, D);
        const std::uint64_t word = std::uint64_t((first + i) * D);
#pragma omp simd
        for (std::int64_t d = 0; d < D; ++d) {
            const std::uint64_t random = is_plain(p) ? 0 : random_word(key, word + std::uint64_t(d));
            p.write(d, p.read(d) - rate * (g[d] + weight_decay * p.read(d)), random >> 32);
        }
    }
}

template <class T, class Proxies>
ROBUSTDML_HD void adagrad_columns(const ProxyUpdate<T>& u, const Rows<const T>& G, std::int64_t column_stride,
                                  std::int64_t first, std::int64_t count, std::int64_t D) {
    const T weight_decay = T(u.weight_decay);
    const std::uint64_t key = u.key;
    T* M1 = static_cast<T*>(u.M1) + first;
    for (std::int64_t from = 0; from < count; from += kRowsTogether) {
        const std::int64_t length = std::min(kRowsTogether, count - from);
        T square[kRowsTogether] = {}, lengths[kRowsTogether] = {}, rate[kRowsTogether];
        for (std::int64_t d = 0; d < D; ++d) {
            const T* g = G.column(d) + from;
            const Proxies p = values_at<T, Proxies>(u.P, d * column_stride + first + from);
#pragma omp simd
            for (std::int64_t i = 0; i < length; ++i) {
                square[i] += (g[i] + weight_decay * p.read(i)) * (g[i] + weight_decay * p.read(i));
                lengths[i] += p.read(i) * p.read(i);
            }
        }
        for (std::int64_t i = 0; i < length; ++i)
            rate[i] = adagrad_rate(u, M1[from + i], square[i], lengths[i], D);
        for (std::int64_t d = 0; d < D; ++d) {
            const T* g = G.column(d) + from;
            const Proxies p = values_at<T, Proxies>(u.P, d * column_stride + first + from);
            const std::uint64_t word = std::uint64_t((first + from) * D + d);
#pragma omp simd
            for (std::int64_t i = 0; i < length; ++i) {
                const std::uint64_t random =
                    is_plain(p) ? 0 : random_word(key, word + std::uint64_t(i) * std::uint64_t(D));
                p.write(i, p.read(i) - rate[i] * (g[i] + weight_decay * p.read(i)), random >> 32);
            }
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
template <class T, class Proxies>
ROBUSTDML_HD void update_run(const ProxyUpdate<T>& u, const Rows<const T>& G, const Rows<const T>& P,
                             std::int64_t first, std::int64_t count, std::int64_t D) {
    if (u.kind != UpdateKind::adagrad && u.radians) {
        if (u.bfloat16)
            turn_rows<T, Proxies, Bfloat16<T>>(u, G, P, first, count, D);
        else
            turn_rows<T, Proxies, Plain<T>>(u, G, P, first, count, D);
    } else if (u.kind != UpdateKind::adagrad) {
        if (u.bfloat16)
            update_elements<T, Proxies, Bfloat16<T>>(u, G, P, first, count, D);
        else
            update_elements<T, Proxies, Plain<T>>(u, G, P, first, count, D);
    } else if (P.by_columns()) {
        adagrad_columns<T, Proxies>(u, G, P.column_stride, first, count, D);
    } else {
        adagrad_rows<T, Proxies>(u, G, P.row_stride, first, count, D);
    }
}

template <class T, class Proxies>
ROBUSTDML_HD bool update_chunk(const ProxyUpdate<T>& u, const Rows<const T>& G, const Rows<const T>& P,
                               std::int64_t first, const std::int64_t* selected, std::int64_t count,
                               std::int64_t D) {
    if (!all_finite(G, count, D)) return false;
    if (!selected) {
        update_run<T, Proxies>(u, G, P, first, count, D);
        return true;
    }
    selected += first;
    for (std::int64_t from = 0, to; from < count; from = to) {
        for (to = from + 1; to < count && selected[to] == selected[to - 1] + 1;) ++to;
        const Rows<const T> of_run{G.row(from), G.row_stride, G.column_stride};
        update_run<T, Proxies>(u, of_run, P, selected[from], to - from, D);
    }
    return true;
}

// target_clones takes no templates: plain functions of both types.
#define ROBUSTDML_STAMP(T)                                                                                 \
    ROBUSTDML_CLONES bool update_clone(const ProxyUpdate<T>& u, const Rows<const T>& G,                    \
                                       const Rows<const T>& P, std::int64_t first,                         \
                                       const std::int64_t* selected, std::int64_t count, std::int64_t D) { \
        return u.bfloat16_proxies ? update_chunk<T, Bfloat16<T>>(u, G, P, first, selected, count, D)       \
                                  : update_chunk<T, Plain<T>>(u, G, P, first, selected, count, D);         \
    }
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace

template <class T>
bool update_rows(const ProxyUpdate<T>& update, const Rows<const T>& G, const Rows<const T>& P_layout,
                 std::int64_t first, const std::int64_t* selected, std::int64_t count, std::int64_t D) {
    return update_clone(update, G, P_layout, first, selected, count, D);
}

#define ROBUSTDML_STAMP(T)                                                                          \
    template bool update_rows<T>(const ProxyUpdate<T>&, const Rows<const T>&, const Rows<const T>&, \
                                 std::int64_t, const std::int64_t*, std::int64_t, std::int64_t);
ROBUSTDML_STAMP(float)
ROBUSTDML_STAMP(double)
#undef ROBUSTDML_STAMP

}  // namespace robustdml::cpu
