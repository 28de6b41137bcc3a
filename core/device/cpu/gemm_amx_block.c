/* gemm_amx_block.c -- 32 x 32 of C in four tiles, its way to memory, and the work between the tile instructions. */
#include "device/cpu/gemm_amx_block.h"

#if defined(__x86_64__) && defined(__linux__)
#include <immintrin.h>

#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

enum {
  P = Z3I_AMX_PANEL, BLOCK = Z3I_AMX_BLOCK,
  RUN = 4                                         /* steps of A packed together, along its lines */
};

/* All eight tiles have 16 rows of 64 bytes. */
AMX void z3i_amx_open(void)
{
  struct { uint8_t palette, start, zero[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } config;
  memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int i = 0; i < 8; i++) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  __asm__ volatile("" ::"r"(&config) : "memory"); /* gcc 12 says that the instruction reads 8 bytes */
  _tile_loadconfig(&config);
}

AMX void z3i_amx_close(void) { _tile_release(); }

/* ---- storing ----------------------------------------------------------------------------------------- */
/* 16 results in the low halves, as z3i_f32_to_bf16 rounds. */
AVX512 static inline __m256i to_bf16(__m512 x)
{
  __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

AVX512 static inline __m512 of_bf16(__m256i h)
{
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Row r of a finished block to C: plus the bias, added to C or not, rounded. */
AVX512 static void store_row(const z3i_amx_target *to, const z3i_amx_done *f, int64_t r)
{
  const z3i_gemm_args *g = to->g;
  for (int64_t half = 0; half < f->cols; half += 16) {
    __mmask16 mask = (__mmask16)(f->cols - half >= 16 ? 0xFFFFu : (1u << (f->cols - half)) - 1u);
    __m512 x = _mm512_load_ps(f->block + r * P + half);
    int64_t column = f->j + half, at = (f->i + r) * g->ldc + column;
    if (to->bias != NULL) x = _mm512_add_ps(x, of_bf16(_mm256_maskz_loadu_epi16(mask, to->bias + column)));
    if (g->out_dtype == Z3T_F32) {
      float *c = (float *)to->c + at;
      if (g->add) x = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), x);
      _mm512_mask_storeu_ps(c, mask, x);
    } else {
      uint16_t *c = (uint16_t *)to->c + at;
      if (g->add) x = _mm512_add_ps(of_bf16(_mm256_maskz_loadu_epi16(mask, c)), x);
      _mm256_mask_storeu_epi16(c, mask, to_bf16(x));
    }
  }
}

/* Whole rows of bf16 are rounded by the instruction for it, which differs from to_bf16 only in that it takes denormal
 * results as 0: products have none, and those that the bias makes go the other way. */
BF16 void z3i_amx_store(const z3i_amx_target *to, const z3i_amx_done *f, int64_t first, int64_t end)
{
  const z3i_gemm_args *g = to->g;
  enum { DENORMAL = 0x20 };
  bool plain = g->out_dtype == Z3T_BF16 && !g->add && f->cols == P;
  __m512 bias0 = _mm512_setzero_ps(), bias1 = bias0;
  if (plain && to->bias != NULL) {
    bias0 = of_bf16(_mm256_loadu_si256((const __m256i *)(const void *)(to->bias + f->j)));
    bias1 = of_bf16(_mm256_loadu_si256((const __m256i *)(const void *)(to->bias + f->j + 16)));
  }
  for (int64_t r = first; r < end; r++) {
    __m512 x = _mm512_load_ps(f->block + r * P), y = _mm512_load_ps(f->block + r * P + 16);
    if (to->bias != NULL) {
      x = _mm512_add_ps(x, bias0);
      y = _mm512_add_ps(y, bias1);
    }
    if (plain && _mm512_kortestz(_mm512_fpclass_ps_mask(x, DENORMAL), _mm512_fpclass_ps_mask(y, DENORMAL)))
      _mm512_storeu_si512((uint16_t *)to->c + (f->i + r) * g->ldc + f->j, (__m512i)_mm512_cvtne2ps_pbh(y, x));
    else store_row(to, f, r);
  }
}

/* ---- beside a block ---------------------------------------------------------------------------------- */
static void fetch_lines(z3i_amx_fetching *f, int64_t lines, bool to_write)
{
  for (; lines > 0 && f->row < f->rows; lines--) {
    const char *at = f->at + f->row * f->stride + f->byte;
    if (to_write) __builtin_prefetch(at, 1);
    else __builtin_prefetch(at);
    f->byte += 64;
    if (f->byte < f->row_bytes) continue;
    f->byte = 0;
    f->row++;
  }
}

static void aside_some(z3i_amx_aside *o)
{
  fetch_lines(&o->c, o->c_each, true);
  fetch_lines(&o->next_a, o->next_each, false);
  if (o->row < o->store.rows) {
    int64_t end = Z3I_MIN(o->row + o->rows_each, o->store.rows);
    z3i_amx_store(o->to, &o->store, o->row, end);
    o->row = end;
  }
  if (o->a.first < o->a.end && o->turn % RUN == 0) {
    int64_t end = Z3I_MIN(o->a.first + RUN * o->a_each, o->a.end);
    z3i_amx_pack(o->a.dst, &o->a.src, false, o->a.lines, o->a.k, o->a.first, end);
    o->a.first = end;
  }
  o->turn++;
}

void z3i_amx_aside_rest(z3i_amx_aside *o)
{
  while (o->row < o->store.rows || o->a.first < o->a.end) aside_some(o);
}

/* ---- the block --------------------------------------------------------------------------------------- */
/* The tile unit is busy for 64 cycles a step, and little else of the core is: the aside's turns fit in between. */
AMX void z3i_amx_block(z3i_amx_tiles a, const uint16_t *b, int64_t steps, const float *from, float *to, int64_t ld,
                       z3i_amx_aside *other)
{
  __asm__ volatile("" ::: "memory");              /* gcc 12 says that tile loads read no memory */
  if (from == NULL) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, from, P * 4);
    _tile_loadd(1, from + 16, P * 4);
    _tile_loadd(2, from + 16 * P, P * 4);
    _tile_loadd(3, from + 16 * P + 16, P * 4);
  }
  for (int64_t s = 0; s < steps; s++, a.at += a.step, b += BLOCK) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a.at, a.row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + BLOCK / 2, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a.at + a.second, a.row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    aside_some(other);
  }
  _tile_stored(0, to, ld * 4);
  _tile_stored(1, to + 16, ld * 4);
  _tile_stored(2, to + 16 * ld, ld * 4);
  _tile_stored(3, to + 16 * ld + 16, ld * 4);
}
#endif
