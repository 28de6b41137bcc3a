/* reduce.c -- sum, mean and variance over any dims, forward and backward.
 * Letters: K outputs, R elements reduced into each (reduce.h). Order of adding: 64 lanes of floats over blocks of up to
 * 2048 elements (or 64 rows), then doubles in order. It depends on the shape alone, never on the number of threads. */
#include "device/cpu/isa/isa_kernels.h"
#include "device/cpu/isa/reduce.h"

enum {
  FLUSH_ROWS = 64,                              /* floats are added over this many rows, then into doubles */
  FEW_TASKS = 16,                               /* fewer blocks of outputs than this: R is split as well */
  MAX_PARTS = 8192                              /* doubles on the stack that the parts of all outputs may take */
};

/* ---- one task: outputs klo..khi-1 over elements rlo..rhi-1 of each -------------------------------------- */
static float squares_about(const float *x, int64_t n, float mean)
{
  float a[Z3I_LANES] = { 0 };
  Z3I_EACH_LANE(n, a[lane] += (x[at] - mean) * (x[at] - mean););
  return z3i_lanes_sum(a);
}

static void add_row(float *restrict acc, const float *restrict x, const float *restrict mean, int64_t n)
{
  if (mean == NULL) {
    for (int64_t j = 0; j < n; j++) acc[j] += x[j];
    return;
  }
  for (int64_t j = 0; j < n; j++) acc[j] += (x[j] - mean[j]) * (x[j] - mean[j]);
}

/* Sums of x, or of (x - mean)^2 when mean (one per output of the task) is given. */
static void sum_part(const z3i_split *s, int64_t klo, int64_t khi, int64_t rlo, int64_t rhi, const float *mean,
                     double *out)
{
  int64_t n = khi - klo;
  float buf[Z3I_BLOCK];
  if (!s->columns) {
    for (int64_t o = 0; o < n; o++) {
      z3i_flat row = z3i_split_row(s, klo + o);
      out[o] = 0;
      for (int64_t lo = rlo; lo < rhi; lo += Z3I_BLOCK) {
        int64_t m = Z3I_MIN(rhi - lo, (int64_t)Z3I_BLOCK);
        const float *x = z3i_get_f32(buf, &row, lo, m);
        out[o] += (double)(mean == NULL ? z3i_vsum(x, m) : squares_about(x, m, mean[o]));
      }
    }
    return;
  }
  float acc[Z3I_COLUMNS];
  memset(out, 0, sizeof *out * (size_t)n);
  for (int64_t lo = rlo; lo < rhi; lo += FLUSH_ROWS) {
    memset(acc, 0, sizeof *acc * (size_t)n);
    for (int64_t i = lo; i < Z3I_MIN(rhi, lo + FLUSH_ROWS); i++) {
      z3i_flat column = z3i_split_column(s, i);
      add_row(acc, z3i_get_f32(buf, &column, klo, n), mean, n);
    }
    for (int64_t j = 0; j < n; j++) out[j] += (double)acc[j];
  }
}

/* ---- the whole ------------------------------------------------------------------------------------------ */
typedef struct reduce_task {
  z3i_split s;
  z3i_flat out, gout, gin;
  z3i_split gin_split;
  int op;
  bool add;
  double denominator;                           /* mean: R; var: R - correction */
  double *parts;                                /* (chunk, K) when R is split */
  const float *means;                           /* (K) for the second pass over split R */
  int64_t block, blocks, chunk;                 /* outputs per task, tasks along K, elements of R per chunk */
} reduce_task;

static void store_results(const reduce_task *t, int64_t klo, int64_t n, const double *total)
{
  float y[Z3I_COLUMNS];
  for (int64_t j = 0; j < n; j++) y[j] = (float)(t->op == Z3OP_sum ? total[j] : total[j] / t->denominator);
  z3i_put_f32(&t->out, klo, n, y, false);
}

static void means_of(const z3i_split *s, int64_t klo, int64_t khi, float *mean)
{
  double total[Z3I_COLUMNS];
  sum_part(s, klo, khi, 0, s->r, NULL, total);
  for (int64_t j = 0; j < khi - klo; j++) mean[j] = (float)(total[j] / (double)s->r);
}

