/* attn_amx.h -- bf16 attention on AMX tiles (attn_amx.c, attn_amx_bwd.c), and what its two directions share.
 * Private to cpu/; for attention.c. Weights and their slopes are rounded to bf16 before they are multiplied, sums are
 * f32. Legend: gemm_amx.h (panel, step, packed as A, as B) and isa/attn.h; a block is 128 queries or 128 keys. */
#ifndef Z3I_ATTN_AMX_H
#define Z3I_ATTN_AMX_H
#include "device/cpu/gemm_amx_block.h"

/* Whether a call comes here rather than to isa/: bf16 with contiguous heads of 32 to 256 values, more than a few
 * queries, tiles that may be used (z3i_amx_usable). */
bool z3i_attn_amx_takes(const z3i_call *c, bool backward);
/* Errors: Z3E_OOM (scratch; nothing was written). */
int z3i_attn_amx_fwd(const z3i_call *c);
int z3i_attn_amx_bwd(const z3i_call *c);

enum { Z3I_ATTN_AMX_BLOCK = 128 };

typedef struct z3i_attn_amx {
  const z3i_call *call;
  int64_t B, H, K, T, S, D, group;
  int64_t lead;                                   /* query t sees keys 0 to t + lead: 0 when causal, else S */
  float scale, to_log2;                           /* to_log2: from a product to a score in units of log 2 */
  int64_t mask_stride[4];                         /* of (B,H,T,S); 0 where the mask is repeated */
} z3i_attn_amx;

z3i_attn_amx z3i_attn_amx_describe(const z3i_call *c);
/* Small problems stay on one thread. */
int z3i_attn_amx_threads(const z3i_attn_amx *f);
/* Rows t.. of head h as lines of D values (k_major false), or as values of K for D lines. */
z3i_amx_source z3i_attn_amx_rows(const z3i_view *v, int64_t b, int64_t h, int64_t t, bool k_major);
/* count rows of a head whose rows are lines: packed panels of 32 rows, 32 * D values apart. */
void z3i_attn_amx_pack_lines(uint16_t *dst, z3i_amx_source rows, bool pairs, int64_t count, int64_t D);
/* count rows of a head whose rows are values of K: as B, panels of 32 columns of D, `apart` values apart. */
void z3i_attn_amx_pack_columns(uint16_t *dst, z3i_amx_source rows, int64_t count, int64_t D, int64_t apart);
/* c (32 x 32, rows ldc apart) = or += a panel of A by a packed panel of B. Tiles are open. */
void z3i_attn_amx_product(z3i_amx_tiles a, const uint16_t *b, int64_t steps, float *c, int64_t ldc, bool add);

static inline z3i_amx_tiles z3i_attn_amx_packed(const uint16_t *a)
{
  return (z3i_amx_tiles){ (const char *)a, 64, Z3I_AMX_BLOCK * 2, Z3I_AMX_BLOCK };
}
/* Rows of a block as they lie: 128 values each. */
static inline z3i_amx_tiles z3i_attn_amx_block_rows(const uint16_t *a)
{
  return (z3i_amx_tiles){ (const char *)a, Z3I_ATTN_AMX_BLOCK * 2, 64, 16 * Z3I_ATTN_AMX_BLOCK * 2 };
}
static inline int64_t z3i_attn_amx_panels(int64_t n) { return (n + Z3I_AMX_PANEL - 1) / Z3I_AMX_PANEL; }
static inline char *z3i_attn_amx_row(const z3i_view *v, int64_t b, int64_t h, int64_t t)
{
  return (char *)v->data + (b * v->stride[0] + h * v->stride[1] + t * v->stride[2]) * z3i_dtype_bytes(v->dtype);
}
/* Rows of a head lie far apart, beyond what the processor foresees: a later one is asked for while this is used. */
__attribute__((always_inline)) static inline void z3i_attn_amx_ask_ahead(const void *row, int64_t stride_bytes,
                                                                         int64_t bytes, bool to_write)
{
  enum { AHEAD = 12 };
  uintptr_t later = (uintptr_t)row + (uintptr_t)(AHEAD * stride_bytes);
  for (int64_t at = 0; at < bytes; at += 64) {
    if (to_write) __builtin_prefetch((const void *)(later + (uintptr_t)at), 1);
    else __builtin_prefetch((const void *)(later + (uintptr_t)at));
  }
}
/* The mask at (b,h,t,s); NULL: there is none. */
static inline const uint8_t *z3i_attn_amx_mask(const z3i_attn_amx *f, int64_t b, int64_t h, int64_t t, int64_t s)
{
  const uint8_t *mask = f->call->in[3].data;
  const int64_t *stride = f->mask_stride;
  return mask == NULL ? NULL : mask + b * stride[0] + h * stride[1] + t * stride[2] + s * stride[3];
}

/* ---- AVX-512 ------------------------------------------------------------------------------------------ */
#if defined(__x86_64__) && defined(__linux__)
#include <immintrin.h>
#define Z3I_ATTN_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,avx2")))
#define Z3I_ATTN_INLINE Z3I_ATTN_AVX512 __attribute__((always_inline)) static inline

/* 2^x: 1.3 ulp; exactly 0 below -126, so that a hidden score weighs nothing; NaN stays. */
Z3I_ATTN_INLINE __m512 z3i_attn_exp2(__m512 x)
{
  __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(1.5353362e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3398874e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.6184373e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5503324e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022648e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314720e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), p, whole);
}
Z3I_ATTN_INLINE __m512 z3i_attn_load_bf16(const uint16_t *p)
{
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
/* Rounds to nearest even; denormals become 0, NaN stays. */
Z3I_ATTN_INLINE void z3i_attn_store_bf16(uint16_t *p, __m512 x)
{
  _mm256_storeu_si256((__m256i *)(void *)p, (__m256i)_mm512_cvtneps_pbh(x));
}
/* n (a multiple of 16) values by `by`, written to a row of bf16 or f32, or added to it. */
Z3I_ATTN_INLINE void z3i_attn_store_row(char *row, int dtype, const float *src, int64_t n, float by, bool add)
{
  __m512 s = _mm512_set1_ps(by);
  for (int64_t d = 0; d < n; d += 16) {
    __m512 x = _mm512_mul_ps(_mm512_loadu_ps(src + d), s);
    if (dtype == Z3T_F32) {
      float *to = (float *)(void *)row + d;
      _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), x) : x);
    } else {
      uint16_t *to = (uint16_t *)(void *)row + d;
      z3i_attn_store_bf16(to, add ? _mm512_add_ps(z3i_attn_load_bf16(to), x) : x);
    }
  }
}
#endif
#endif
