/* linear_ce.c -- cross-entropy of x w^T without ever holding all logits.
 * The vocabulary is cut into blocks: a block of logits is made, read, and made again in backward. Cutting the
 * vocabulary rather than the rows makes each block's weight gradient one finished product, written once. Legend: N =
 * rows, C = width, V = vocabulary, U = rows of w in one block; x (N,C), w (V,C), logits block (N,U). */
#include <math.h>

#include "device/cpu/cpu_kernels.h"
#include "device/cpu/gemm.h"
#include "device/cpu/isa/isa.h"

/* Bound of a block of f32 logits, and the least columns that make a product worth its while. */
enum { BLOCK_ELEMENTS = 8 << 20, COLUMNS_MIN = 256, COLUMNS_UNIT = 64 };

typedef struct work {
  const z3i_call *call;
  int64_t n, c, v, u;
  int dtype;
  float *logits;                                  /* (N,U) */
  void *half;                                     /* the block's gradient in a 16-bit dtype, or NULL */
  float *dx;                                      /* (N,C) f32 sum over the blocks, or NULL */
} work;

static int64_t target_at(const z3i_view *t, int64_t i)
{
  return t->dtype == Z3T_I32 ? ((const int32_t *)t->data)[i] : ((const int64_t *)t->data)[i];
}

/* Every target is checked before anything is written; counts those that are not ignored. */
static int targets_check(const z3i_call *c, int64_t v, int64_t *count)
{
  const z3i_view *t = &c->in[2];
  *count = 0;
  for (int64_t i = 0; i < t->shape[0]; i++) {
    int64_t id = target_at(t, i);
    if (id == c->attr->i[0]) continue;
    Z3I_REQUIRE(id >= 0 && id < v, "linear_cross_entropy: target %" PRId64 " is %" PRId64 ", wants 0 to %" PRId64
                " (or %" PRId64 " to ignore it)", i, id, v - 1, c->attr->i[0]);
    (*count)++;
  }
  return Z3E_OK;
}

static void work_free(work *w)
{
  z3i_pool_free(w->call->dev, w->logits);
  z3i_pool_free(w->call->dev, w->half);
  z3i_pool_free(w->call->dev, w->dx);
}

static int work_new(const z3i_call *c, bool backward, work *w)
{
  *w = (work){
    .call = c, .n = c->in[0].shape[0], .c = c->in[0].shape[1], .v = c->in[1].shape[0], .dtype = c->in[0].dtype
  };
  int64_t fit = BLOCK_ELEMENTS / Z3I_MAX(w->n, 1) / COLUMNS_UNIT * COLUMNS_UNIT;
  w->u = Z3I_MIN(Z3I_MAX(fit, (int64_t)COLUMNS_MIN), Z3I_MAX(w->v, 1));
  size_t elements = (size_t)(w->n * w->u);
  int rc = z3i_scratch(c->dev, elements * sizeof(float), (void **)&w->logits);
  if (rc == Z3E_OK && backward && w->dtype != Z3T_F32) rc = z3i_scratch(c->dev, elements * 2, &w->half);
  if (rc == Z3E_OK && backward && c->gin[0].data != NULL)
    rc = z3i_scratch(c->dev, (size_t)(w->n * w->c) * sizeof(float), (void **)&w->dx);
  if (rc != Z3E_OK) work_free(w);
  return rc;
}

static const char *weight_rows(const work *w, int64_t first)
{
  return (const char *)w->call->in[1].data + first * w->c * z3i_dtype_bytes(w->dtype);
}

static int logits_block(const work *w, int64_t first, int64_t u)
{
  z3i_gemm_args g = { .dev = w->call->dev, .m = w->n, .n = u, .k = w->c, .batch = 1, .a = w->call->in[0].data,
                      .b = weight_rows(w, first), .c = w->logits, .lda = w->c, .ldb = w->c, .ldc = u,
                      .in_dtype = w->dtype, .out_dtype = Z3T_F32, .b_t = true };
  return z3i_gemm(&g);
}

/* log(exp(a) + exp(b)); NaN and +inf come through. */
static double log_add(double a, double b)
{
  double high = a > b || isnan(a) ? a : b, low = high == a ? b : a;
  if (high == -INFINITY || isinf(high) || isnan(high)) return isnan(low) ? low : high;
  return high + log1p(exp(low - high));
}

static void rows_forward(const work *w, int64_t first, int64_t u, double *lse, float *picked)
{
  const z3i_view *t = &w->call->in[2];
#pragma omp parallel for schedule(static) if (w->n * u > 16384)
  for (int64_t i = 0; i < w->n; i++) {
    const float *row = w->logits + i * u;
    lse[i] = log_add(lse[i], (double)z3i_isa()->row_lse(row, u));
    int64_t id = target_at(t, i) - first;
    if (id >= 0 && id < u) picked[i] = row[id];
  }
}

static void result_write(const z3i_call *c, int64_t n, int64_t count, const double *lse, const float *picked)
{
  double sum = 0;
  bool each = c->attr->i[1] == Z3RED_NONE;
  float *loss = c->out[0].data;
  for (int64_t i = 0; i < n; i++) {
    bool counts = target_at(&c->in[2], i) != c->attr->i[0];
    double row = counts ? lse[i] - (double)picked[i] : 0;
    ((float *)c->aux[0].data)[i] = (float)lse[i];
    if (each) loss[i] = (float)row;
    sum += row;
  }
  if (c->attr->i[1] == Z3RED_SUM) *loss = (float)sum;
  if (c->attr->i[1] == Z3RED_MEAN) *loss = count > 0 ? (float)(sum / (double)count) : 0;
  *(int64_t *)c->out[1].data = count;
}

