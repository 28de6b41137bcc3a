/* reduce_sumsq.c -- sum of squares in double and the count of elements that aren't finite, in one pass.
 * A view is cut into at most 64 parts by its size alone; each adds 64 lanes of doubles, parts are added in order. */
#include "device/cpu/isa/elem.h"
#include "device/cpu/isa/isa_kernels.h"

enum { PARTS = 64 };

typedef struct sumsq_task {
  z3i_flat x;
  int64_t part;                                 /* elements of one part */
  double sum[PARTS];
  int64_t bad[PARTS];
} sumsq_task;

static double block_sum(const float *x, int64_t n)
{
  double a[Z3I_LANES] = { 0 };
  Z3I_EACH_LANE(n, a[lane] += (double)x[at] * (double)x[at];);
  for (int half = Z3I_LANES / 2; half > 0; half /= 2)
    for (int j = 0; j < half; j++) a[j] += a[j + half];
  return a[0];
}

static int64_t block_bad(const float *restrict x, int64_t n)
{
  int32_t bad = 0;
  for (int64_t i = 0; i < n; i++) bad += (z3i_bits(x[i]) & 0x7F800000u) == 0x7F800000u;
  return bad;
}

static void part_block(void *ctx, int64_t lo, int64_t hi)
{
  sumsq_task *t = ctx;
  float buf[Z3I_BLOCK];
  double sum = 0;
  int64_t bad = 0;
  for (int64_t at = lo; at < hi; at += Z3I_BLOCK) {
    int64_t n = Z3I_MIN(hi - at, (int64_t)Z3I_BLOCK);
    const float *x = z3i_get_f32(buf, &t->x, at, n);
    sum += block_sum(x, n);
    bad += block_bad(x, n);
  }
  t->sum[lo / t->part] = sum;
  t->bad[lo / t->part] = bad;
}

int Z3I_SYM(sumsq)(const z3i_view *x, double *sum, int64_t *nonfinite)
{
  sumsq_task t = { .x = z3i_flatten(x) };
  int64_t blocks = (t.x.n + Z3I_BLOCK - 1) / Z3I_BLOCK;
  t.part = Z3I_MAX(1, (blocks + PARTS - 1) / PARTS) * Z3I_BLOCK;
  z3i_for_blocks(t.x.n, t.part, t.x.n, part_block, &t);
  *sum = 0;
  *nonfinite = 0;
  for (int i = 0; i < PARTS; i++) {
    *sum += t.sum[i];
    *nonfinite += t.bad[i];
  }
  return Z3E_OK;
}
