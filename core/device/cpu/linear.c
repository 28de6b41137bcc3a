/* linear.c -- y = x w^T + bias and its gradients, through gemm.h.
 * Legend: M = rows of x (all dims but the last), K = inputs, N = outputs; w is (N,K), or (K,N) in layout 1. */
#include "device/cpu/cpu_kernels.h"
#include "device/cpu/gemm.h"
#include "device/cpu/isa/isa.h"

/* A matrix in memory; packed: the scratch that holds it, or NULL. */
typedef struct matrix {
  const void *data;
  void *packed;
  int64_t rows, cols, ld;
} matrix;

/* v as rows of its last dim. Views whose rows don't lie at one distance, or whose last dim isn't contiguous, are
 * copied. */
static int matrix_of(z3i_device *dev, const z3i_view *v, matrix *out)
{
  int last = v->ndim - 1, inner = -1;
  bool regular = v->shape[last] <= 1 || v->stride[last] == 1;
  *out = (matrix){ .data = v->data, .rows = 1, .cols = v->shape[last] };
  int64_t next = 0;                               /* the stride that the next dim outwards must have */
  for (int i = last - 1; i >= 0; i--) {
    out->rows *= v->shape[i];
    if (v->shape[i] == 1) continue;
    if (inner < 0) inner = i;
    else if (v->stride[i] != next) regular = false;
    next = v->stride[i] * v->shape[i];
  }
  out->ld = inner < 0 ? out->cols : v->stride[inner];
  if (regular && (inner < 0 || out->ld >= out->cols)) return Z3E_OK;
  z3i_view dense = { .dtype = v->dtype, .ndim = v->ndim };
  int64_t stride = 1;
  for (int i = last; i >= 0; i--) {
    dense.shape[i] = v->shape[i];
    dense.stride[i] = stride;
    stride *= v->shape[i];
  }
  out->ld = out->cols;
  if (stride == 0) return Z3E_OK;
  Z3I_TRY(z3i_scratch(dev, (size_t)(stride * z3i_dtype_bytes(v->dtype)), &out->packed));
  dense.data = out->packed;
  out->data = out->packed;
  int rc = z3i_isa()->copy(&dense, v);
  if (rc == Z3E_OK) return rc;
  z3i_pool_free(dev, out->packed);
  out->packed = NULL;
  return z3i_trace(__FILE__, __LINE__, __func__, rc);
}

static void matrix_free(z3i_device *dev, matrix *m)
{
  if (m->packed != NULL) z3i_pool_free(dev, m->packed);
}

int z3i_cpu_linear_fwd(const z3i_call *c)
{
  bool by_inputs = c->attr->i[0] != 0;            /* w is (K,N) */
  matrix x = { 0 }, w = { 0 };
  int rc = matrix_of(c->dev, &c->in[0], &x);
  if (rc == Z3E_OK) rc = matrix_of(c->dev, &c->in[1], &w);
  if (rc == Z3E_OK) {
    int64_t n = by_inputs ? w.cols : w.rows;
    z3i_gemm_args g = { .dev = c->dev, .m = x.rows, .n = n, .k = x.cols, .batch = 1, .a = x.data, .b = w.data,
                        .c = c->out[0].data, .bias = c->in[2].data, .lda = x.ld, .ldb = w.ld, .ldc = n,
                        .in_dtype = c->in[0].dtype,
                        .out_dtype = c->out[0].dtype, .b_t = !by_inputs };
    rc = z3i_gemm(&g);
  }
  matrix_free(c->dev, &x);
  matrix_free(c->dev, &w);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

/* ---- gradients -------------------------------------------------------------------------------------- */
/* Sums COLS columns of dy: groups of rows first, then the groups, always in this order. */
enum { COLS = 128, GROUP = 128, PAR_MIN = 32768 };

static void sum_columns(const matrix *dy, int dtype, int64_t j, int64_t cols, const z3i_view *db, bool add)
{
  float total[COLS] = { 0 }, group[COLS], row[COLS] = { 0 };
  const z3i_isa_table *isa = z3i_isa();
  for (int64_t i0 = 0; i0 < dy->rows; i0 += GROUP) {
    memset(group, 0, sizeof group);
    for (int64_t i = i0; i < Z3I_MIN(i0 + GROUP, dy->rows); i++) {
      isa->to_f32(row, (const char *)dy->data + (i * dy->ld + j) * z3i_dtype_bytes(dtype), dtype, cols);
      for (int k = 0; k < COLS; k++) group[k] += row[k];
    }
    for (int k = 0; k < COLS; k++) total[k] += group[k];
  }
  z3i_store_row((char *)db->data + j * z3i_dtype_bytes(db->dtype), db->dtype, total, cols, add);
}

static void bias_grad(const z3i_call *c, const matrix *dy)
{
  bool add = c->gin_add & 4u;
#pragma omp parallel for schedule(static) if (dy->rows * dy->cols >= PAR_MIN)
  for (int64_t j = 0; j < dy->cols; j += COLS)
    sum_columns(dy, c->gout[0].dtype, j, Z3I_MIN(dy->cols - j, (int64_t)COLS), &c->gin[2], add);
}

/* gin[i] (m,n) = A B, with what the arguments leave open filled in. */
static int grad_product(const z3i_call *c, int i, z3i_gemm_args g)
{
  if (c->gin[i].data == NULL) return Z3E_OK;
  g.dev = c->dev;
  g.batch = 1;
  g.c = c->gin[i].data;
  g.ldc = g.n;
  g.in_dtype = c->gout[0].dtype;
  g.out_dtype = c->gin[i].dtype;
  g.add = (c->gin_add >> i) & 1u;
  return z3i_gemm(&g);
}

int z3i_cpu_linear_bwd(const z3i_call *c)
{
  bool by_inputs = c->attr->i[0] != 0;
  matrix x = { 0 }, w = { 0 }, dy = { 0 };
  int rc = matrix_of(c->dev, &c->gout[0], &dy);
  if (rc == Z3E_OK && c->gin[0].data != NULL && (rc = matrix_of(c->dev, &c->in[1], &w)) == Z3E_OK)
    rc = grad_product(c, 0, (z3i_gemm_args){ .m = dy.rows, .n = by_inputs ? w.rows : w.cols, .k = dy.cols, .a = dy.data,
                                             .lda = dy.ld, .b = w.data, .ldb = w.ld, .b_t = by_inputs });
  if (rc == Z3E_OK && c->gin[1].data != NULL && (rc = matrix_of(c->dev, &c->in[0], &x)) == Z3E_OK) {
    const matrix *a = by_inputs ? &x : &dy, *b = by_inputs ? &dy : &x;
    rc = grad_product(c, 1, (z3i_gemm_args){ .m = a->cols, .n = b->cols, .k = dy.rows, .a = a->data, .lda = a->ld,
                                             .a_t = true, .b = b->data, .ldb = b->ld });
  }
  if (rc == Z3E_OK && c->gin[2].data != NULL) bias_grad(c, &dy);
  matrix_free(c->dev, &x);
  matrix_free(c->dev, &w);
  matrix_free(c->dev, &dy);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}
