#include "common/cpu_bfloat16.h"

#include <algorithm>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace robustdml::cpu {

#if defined(__x86_64__) && defined(__GNUC__)
#define ROBUSTDML_BFLOAT16 \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,prefer-vector-width=512")))

namespace {

constexpr std::int64_t kWide = 16;

ROBUSTDML_BFLOAT16 inline __mmask16 first_lanes(std::int64_t count) {
    return static_cast<__mmask16>(count >= kWide ? 0xFFFF : (1 << std::max<std::int64_t>(count, 0)) - 1);
}

// Sixteen pairs (low, high), each rounded to nearest.
ROBUSTDML_BFLOAT16 inline __m512i pairs_of(__m512 low, __m512 high) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

// to (rows, columns of pairs) <- M (count, columns); the rows behind `count` become 0.
ROBUSTDML_BFLOAT16 void round_rows(const float* M, std::int64_t stride, std::int64_t count, std::int64_t rows,
                                   std::int64_t columns, std::uint32_t* to, std::int64_t to_columns) {
    for (std::int64_t i = 0; i < count; ++i) {
        const float* row = M + i * stride;
        std::uint32_t* out = to + i * to_columns;
        for (std::int64_t c = 0; c < columns; c += 2 * kWide) {
            const __m512 low = _mm512_maskz_loadu_ps(first_lanes(columns - c), row + c);
            const __m512 high = _mm512_maskz_loadu_ps(first_lanes(columns - c - kWide), row + c + kWide);
            _mm512_mask_storeu_epi32(out + c / 2, first_lanes(to_columns - c / 2),
                                     (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }
    std::fill(to + count * to_columns, to + rows * to_columns, 0u);
}

// Pairs of the rows 2k and 2k + 1 of M (count, columns), at the columns c ... c + 15; 0 behind its end.
ROBUSTDML_BFLOAT16 inline __m512i row_pair(const float* M, std::int64_t stride, std::int64_t count,
                                           std::int64_t k, std::int64_t c, __mmask16 mask) {
    const float* row = M + 2 * k * stride + c;
    const __m512 low = 2 * k < count ? _mm512_maskz_loadu_ps(mask, row) : _mm512_setzero_ps();
    const __m512 high = 2 * k + 1 < count ? _mm512_maskz_loadu_ps(mask, row + stride) : _mm512_setzero_ps();
    return pairs_of(low, high);
}

// M (count, columns) as right factor.
ROBUSTDML_BFLOAT16 void pair_rows(const float* M, std::int64_t stride, std::int64_t count,
                                  const RightFactor& to) {
    for (std::int64_t k = 0; k < to.rows; ++k)
        for (std::int64_t c = 0; c < to.columns; c += kWide) {
            const std::int64_t place = c % RightFactor::kPanel;
            _mm512_storeu_si512(to.panel(c - place) + k * RightFactor::kPanel + place,
                                row_pair(M, stride, count, k, c, first_lanes(to.columns - c)));
        }
}

// The transpose of sixteen vectors, in place.
ROBUSTDML_BFLOAT16 inline void transpose(__m512i (&r)[kWide]) {
    __m512i t[kWide];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    // r[4g + j]: the column j of each of four quarters, of the rows 4g ... 4g + 3.
    for (int j = 0; j < 4; ++j) {
        const __m512i low = _mm512_shuffle_i32x4(r[j], r[j + 4], 0x88);
        const __m512i high = _mm512_shuffle_i32x4(r[j], r[j + 4], 0xDD);
        const __m512i lower = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0x88);
        const __m512i higher = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0xDD);
        t[j] = _mm512_shuffle_i32x4(low, lower, 0x88);
        t[j + 8] = _mm512_shuffle_i32x4(low, lower, 0xDD);
        t[j + 4] = _mm512_shuffle_i32x4(high, higher, 0x88);
        t[j + 12] = _mm512_shuffle_i32x4(high, higher, 0xDD);
    }
    std::copy(t, t + 16, r);
}

// The transpose of M (count, columns) as left factor (columns, count).
ROBUSTDML_BFLOAT16 void transpose_rows(const float* M, std::int64_t count, std::int64_t columns,
                                       const LeftFactor& to) {
    for (std::int64_t c = 0; c < columns; c += kWide)
        for (std::int64_t k = 0; k < to.columns; k += kWide) {
            __m512i block[kWide];
            for (std::int64_t i = 0; i < kWide; ++i)
                block[i] = row_pair(M, columns, count, k + i, c, first_lanes(columns - c));
            transpose(block);
            for (std::int64_t i = 0; i < std::min(kWide, columns - c); ++i)
                _mm512_mask_storeu_epi32(to.pairs.get() + (c + i) * to.columns + k,
                                         first_lanes(to.columns - k), block[i]);
        }
}

// The transpose of a left factor with `rows` rows as right factor.
ROBUSTDML_BFLOAT16 void turn(const LeftFactor& M, std::int64_t rows, const RightFactor& to) {
    for (std::int64_t row = 0; row < rows; row += kWide) {
        const std::int64_t place = row % RightFactor::kPanel;
        std::uint32_t* out = to.panel(row - place) + place;
        for (std::int64_t k = 0; k < M.columns; k += kWide) {
            __m512i block[kWide];
            for (std::int64_t i = 0; i < kWide; ++i)
                block[i] = row + i < rows
                               ? _mm512_maskz_loadu_epi32(first_lanes(M.columns - k),
                                                          M.pairs.get() + (row + i) * M.columns + k)
                               : _mm512_setzero_si512();
            transpose(block);
            for (std::int64_t i = 0; i < std::min(kWide, M.columns - k); ++i)
                _mm512_storeu_si512(out + (k + i) * RightFactor::kPanel, block[i]);
        }
    }
}

}  // namespace

bool multiplies_bfloat16() {
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

// With Intel's AVX512-BF16 a product takes twice the time of one in float32.
bool bfloat16_is_faster() {
    unsigned a, b, c, d = 0;
    const bool has_amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1);  // AMX-BF16
    return __builtin_cpu_is("amd") || has_amx;
}

#else

namespace {

void round_rows(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::uint32_t*,
                std::int64_t) {}
void pair_rows(const float*, std::int64_t, std::int64_t, const RightFactor&) {}
void transpose_rows(const float*, std::int64_t, std::int64_t, const LeftFactor&) {}
void turn(const LeftFactor&, std::int64_t, const RightFactor&) {}

}  // namespace

bool multiplies_bfloat16() {
    return false;
}

bool bfloat16_is_faster() {
    return false;
}

#endif

BatchFactors::BatchFactors(const float* X, std::int64_t B, std::int64_t D, bool rows_wanted)
    : transposed((D + 1) / 2, B), rows(rows_wanted ? RightFactor((B + 1) / 2, D) : RightFactor()) {
    const LeftFactor by_rows(B, D);
    round_rows(X, D, B, B, D, by_rows.pairs.get(), by_rows.columns);
    turn(by_rows, B, transposed);
    if (rows_wanted) pair_rows(X, D, B, rows);
}

ChunkFactors::ChunkFactors(Brgemm brgemm, BrgemmRelease release, std::int64_t chunk_rows, std::int64_t B,
                           std::int64_t D)
    : brgemm_(brgemm),
      release_(release),
      B_(B),
      D_(D),
      V_(chunk_rows, D),
      dS_(chunk_rows, B),
      dS_transposed_(B, whole_steps(chunk_rows)),
      V_right_(whole_steps(chunk_rows) / 2, D) {}

void ChunkFactors::similarities(const BatchFactors& batch, const Rows<const float>& V, std::int64_t count,
                                float* S) {
    round_rows(V.data, V.row_stride, count, whole_steps(count), D_, V_.pairs.get(), V_.columns);
    multiply(whole_steps(count), V_, batch.transposed, S, B_, false);
}

void ChunkFactors::batch_gradient(const Rows<const float>& V, const float* dS, std::int64_t count, float* dX,
                                  bool add) {
    V_right_.rows = dS_transposed_.columns = whole_steps(count) / 2;
    pair_rows(V.data, V.row_stride, count, V_right_);
    transpose_rows(dS, count, B_, dS_transposed_);
    multiply(B_, dS_transposed_, V_right_, dX, D_, add);
}

void ChunkFactors::rows_gradient(const BatchFactors& batch, const float* dS, std::int64_t count, float* dV,
                                 std::int64_t dV_row_stride) {
    round_rows(dS, B_, count, whole_steps(count), B_, dS_.pairs.get(), dS_.columns);
    multiply(whole_steps(count), dS_, batch.rows, dV, dV_row_stride, false);
}

void bfloat16_products(Brgemm brgemm, BrgemmRelease release, const float* X, const float* V, const float* dS,
                       std::int64_t B, std::int64_t D, std::int64_t rows, float* S, float* dX, float* dV) {
    const BatchFactors batch(X, B, D, true);
    ChunkFactors chunk(brgemm, release, rows, B, D);
    const Rows<const float> by_rows{V, D, 1};
    chunk.similarities(batch, by_rows, rows, S);
    chunk.batch_gradient(by_rows, dS, rows, dX, false);
    chunk.rows_gradient(batch, dS, rows, dV, D);
    chunk.release();
}

void ChunkFactors::multiply(std::int64_t rows, const LeftFactor& A, const RightFactor& B, float* C,
                            std::int64_t C_stride, bool add) const {
    const auto* left = reinterpret_cast<const std::uint16_t*>(A.pairs.get());
    for (std::int64_t column = 0; column < B.columns; column += RightFactor::kPanel)
        brgemm_(rows, std::min(RightFactor::kPanel, B.columns - column), 2 * A.columns, 2 * A.columns,
                RightFactor::kPanel, C_stride, add, left,
                reinterpret_cast<const std::uint16_t*>(B.panel(column)), C + column, true);
}

}  // namespace robustdml::cpu
