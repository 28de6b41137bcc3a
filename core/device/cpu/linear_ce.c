/* linear_ce.c -- cross-entropy of x w^T without ever holding all logits.
 * The logits are made by blocks of rows and vocabulary, read, and made again in backward. The vocabulary is the outer
 * loop: a block of weights is read once for all rows, and its gradient is finished, and written, once.
 * Legend: N = rows, C = width, V = vocabulary; x (N,C), w (V,C); a block is R rows by U logits. */
#include <math.h>

#include "device/cpu/cpu_kernels.h"
#include "device/cpu/gemm.h"
#include "device/cpu/isa/isa.h"

/* A block's f32 logits take at most 32 MiB; its sizes depend on the shapes alone. */
enum { BLOCK_ELEMENTS = 8 << 20, ROWS_MAX = 4096, COLUMNS_UNIT = 64, PAR_MIN = 16384 };

/* A log-sum-exp beyond this is rounded in f32 by more than 4e-6. Then differences to it are taken first (row_ce_grad,
 * which sees a part of the row, must not renormalise it either). */
#define COARSE 64.0f
/* Beyond this, backward doesn't make do with the saved f32. */
#define COARSE_SAVED 128.0f

typedef struct work {
  const z3i_call *call;
  int64_t n, c, v, r, u;
  int dtype;
  float *logits;                                  /* (R,U) */
  void *half;                                     /* the block's gradient in a 16-bit dtype, or NULL */
  float *dx, *dw;                                 /* (N,C), (U,C): sums over blocks that gin can't hold, or NULL */
  double *lse;                                    /* (N) */
  float *picked;                                  /* (N) each row's logit of its target */
} work;

typedef struct block {
  int64_t row, rows, first, cols;                 /* first: of the vocabulary */
} block;

static int64_t target_at(const z3i_call *c, int64_t i)
{
  const z3i_view *t = &c->in[2];
  return t->dtype == Z3T_I32 ? ((const int32_t *)t->data)[i] : ((const int64_t *)t->data)[i];
}
static bool ignored(const z3i_call *c, int64_t i) { return target_at(c, i) == c->attr->i[0]; }

/* Every target is checked before anything is written; counts those that are not ignored. */
static int targets_check(const z3i_call *c, int64_t *count)
{
  int64_t v = c->in[1].shape[0];
  *count = 0;
  for (int64_t i = 0; i < c->in[2].shape[0]; i++) {
    if (ignored(c, i)) continue;
    int64_t id = target_at(c, i);
    if (id < 0 || id >= v)
      return Z3I_FAIL(Z3E_ARG, "linear_cross_entropy: target at [%" PRId64 "] is %" PRId64 ", wants 0 to %" PRId64
                      " or %" PRId64 " (ignored): there are %" PRId64 " classes", i, id, v - 1, c->attr->i[0], v);
    (*count)++;
  }
  return Z3E_OK;
}

/* ---- scratch ----------------------------------------------------------------------------------------- */
static void work_free(work *w)
{
  z3i_device *dev = w->call->dev;
  z3i_pool_free(dev, w->logits);
  z3i_pool_free(dev, w->half);
  z3i_pool_free(dev, w->dx);
  z3i_pool_free(dev, w->dw);
  z3i_pool_free(dev, w->lse);
  z3i_pool_free(dev, w->picked);
}

static bool adds(const z3i_call *c, int i) { return (c->gin_add >> i) & 1u; }
/* Whether sums over several blocks can be taken in the gradient itself. */
static bool sums_in_place(const z3i_call *c, int i) { return c->gin[i].dtype == Z3T_F32 && !adds(c, i); }

static int grad_scratch(work *w)
{
  const z3i_call *c = w->call;
  if (w->dtype != Z3T_F32) Z3I_TRY(z3i_scratch(c->dev, (size_t)(w->r * w->u) * 2, &w->half));
  if (c->gin[0].data != NULL && w->u < w->v && !sums_in_place(c, 0))
    Z3I_TRY(z3i_scratch(c->dev, (size_t)(w->n * w->c) * sizeof(float), (void **)&w->dx));
  if (c->gin[1].data != NULL && w->r < w->n && !sums_in_place(c, 1))
    Z3I_TRY(z3i_scratch(c->dev, (size_t)(w->u * w->c) * sizeof(float), (void **)&w->dw));
  return Z3E_OK;
}