static void whole_block(void *ctx, int64_t klo, int64_t khi)
{
  const reduce_task *t = ctx;
  double total[Z3I_COLUMNS];
  float mean[Z3I_COLUMNS];
  if (t->op == Z3OP_var) means_of(&t->s, klo, khi, mean);
  sum_part(&t->s, klo, khi, 0, t->s.r, t->op == Z3OP_var ? mean : NULL, total);
  store_results(t, klo, khi - klo, total);
}

/* Tasks lo..hi-1 of (chunk, block). */
static void part_block(void *ctx, int64_t lo, int64_t hi)
{
  const reduce_task *t = ctx;
  for (int64_t i = lo; i < hi; i++) {
    int64_t chunk = i / t->blocks, klo = i % t->blocks * t->block, khi = Z3I_MIN(t->s.k, klo + t->block);
    int64_t rlo = chunk * t->chunk, rhi = Z3I_MIN(t->s.r, rlo + t->chunk);
    sum_part(&t->s, klo, khi, rlo, rhi, t->means == NULL ? NULL : t->means + klo, t->parts + chunk * t->s.k + klo);
  }
}

/* Few outputs over many elements: R is cut into chunks, whose sums are added in order. */
static void reduce_split(reduce_task *t, int64_t chunks)
{
  double parts[MAX_PARTS], total[MAX_PARTS / 2];
  float means[MAX_PARTS / 2];
  int64_t k = t->s.k;
  t->parts = parts;
  t->chunk = (t->s.r + chunks - 1) / chunks;
  t->chunk = (t->chunk + Z3I_BLOCK - 1) / Z3I_BLOCK * Z3I_BLOCK;
  chunks = (t->s.r + t->chunk - 1) / t->chunk;
  for (int pass = t->op == Z3OP_var ? 0 : 1; pass < 2; pass++) {
    z3i_for_blocks(chunks * t->blocks, 1, t->s.r * k, part_block, t);
    for (int64_t j = 0; j < k; j++) {
      total[j] = 0;
      for (int64_t c = 0; c < chunks; c++) total[j] += parts[c * k + j];
      if (pass == 0) means[j] = (float)(total[j] / (double)t->s.r);
    }
    t->means = means;
  }
  for (int64_t lo = 0; lo < k; lo += Z3I_COLUMNS)
    store_results(t, lo, Z3I_MIN(k - lo, (int64_t)Z3I_COLUMNS), total + lo);
}

static void integer_block(void *ctx, int64_t klo, int64_t khi)
{
  const reduce_task *t = ctx;
  uint64_t acc[Z3I_COLUMNS] = { 0 };
  int64_t buf[Z3I_BLOCK], n = khi - klo;
  for (int64_t o = 0; o < n && !t->s.columns; o++) {
    z3i_flat row = z3i_split_row(&t->s, klo + o);
    for (int64_t lo = 0; lo < t->s.r; lo += Z3I_BLOCK) {
      int64_t m = Z3I_MIN(t->s.r - lo, (int64_t)Z3I_BLOCK);
      const int64_t *x = z3i_get_i64(buf, &row, lo, m);
      for (int64_t i = 0; i < m; i++) acc[o] += (uint64_t)x[i];
    }
  }
  for (int64_t i = 0; i < t->s.r && t->s.columns; i++) {
    z3i_flat column = z3i_split_column(&t->s, i);
    const int64_t *x = z3i_get_i64(buf, &column, klo, n);
    for (int64_t j = 0; j < n; j++) acc[j] += (uint64_t)x[j];
  }
  z3i_put_i64(&t->out, klo, n, (const int64_t *)acc);
}

