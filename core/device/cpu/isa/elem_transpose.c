/* elem_transpose.c -- a contiguous copy of a view whose fast dim in memory isn't its last: tile by tile.
 * Taken along the rows of the result, such a copy reads one element per cache line. A tile reads whole lines into a
 * small buffer and writes whole lines from it.
 * Letters: I the last dim (stride s in the source), J the dim of stride 1; a tile is TILE by TILE of them. */
#include "device/cpu/isa/elem.h"

enum { TILE = 32 };

typedef struct transpose_task {
  const z3i_flat *dst, *src;
  int j;                                        /* the dim of stride 1 */
  int64_t dst_stride[Z3_MAX_DIMS];
  int64_t strips;                               /* of TILE along J */
} transpose_task;

#define STORE_TILE(T)                                                                               \
  do {                                                                                              \
    T *restrict d = (T *)dst;                                                                       \
    const T(*restrict b)[TILE + 1] = (const T(*)[TILE + 1]) buf;                                    \
    for (int64_t j = 0; j < nj; j++)                                                                \
      for (int64_t i = 0; i < ni; i++) d[j * step + i] = b[i][j];                                   \
  } while (0)

/* buf is (ni, TILE + 1) elements; dst (nj, ni) with rows `step` elements apart. */
static void store_tile(void *dst, int64_t step, const void *buf, int bytes, int64_t ni, int64_t nj)
{
  switch (bytes) {
  case 1: STORE_TILE(uint8_t); break;
  case 2: STORE_TILE(uint16_t); break;
  case 4: STORE_TILE(uint32_t); break;
  default: STORE_TILE(uint64_t);
  }
}

/* One strip: TILE of J, all of I, for one index of the other dims. */
static void strip(const transpose_task *t, int64_t task)
{
  const z3i_flat *s = t->src;
  int in = s->ndim - 1, bytes = s->bytes;
  int64_t j0 = task % t->strips * TILE, nj = Z3I_MIN(s->shape[t->j] - j0, (int64_t)TILE), rest = task / t->strips;
  int64_t from = j0, to = j0 * t->dst_stride[t->j];
  uint64_t buf[TILE * (TILE + 1)];
  for (int d = in - 1; d >= 0; d--) {
    if (d == t->j) continue;
    from += rest % s->shape[d] * s->stride[d];
    to += rest % s->shape[d] * t->dst_stride[d];
    rest /= s->shape[d];
  }
  for (int64_t i0 = 0; i0 < s->shape[in]; i0 += TILE) {
    int64_t ni = Z3I_MIN(s->shape[in] - i0, (int64_t)TILE);
    for (int64_t i = 0; i < ni; i++)
      memcpy((char *)buf + i * (TILE + 1) * bytes, s->data + (from + (i0 + i) * s->stride[in]) * bytes,
             (size_t)(nj * bytes));
    store_tile(t->dst->data + (to + i0) * bytes, t->dst_stride[t->j], buf, bytes, ni, nj);
  }
}

static void strips(void *ctx, int64_t lo, int64_t hi)
{
  for (int64_t task = lo; task < hi; task++) strip(ctx, task);
}

bool z3i_transpose(const z3i_flat *dst, const z3i_flat *src)
{
  transpose_task t = { .dst = dst, .src = src, .j = -1 };
  int in = src->ndim - 1;
  for (int d = 0; d < in; d++)
    if (src->stride[d] == 1 && src->shape[d] >= TILE / 4) t.j = d;
  if (!dst->dense || src->dtype != dst->dtype || t.j < 0 || src->stride[in] < 2 || src->shape[in] < TILE / 4)
    return false;
  t.dst_stride[in] = 1;
  for (int d = in - 1; d >= 0; d--) t.dst_stride[d] = t.dst_stride[d + 1] * src->shape[d + 1];
  t.strips = (src->shape[t.j] + TILE - 1) / TILE;
  int64_t outer = src->n / (src->shape[t.j] * src->shape[in]);
  z3i_for_blocks(outer * t.strips, 1, src->n, strips, &t);
  return true;
}
