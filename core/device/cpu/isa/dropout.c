/* dropout.c -- element i is kept where word i of the key's Philox sequence is small, and then scaled by 1 / (1 - p).
 * Nothing is stored: backward draws the same words again. Source: Srivastava et al. 2014. */
#include "device/cpu/isa/elem.h"
#include "device/cpu/isa/isa_kernels.h"
#include "device/cpu/isa/philox.h"

typedef struct dropout_task {
  z3i_flat x, y;
  uint64_t key;
  uint32_t bound;                               /* kept: the word's upper 24 bits are below it */
  float scale;
  bool add;
} dropout_task;

static void keep_some(float *restrict y, const float *restrict x, const uint32_t *restrict w, uint32_t bound,
                      float scale, int64_t n)
{
  const int32_t limit = (int32_t)bound;
  for (int64_t i = 0; i < n; i++) {
    float kept = x[i] * scale;
    y[i] = (int32_t)(w[i] >> 8) < limit ? kept : 0.0f;
  }
}

static void dropout_block(void *ctx, int64_t lo, int64_t hi)
{
  const dropout_task *t = ctx;
  int64_t n = hi - lo, counters = (n + 3) / 4;  /* blocks start at multiples of 4 */
  z3i_philox_words words;
  uint32_t w[4 * Z3I_COUNTERS];
  float buf[Z3I_BLOCK], y[Z3I_BLOCK];
  z3i_philox_block(&words, t->key, (uint64_t)lo / 4, counters);
  z3i_philox_interleave(w, &words, counters);
  keep_some(y, z3i_get_f32(buf, &t->x, lo, n), w, t->bound, t->scale, n);
  z3i_put_f32(&t->y, lo, n, y, t->add);
}

static void run(const z3i_call *c, const z3i_view *x, const z3i_view *y, bool add)
{
  double keep = 1.0 - c->attr->f[0];
  dropout_task t = { .x = z3i_flatten(x),
                     .y = z3i_flatten(y),
                     .key = (uint64_t)c->attr->i[0],
                     .bound = (uint32_t)(keep * 16777216.0 + 0.5),
                     .scale = keep > 0 ? (float)(1.0 / keep) : 0.0f,
                     .add = add };
  z3i_for_blocks(t.y.n, Z3I_BLOCK, t.y.n, dropout_block, &t);
}

int Z3I_SYM(dropout)(const z3i_call *c)
{
  run(c, &c->in[0], &c->out[0], false);
  return Z3E_OK;
}

int Z3I_SYM(dropout_grad)(const z3i_call *c)
{
  if (c->gin[0].data != NULL) run(c, &c->gout[0], &c->gin[0], c->gin_add & 1u);
  return Z3E_OK;
}
