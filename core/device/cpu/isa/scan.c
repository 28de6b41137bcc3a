/* scan.c -- operations along a dim of contiguous tensors: cumulative sums, lower triangles.
 * Letters: O outer, N along the dim, I inner elements of the row-major tensor. Sums run in double, of integers in
 * 64 bits. */
#include "device/cpu/isa/elem.h"
#include "device/cpu/isa/isa_kernels.h"

enum { COLUMNS = 256 };                         /* inner elements that one task scans side by side */

typedef struct scan_task {
  z3i_flat x, y;
  int64_t n, inner, strips;                     /* strips of COLUMNS inner elements */
  bool backward, add;
} scan_task;

/* Inner size 1: each outer slice is one run of N elements. Backward sums from the end. */
static void scan_run(const scan_task *t, int64_t base)
{
  float buf[Z3I_BLOCK], y[Z3I_BLOCK];
  double acc = 0;
  int64_t blocks = (t->n + Z3I_BLOCK - 1) / Z3I_BLOCK;
  for (int64_t b = 0; b < blocks; b++) {
    int64_t at = (t->backward ? blocks - 1 - b : b) * Z3I_BLOCK, m = Z3I_MIN(t->n - at, (int64_t)Z3I_BLOCK);
    const float *x = z3i_get_f32(buf, &t->x, base + at, m);
    for (int64_t i = 0; i < m; i++) {
      int64_t j = t->backward ? m - 1 - i : i;
      acc += (double)x[j];
      y[j] = (float)acc;
    }
    z3i_put_f32(&t->y, base + at, m, y, t->add);
  }
}

/* Task: a strip of one outer slice. */
static void scan_strip(const scan_task *t, int64_t base, int64_t m)
{
  float buf[COLUMNS], y[COLUMNS];
  double acc[COLUMNS] = { 0 };
  for (int64_t s = 0; s < t->n; s++) {
    int64_t at = base + (t->backward ? t->n - 1 - s : s) * t->inner;
    const float *x = z3i_get_f32(buf, &t->x, at, m);
    for (int64_t j = 0; j < m; j++) acc[j] += (double)x[j];
    for (int64_t j = 0; j < m; j++) y[j] = (float)acc[j];
    z3i_put_f32(&t->y, at, m, y, t->add);
  }
}

static void scan_f32(void *ctx, int64_t lo, int64_t hi)
{
  const scan_task *t = ctx;
  for (int64_t task = lo; task < hi; task++) {
    int64_t first = task % t->strips * COLUMNS, base = task / t->strips * t->n * t->inner + first;
    if (t->inner == 1) scan_run(t, base);
    else scan_strip(t, base, Z3I_MIN(t->inner - first, (int64_t)COLUMNS));
  }
}

/* Integers have no backward, and so one loop is enough. */
static void scan_i64(void *ctx, int64_t lo, int64_t hi)
{
  const scan_task *t = ctx;
  int64_t buf[COLUMNS];
  uint64_t acc[COLUMNS];
  for (int64_t task = lo; task < hi; task++) {
    int64_t first = task % t->strips * COLUMNS, m = Z3I_MIN(t->inner - first, (int64_t)COLUMNS);
    int64_t base = task / t->strips * t->n * t->inner + first;
    memset(acc, 0, sizeof acc);
    for (int64_t s = 0; s < t->n; s++) {
      const int64_t *x = z3i_get_i64(buf, &t->x, base + s * t->inner, m);
      for (int64_t j = 0; j < m; j++) acc[j] += (uint64_t)x[j];
      z3i_put_i64(&t->y, base + s * t->inner, m, (const int64_t *)acc);
    }
  }
}

static int scan(const z3i_view *x, const z3i_view *y, int64_t dim, bool backward, bool add)
{
  scan_task t = { .x = z3i_flatten(x), .y = z3i_flatten(y), .n = y->shape[dim], .inner = 1, .backward = backward,
                  .add = add };
  if (t.y.n == 0) return Z3E_OK;
  for (int d = (int)dim + 1; d < y->ndim; d++) t.inner *= y->shape[d];
  t.strips = (t.inner + COLUMNS - 1) / COLUMNS;
  int64_t outer = t.y.n / (t.n * t.inner);
  z3i_for_blocks(outer * t.strips, 1, t.y.n, z3i_dtype_float(y->dtype) ? scan_f32 : scan_i64, &t);
  return Z3E_OK;
}

int Z3I_SYM(cumsum)(const z3i_call *c) { return scan(&c->in[0], &c->out[0], c->attr->i[0], false, false); }

int Z3I_SYM(cumsum_grad)(const z3i_call *c)
{
  if (c->gin[0].data == NULL) return Z3E_OK;
  return scan(&c->gout[0], &c->gin[0], c->attr->i[0], true, c->gin_add & 1u);
}

/* ---- tril: keeps column j of row i where j <= i + diagonal ------------------------------------------------ */
typedef struct tril_task {
  z3i_flat x, y;
  int64_t rows, columns, diagonal;
  bool add;
} tril_task;

static void tril_rows(void *ctx, int64_t lo, int64_t hi)
{
  const tril_task *t = ctx;
  uint64_t raw[Z3I_BLOCK];
  static const uint64_t zeros[Z3I_BLOCK];
  bool same = t->x.dtype == t->y.dtype && !t->add;
  for (int64_t row = lo; row < hi; row++) {
    int64_t keep = Z3I_MAX(0, Z3I_MIN(t->columns, row % t->rows + t->diagonal + 1));
    for (int64_t j = 0; j < t->columns; j += Z3I_BLOCK) {
      int64_t n = Z3I_MIN(t->columns - j, (int64_t)Z3I_BLOCK), m = Z3I_MAX(0, Z3I_MIN(n, keep - j)),
              at = row * t->columns + j;
      if (same) {
        z3i_gather(raw, &t->x, at, m);
        z3i_scatter(&t->y, at, m, raw);
      } else if (m > 0) z3i_put_f32(&t->y, at, m, z3i_get_f32((float *)raw, &t->x, at, m), t->add);
      if (!t->add) z3i_scatter(&t->y, at + m, n - m, zeros);
    }
  }
}

static int tril(const z3i_view *x, const z3i_view *y, int64_t diagonal, bool add)
{
  tril_task t = { .x = z3i_flatten(x),
                  .y = z3i_flatten(y),
                  .rows = y->shape[y->ndim - 2],
                  .columns = y->shape[y->ndim - 1],
                  .diagonal = diagonal,
                  .add = add };
  if (t.y.n == 0) return Z3E_OK;
  int64_t block = Z3I_MAX(1, Z3I_BLOCK / t.columns);
  z3i_for_blocks(t.y.n / t.columns, block, t.y.n, tril_rows, &t);
  return Z3E_OK;
}

int Z3I_SYM(tril)(const z3i_call *c) { return tril(&c->in[0], &c->out[0], c->attr->i[0], false); }

int Z3I_SYM(tril_grad)(const z3i_call *c)
{
  if (c->gin[0].data == NULL) return Z3E_OK;
  return tril(&c->gout[0], &c->gin[0], c->attr->i[0], c->gin_add & 1u);
}