static int work_new(const z3i_call *c, bool backward, work *w)
{
  *w = (work){ .call = c, .n = c->in[0].shape[0], .c = c->in[0].shape[1], .v = c->in[1].shape[0],
               .dtype = c->in[0].dtype };
  w->r = Z3I_MIN(w->n, (int64_t)ROWS_MAX);
  int64_t most = BLOCK_ELEMENTS / Z3I_MAX(w->r, (int64_t)1), blocks = Z3I_MAX((w->v + most - 1) / most, (int64_t)1);
  int64_t even = (w->v + blocks - 1) / blocks;     /* no small block at the end */
  w->u = Z3I_MIN((even + COLUMNS_UNIT - 1) / COLUMNS_UNIT * COLUMNS_UNIT, w->v);
  int rc = z3i_scratch(c->dev, (size_t)(w->r * w->u) * sizeof(float), (void **)&w->logits);
  if (rc == Z3E_OK) rc = z3i_scratch(c->dev, (size_t)w->n * sizeof *w->lse, (void **)&w->lse);
  if (rc == Z3E_OK) rc = z3i_scratch(c->dev, (size_t)w->n * sizeof *w->picked, (void **)&w->picked);
  if (rc == Z3E_OK && backward) rc = grad_scratch(w);
  if (rc != Z3E_OK) work_free(w);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

static int dry(const z3i_call *c, bool backward)
{
  work w;
  Z3I_TRY(work_new(c, backward, &w));
  work_free(&w);
  return Z3E_OK;
}
int z3i_cpu_linear_cross_entropy_dry_fwd(const z3i_call *c) { return dry(c, false); }
int z3i_cpu_linear_cross_entropy_dry_bwd(const z3i_call *c) { return dry(c, true); }

/* ---- blocks ------------------------------------------------------------------------------------------ */
/* The next block: rows within a part of the vocabulary first. Starts from a zeroed one; false: that was the last. */
static bool block_next(const work *w, block *b)
{
  if (w->n == 0 || w->v == 0) return false;
  if (b->rows > 0) b->row += b->rows;
  if (b->row >= w->n) {
    b->row = 0;
    b->first += b->cols;
  }
  if (b->first >= w->v) return false;
  b->rows = Z3I_MIN(w->r, w->n - b->row);
  b->cols = Z3I_MIN(w->u, w->v - b->first);
  return true;
}

static const char *x_rows(const work *w, const block *b)
{
  return (const char *)w->call->in[0].data + b->row * w->c * z3i_dtype_bytes(w->dtype);
}
static const char *w_rows(const work *w, const block *b)
{
  return (const char *)w->call->in[1].data + b->first * w->c * z3i_dtype_bytes(w->dtype);
}

static int logits_block(const work *w, const block *b)
{
  z3i_gemm_args g = { .dev = w->call->dev, .m = b->rows, .n = b->cols, .k = w->c, .batch = 1, .a = x_rows(w, b),
                      .b = w_rows(w, b), .c = w->logits, .lda = w->c, .ldb = w->c, .ldc = b->cols, .in_dtype = w->dtype,
                      .out_dtype = Z3T_F32, .b_t = true };
  return z3i_gemm(&g);
}

/* log(exp(a) + exp(b)); NaN and +inf come through. */
static double log_add(double a, double b)
{
  double high = a > b || isnan(a) ? a : b, low = a > b || isnan(a) ? b : a;
  if (isinf(high) || isnan(high)) return isnan(low) ? low : high;
  return high + log1p(exp(low - high));
}

/* Log-sum-exp of a row to more than f32's places: what is coarse goes to the logits, whose differences to it are exact
 * enough. Changes the row. */
static double row_lse(float *row, int64_t n)
{
  float rough = z3i_isa()->row_lse(row, n);
  if (!(fabsf(rough) > COARSE) || isinf(rough)) return (double)rough;
  for (int64_t j = 0; j < n; j++) row[j] -= rough;
  return (double)rough + (double)z3i_isa()->row_lse(row, n);
}

/* Fills lse and picked. */
static int scan(work *w)
{
  block b = { 0 };
  for (int64_t i = 0; i < w->n; i++) {
    w->lse[i] = -INFINITY;
    w->picked[i] = 0;
  }
  while (block_next(w, &b)) {
    Z3I_TRY(logits_block(w, &b));
#pragma omp parallel for schedule(static) if (b.rows * b.cols > PAR_MIN)
    for (int64_t i = b.row; i < b.row + b.rows; i++) {
      if (ignored(w->call, i)) continue;
      float *row = w->logits + (i - b.row) * b.cols;
      int64_t id = target_at(w->call, i) - b.first;
      if (id >= 0 && id < b.cols) w->picked[i] = row[id];
      w->lse[i] = log_add(w->lse[i], row_lse(row, b.cols));
    }
  }
  return Z3E_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------- */
static void result_write(const work *w, int64_t count)
{
  const z3i_call *c = w->call;
  const int64_t reduction = c->attr->i[1];
  float *loss = c->out[0].data, *lse = c->aux[0].data;
  double sum = 0;
  for (int64_t i = 0; i < w->n; i++) {
    bool counts = !ignored(c, i);
    double row = counts ? w->lse[i] - (double)w->picked[i] : 0;
    lse[i] = counts ? (float)w->lse[i] : 0;
    if (reduction == Z3RED_NONE) loss[i] = (float)row;
    sum += row;
  }
  if (reduction == Z3RED_SUM) *loss = (float)sum;
  if (reduction == Z3RED_MEAN) *loss = count > 0 ? (float)(sum / (double)count) : 0;
  *(int64_t *)c->out[1].data = count;
}

int z3i_cpu_linear_cross_entropy_fwd(const z3i_call *c)
{
  work w;
  int64_t count;
  Z3I_TRY(targets_check(c, &count));
  Z3I_TRY(work_new(c, false, &w));
  int rc = scan(&w);
  if (rc == Z3E_OK) result_write(&w, count);
  work_free(&w);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

/* ---- backward ---------------------------------------------------------------------------------------- */
/* The saved log-sum-exps as doubles. Where one is coarse, all are computed again: a third pass, but rare. */
static int restore_lse(work *w)
{
  const float *saved = w->call->aux[0].data;
  bool coarse = false;
  for (int64_t i = 0; i < w->n; i++) {
    w->lse[i] = (double)saved[i];
    coarse |= fabsf(saved[i]) > COARSE_SAVED && !ignored(w->call, i);
  }
  return coarse ? scan(w) : Z3E_OK;
}

static float scale_of(const z3i_call *c, int64_t i, int64_t count)
{
  const float *gout = c->gout[0].data;
  if (c->attr->i[1] == Z3RED_NONE) return gout[i];
  return c->attr->i[1] == Z3RED_MEAN ? (float)((double)*gout / (double)count) : *gout;
}

/* Turns the block of logits into the gradient with respect to it; ignored rows become 0. */
static void rows_backward(const work *w, const block *b, int64_t count)
{
  const z3i_call *c = w->call;
  const z3i_isa_table *isa = z3i_isa();
#pragma omp parallel for schedule(static) if (b->rows * b->cols > PAR_MIN)
  for (int64_t i = b->row; i < b->row + b->rows; i++) {
    float *row = w->logits + (i - b->row) * b->cols, lse = (float)w->lse[i];
    int64_t id = target_at(c, i) - b->first;
    if (ignored(c, i)) memset(row, 0, (size_t)b->cols * sizeof *row);
    else {
      if (fabsf(lse) > COARSE) {
        for (int64_t j = 0; j < b->cols; j++) row[j] -= lse;
        lse = (float)(w->lse[i] - (double)lse);
      }
      isa->row_ce_grad(row, b->cols, id >= 0 && id < b->cols ? id : -1, lse, scale_of(c, i, count));
    }
    if (w->half != NULL) isa->from_f32((char *)w->half + (i - b->row) * b->cols * 2, w->dtype, row, b->cols);
  }
}

/* dst (rows,C) of dtype = or += src. */
static void rows_store(const work *w, void *dst, int dtype, const float *src, int64_t rows, bool add)
{
#pragma omp parallel for schedule(static) if (rows * w->c > PAR_MIN)
  for (int64_t i = 0; i < rows; i++)
    z3i_store_row((char *)dst + i * w->c * z3i_dtype_bytes(dtype), dtype, src + i * w->c, w->c, add);
}

/* dx of the block's rows gets another part of its sum over the vocabulary. */
static int dx_block(const work *w, const block *b, const void *g)
{
  const z3i_view *gin = &w->call->gin[0];
  if (gin->data == NULL) return Z3E_OK;
  bool whole = w->u >= w->v, own = w->dx == NULL;  /* whole: the only part */
  z3i_gemm_args p = { .dev = w->call->dev, .m = b->rows, .n = w->c, .k = b->cols, .batch = 1, .a = g, .b = w_rows(w, b),
                      .lda = b->cols, .ldb = w->c, .ldc = w->c, .in_dtype = w->dtype };
  p.out_dtype = own ? gin->dtype : Z3T_F32;
  p.c = own ? (char *)gin->data + b->row * w->c * z3i_dtype_bytes(gin->dtype) : (char *)(w->dx + b->row * w->c);
  p.add = whole ? adds(w->call, 0) : b->first > 0;
  Z3I_TRY(z3i_gemm(&p));
  if (!own && b->first + b->cols == w->v) {
    char *dst = (char *)gin->data + b->row * w->c * z3i_dtype_bytes(gin->dtype);
    rows_store(w, dst, gin->dtype, w->dx + b->row * w->c, b->rows, adds(w->call, 0));
  }
  return Z3E_OK;
}

/* dw of the block's part of the vocabulary gets another part of its sum over the rows. */
static int dw_block(const work *w, const block *b, const void *g)
{
  const z3i_view *gin = &w->call->gin[1];
  if (gin->data == NULL) return Z3E_OK;
  bool whole = w->r >= w->n, own = w->dw == NULL;
  char *dst = (char *)gin->data + b->first * w->c * z3i_dtype_bytes(gin->dtype);
  z3i_gemm_args p = { .dev = w->call->dev, .m = b->cols, .n = w->c, .k = b->rows, .batch = 1, .a = g, .b = x_rows(w, b),
                      .c = own ? dst : (char *)w->dw, .lda = b->cols, .ldb = w->c, .ldc = w->c, .in_dtype = w->dtype,
                      .out_dtype = own ? gin->dtype : Z3T_F32, .a_t = true };
  p.add = whole ? adds(w->call, 1) : b->row > 0;
  Z3I_TRY(z3i_gemm(&p));
  if (!own && b->row + b->rows == w->n) rows_store(w, dst, gin->dtype, w->dw, b->cols, adds(w->call, 1));
  return Z3E_OK;
}

/* With no rows, or no vocabulary, nothing is summed: what isn't added to becomes 0. */
static void grads_clear(const work *w)
{
  for (int i = 0; i < 2; i++) {
    const z3i_view *g = &w->call->gin[i];
    size_t bytes = (size_t)(z3i_view_numel(g) * z3i_dtype_bytes(g->dtype));
    if (g->data != NULL && !adds(w->call, i)) memset(g->data, 0, bytes);
  }
}

int z3i_cpu_linear_cross_entropy_bwd(const z3i_call *c)
{
  work w;
  int64_t count;
  Z3I_TRY(targets_check(c, &count));
  Z3I_TRY(work_new(c, true, &w));
  int rc = restore_lse(&w);
  if (w.n == 0 || w.v == 0) grads_clear(&w);
  block b = { 0 };
  while (rc == Z3E_OK && block_next(&w, &b)) {
    rc = logits_block(&w, &b);
    if (rc != Z3E_OK) break;
    rows_backward(&w, &b, count);
    const void *g = w.half != NULL ? w.half : (const void *)w.logits;
    rc = dx_block(&w, &b, g);
    if (rc == Z3E_OK) rc = dw_block(&w, &b, g);
  }
  work_free(&w);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}
