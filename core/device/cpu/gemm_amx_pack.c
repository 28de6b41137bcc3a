/* gemm_amx_pack.c -- panels of A and B in the order in which tile loads read them.
 * A tile is 16 rows of 16 doublewords, each two values of K. It is the source's lines as they lie (K contiguous), or
 * pairs of the source's rows interleaved (lines contiguous); A and B want it one way or the other, so a transpose of
 * 16 x 16 doublewords serves both. */
#include "device/cpu/gemm_amx.h"

#ifdef __x86_64__
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define AVX512_INLINE static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512dq,avx512vl")))

enum { TILE_LINES = 16, TILE = Z3I_AMX_BLOCK / 2 };

static __mmask32 first_of(int64_t n) { return n >= 32 ? 0xFFFFFFFFu : n <= 0 ? 0 : (1u << n) - 1u; }

/* Blocks of 4 x 4 first, then the blocks' places. */
AVX512_INLINE void transpose(__m512i r[16])
{
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {               /* r[i + j]: column j of each group of 4, rows i .. i+3 */
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int j = 0; j < 4; j++) {
    t[j] = _mm512_shuffle_i32x4(r[j], r[j + 4], 0x88);
    t[j + 4] = _mm512_shuffle_i32x4(r[j], r[j + 4], 0xDD);
    t[j + 8] = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0x88);
    t[j + 12] = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0xDD);
  }
  for (int j = 0; j < 4; j++) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
    r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xDD);
    r[j + 4] = _mm512_shuffle_i32x4(t[j + 4], t[j + 12], 0x88);
    r[j + 12] = _mm512_shuffle_i32x4(t[j + 4], t[j + 12], 0xDD);
  }
}

AVX512_INLINE void store_tile(uint16_t *dst, const __m512i r[16])
{
  for (int i = 0; i < 16; i++) _mm512_store_si512(dst + i * 32, r[i]);
}

/* One step from lines whose K is contiguous: src at (0, first k of the step). */
AVX512_INLINE void step_of_lines(uint16_t *dst, const uint16_t *src, int64_t ld, bool turn, int64_t lines, __mmask32 k)
{
  for (int half = 0; half < 2; half++) {
    __m512i r[16];
    for (int i = 0; i < 16; i++) {
      int line = half * TILE_LINES + i;
      r[i] = line < lines ? _mm512_maskz_loadu_epi16(k, src + line * ld) : _mm512_setzero_si512();
    }
    if (turn) transpose(r);
    store_tile(dst + half * TILE, r);
  }
}

/* One step from rows of K whose lines are contiguous: src at (first k of the step, 0); count rows are there. */
AVX512_INLINE void step_of_rows(uint16_t *dst, const uint16_t *src, int64_t ld, bool turn, __mmask32 lines,
                                int64_t count)
{
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i++) {
    const uint16_t *row = src + 2 * i * ld;
    __m512i even = 2 * i < count ? _mm512_maskz_loadu_epi16(lines, row) : _mm512_setzero_si512();
    __m512i odd = 2 * i + 1 < count ? _mm512_maskz_loadu_epi16(lines, row + ld) : _mm512_setzero_si512();
    __m512i x = _mm512_unpacklo_epi16(even, odd), y = _mm512_unpackhi_epi16(even, odd);
    a[i] = _mm512_permutex2var_epi64(x, low, y);
    b[i] = _mm512_permutex2var_epi64(x, high, y);
  }
  if (turn) {
    transpose(a);
    transpose(b);
  }
  store_tile(dst, a);
  store_tile(dst + TILE, b);
}

/* Whole steps of A whose K is contiguous: each line is read along its run. */
AVX512 static void copy_lines(uint16_t *dst, const uint16_t *src, int64_t ld, int64_t steps)
{
  for (int64_t line = 0; line < Z3I_AMX_PANEL; line++)
    for (int64_t s = 0; s < steps; s++)
      _mm512_store_si512(dst + s * Z3I_AMX_BLOCK + line * 32, _mm512_loadu_si512(src + line * ld + s * Z3I_AMX_STEP));
}

/* The common case, without masks, is compiled apart. */
AVX512 void z3i_amx_pack(uint16_t *dst, const z3i_amx_source *s, bool pairs, int64_t lines, int64_t k, int64_t first,
                         int64_t end)
{
  bool turn = pairs != s->k_major;
  int64_t whole = Z3I_MIN(end, k / Z3I_AMX_STEP);
  if (!turn && !s->k_major && lines == Z3I_AMX_PANEL && first < whole) {
    copy_lines(dst + first * Z3I_AMX_BLOCK, s->data + first * Z3I_AMX_STEP, s->ld, whole - first);
    first = whole;
  }
  for (int64_t step = first; step < end; step++) {
    int64_t at = step * Z3I_AMX_STEP, count = Z3I_MIN(k - at, (int64_t)Z3I_AMX_STEP);
    uint16_t *d = dst + step * Z3I_AMX_BLOCK;
    const uint16_t *rows = s->data + at * s->ld, *part = s->data + at;
    if (lines == Z3I_AMX_PANEL && count == Z3I_AMX_STEP) {
      if (s->k_major && turn) step_of_rows(d, rows, s->ld, true, 0xFFFFFFFFu, Z3I_AMX_STEP);
      else if (s->k_major) step_of_rows(d, rows, s->ld, false, 0xFFFFFFFFu, Z3I_AMX_STEP);
      else step_of_lines(d, part, s->ld, true, Z3I_AMX_PANEL, 0xFFFFFFFFu);
    } else if (s->k_major) {
      step_of_rows(d, rows, s->ld, turn, first_of(lines), count);
    } else {
      step_of_lines(d, part, s->ld, turn, lines, first_of(count));
    }
  }
}
#endif
