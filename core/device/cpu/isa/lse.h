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

static inline void z3i_exp_block(float *restrict e, const float *restrict x, int64_t n, float shift)
{
  for (int64_t i = 0; i < n; i++) e[i] = z3i_expf(x[i] - shift);
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