int z3i_cpu_linear_cross_entropy_fwd(const z3i_call *c)
{
  work w;
  int64_t count;
  double *lse = NULL;
  float *picked = NULL;
  Z3I_TRY(targets_check(c, c->in[1].shape[0], &count));
  Z3I_TRY(work_new(c, false, &w));
  int rc = z3i_scratch(c->dev, (size_t)w.n * sizeof *lse, (void **)&lse);
  if (rc == Z3E_OK) rc = z3i_scratch(c->dev, (size_t)w.n * sizeof *picked, (void **)&picked);
  for (int64_t i = 0; rc == Z3E_OK && i < w.n; i++) lse[i] = -INFINITY;
  for (int64_t first = 0; rc == Z3E_OK && first < w.v && w.n > 0; first += w.u) {
    int64_t u = Z3I_MIN(w.u, w.v - first);
    rc = logits_block(&w, first, u);
    if (rc == Z3E_OK) rows_forward(&w, first, u, lse, picked);
  }
  if (rc == Z3E_OK) result_write(c, w.n, count, lse, picked);
  z3i_pool_free(c->dev, lse);
  z3i_pool_free(c->dev, picked);
  work_free(&w);
  return rc;
}

/* Turns the block of logits into the gradient with respect to it; ignored rows become 0. */
static void rows_backward(const work *w, int64_t first, int64_t u, int64_t count)
{
  const z3i_call *c = w->call;
  const z3i_view *t = &c->in[2];
  const float *gout = c->gout[0].data, *lse = c->aux[0].data;
  bool each = c->attr->i[1] == Z3RED_NONE, mean = c->attr->i[1] == Z3RED_MEAN;
#pragma omp parallel for schedule(static) if (w->n * u > 16384)
  for (int64_t i = 0; i < w->n; i++) {
    float *row = w->logits + i * u;
    int64_t id = target_at(t, i);
    float scale = mean ? (float)((double)*gout / (double)count) : each ? gout[i] : *gout;
    bool inside = id >= first && id < first + u;
    if (id == c->attr->i[0]) memset(row, 0, (size_t)u * sizeof *row);
    else z3i_isa()->row_ce_grad(row, u, inside ? id - first : -1, lse[i], scale);
    if (w->half != NULL) z3i_isa()->from_f32((char *)w->half + i * u * 2, w->dtype, row, u);
  }
}

static int products_backward(const work *w, int64_t first, int64_t u)
{
  const z3i_call *c = w->call;
  const void *g = w->half != NULL ? w->half : w->logits;
  if (w->dx != NULL) {
    z3i_gemm_args dx = { .dev = c->dev, .m = w->n, .n = w->c, .k = u, .batch = 1, .a = g, .b = weight_rows(w, first),
                         .c = w->dx, .lda = u, .ldb = w->c, .ldc = w->c, .in_dtype = w->dtype, .out_dtype = Z3T_F32,
                         .add = first > 0 };
    Z3I_TRY(z3i_gemm(&dx));
  }
  if (c->gin[1].data == NULL) return Z3E_OK;
  char *dw = (char *)c->gin[1].data + first * w->c * z3i_dtype_bytes(c->gin[1].dtype);
  z3i_gemm_args wg = { .dev = c->dev, .m = u, .n = w->c, .k = w->n, .batch = 1, .a = g, .b = c->in[0].data, .c = dw,
                       .lda = u, .ldb = w->c, .ldc = w->c, .in_dtype = w->dtype, .out_dtype = c->gin[1].dtype,
                       .a_t = true, .add = (c->gin_add >> 1) & 1u };
  return z3i_gemm(&wg);
}

static int dx_write(const work *w)
{
  const z3i_call *c = w->call;
  if (w->dx == NULL) return Z3E_OK;
  bool add = c->gin_add & 1u;
#pragma omp parallel for schedule(static) if (w->n * w->c > 16384)
  for (int64_t i = 0; i < w->n; i++)
    z3i_store_row((char *)c->gin[0].data + i * w->c * z3i_dtype_bytes(c->gin[0].dtype), c->gin[0].dtype,
                  w->dx + i * w->c, w->c, add);
  return Z3E_OK;
}

int z3i_cpu_linear_cross_entropy_bwd(const z3i_call *c)
{
  work w;
  int64_t count;
  Z3I_TRY(targets_check(c, c->in[1].shape[0], &count));
  Z3I_TRY(work_new(c, true, &w));
  int rc = Z3E_OK;
  if (w.dx != NULL) memset(w.dx, 0, (size_t)(w.n * w.c) * sizeof *w.dx);
  for (int64_t first = 0; rc == Z3E_OK && first < w.v; first += w.u) {
    int64_t u = Z3I_MIN(w.u, w.v - first);
    if (w.n > 0) rc = logits_block(&w, first, u);
    if (rc == Z3E_OK) rows_backward(&w, first, u, count);
    if (rc == Z3E_OK) rc = products_backward(&w, first, u);
  }
  if (rc == Z3E_OK) rc = dx_write(&w);
  work_free(&w);
  return rc;
}