int Z3I_SYM(reduce)(const z3i_call *c)
{
  reduce_task t = { .s = z3i_split_dims(&c->in[0], c->attr->i[0]), .out = z3i_flatten(&c->out[0]), .op = c->op };
  int64_t k = t.s.k, r = t.s.r;
  double correction = c->op == Z3OP_var ? (double)c->attr->i[2] : 0;
  t.denominator = Z3I_MAX((double)r - correction, 0.0);
  t.block = z3i_split_block(&t.s);
  t.blocks = (k + t.block - 1) / t.block;
  if (!z3i_dtype_float(c->out[0].dtype)) {
    z3i_for_blocks(k, t.block, k * r, integer_block, &t);
    return Z3E_OK;
  }
  int64_t chunks = k == 0 ? 0 : Z3I_MIN((int64_t)64, MAX_PARTS / k);
  if (t.blocks < FEW_TASKS && k <= MAX_PARTS / 2 && k * r >= Z3I_PAR_MIN && r > Z3I_BLOCK && chunks > 1)
    reduce_split(&t, chunks);
  else z3i_for_blocks(k, t.block, k * r, whole_block, &t);
  return Z3E_OK;
}

/* ---- backward ------------------------------------------------------------------------------------------- */
static void scaled(float *restrict y, const float *const *in, const z3_attr *attr, int64_t n)
{
  const float *restrict g = in[0];
  const float p = (float)attr->f[0];
  for (int64_t i = 0; i < n; i++) y[i] = g[i] * p;
}

/* The gradient of the result, shown with the input's shape. It may come so already, or with the reduced dims of size 1
 * or gone. */
static z3i_view spread(const z3i_view *g, const z3i_view *in, int64_t mask)
{
  z3i_view v = *g;
  bool keep = g->ndim == in->ndim;
  int next = 0;
  v.ndim = in->ndim;
  for (int d = 0; d < in->ndim; d++) {
    bool reduced = mask == 0 || (mask >> d & 1);
    v.shape[d] = in->shape[d];
    if (keep) v.stride[d] = g->shape[d] == in->shape[d] ? g->stride[d] : 0;
    else v.stride[d] = reduced ? 0 : g->stride[next++];
  }
  return v;
}

/* d var / dx = g 2 (x - mean) / (R - correction) */
static void var_block(void *ctx, int64_t klo, int64_t khi)
{
  const reduce_task *t = ctx;
  float mean[Z3I_COLUMNS], buf[Z3I_BLOCK], y[Z3I_BLOCK], g0;
  means_of(&t->s, klo, khi, mean);
  for (int64_t o = klo; o < khi; o++) {
    z3i_flat row = z3i_split_row(&t->s, o), to = z3i_split_row(&t->gin_split, o);
    const float scale = *z3i_get_f32(&g0, &t->gout, o, 1) * (float)(2.0 / t->denominator), m0 = mean[o - klo];
    for (int64_t lo = 0; lo < t->s.r; lo += Z3I_BLOCK) {
      int64_t m = Z3I_MIN(t->s.r - lo, (int64_t)Z3I_BLOCK);
      const float *x = z3i_get_f32(buf, &row, lo, m);
      for (int64_t i = 0; i < m; i++) y[i] = scale * (x[i] - m0);
      z3i_put_f32(&to, lo, m, y, t->add);
    }
  }
}

int Z3I_SYM(reduce_grad)(const z3i_call *c)
{
  if (c->gin[0].data == NULL) return Z3E_OK;
  int64_t mask = c->attr->i[0];
  bool add = c->gin_add & 1u;
  z3i_split gin = z3i_split_dims(&c->gin[0], mask);
  z3i_view g = spread(&c->gout[0], &c->gin[0], mask);
  if (c->op != Z3OP_var) {
    z3_attr scale = { .f = { c->op == Z3OP_mean ? 1.0 / (double)gin.r : 1.0 } };
    const z3i_view *in[1] = { &g };
    z3i_elem_run(scaled, &scale, &c->gin[0], add, 1, in);
    return Z3E_OK;
  }
  reduce_task t = { .s = z3i_split_dims(&c->in[0], mask), .gin_split = gin, .gout = z3i_split_dims(&g, mask).kept,
                    .op = c->op, .add = add };
  t.denominator = Z3I_MAX((double)t.s.r - (double)c->attr->i[2], 0.0);
  z3i_for_blocks(t.s.k, z3i_split_block(&t.s), t.s.k * t.s.r, var_block, &t);
  return Z3E_OK;
}
