/* lse.h -- maximum and sum of exponentials of a row in one pass over it, for softmax and cross-entropy.
 * Blocks in order: a block with a larger maximum rescales the sum so far (Milakov & Gimelshein 2018), so a long row is
 * read from memory once. A NaN, or +inf, makes the sum NaN. */
#ifndef Z3I_LSE_H
#define Z3I_LSE_H
#include <math.h>
#include "device/cpu/isa/rows.h"

typedef struct z3i_lse {
  float max;                                    /* -inf while all are -inf */
  double sum;                                   /* of exp(x - max) */
} z3i_lse;

/* Subtracting -inf from -inf would give NaN where exp(-inf) = 0 is meant. */
static inline float z3i_lse_shift(float max) { return max == -INFINITY ? 0.0f : max; }

/* e^x for x < 88, half the work of z3i_expf: below -87.33, where floats get subnormal, it is 0. NaN stays NaN. */
static inline float z3i_exp_low(float x)
{
  float t = z3i_fmaf(x, 1.44269504f, Z3I_ROUND), kf = t - Z3I_ROUND;   /* x = k ln 2 + r as in z3i_expf */
  float r = z3i_fmaf(kf, 2.12194440e-4f, z3i_fmaf(kf, -0.693359375f, x));
  float q = 0.000199451082f;
  q = z3i_fmaf(q, r, 0.00139326649f);
  q = z3i_fmaf(q, r, 0.00833320711f);
  q = z3i_fmaf(q, r, 0.0416664891f);
  q = z3i_fmaf(q, r, 0.166666672f);
  q = z3i_fmaf(q, r, 0.5f);
  float y = (1.0f + z3i_fmaf(q * r, r, r)) * z3i_float((z3i_bits(t) << 23) + 0x3F800000u);   /* t's low bits are k */
  return x < -87.33f ? 0.0f : y;
}

static inline void z3i_exp_block(float *restrict e, const float *restrict x, int64_t n, float shift)
{
  for (int64_t i = 0; i < n; i++) e[i] = z3i_exp_low(x[i] - shift);
}

/* Adds n <= Z3I_BLOCK elements; e gets exp(x - s.max), which stays right when this was the row's only block. */
static inline void z3i_lse_add(z3i_lse *s, float *restrict e, const float *restrict x, int64_t n)
{
  float top = z3i_vmax(x, n);
  if (top > s->max) {
    s->sum *= exp((double)s->max - (double)top);
    s->max = top;
  }
  z3i_exp_block(e, x, n, z3i_lse_shift(s->max));
  s->sum += (double)z3i_vsum(e, n);
}

static inline z3i_lse z3i_lse_row(const void *x, int dtype, int64_t n, float buf[Z3I_BLOCK], float e[Z3I_BLOCK])
{
  z3i_lse s = { -INFINITY, 0 };
  for (int64_t i = 0; i < n; i += Z3I_BLOCK) {
    int64_t m = Z3I_MIN(n - i, (int64_t)Z3I_BLOCK);
    z3i_lse_add(&s, e, z3i_block_f32(buf, (const char *)x + i * z3i_dtype_bytes(dtype), dtype, m), m);
  }
  return s;
}
#endif
