/* matmul.c -- batched products of views of any strides, and their gradients, through gemm.h.
 * Legend: out (batch.., M, N) = a (batch.., M, K) b (batch.., K, N). Batch dims that are repeated have stride 0. */
#include "device/cpu/cpu_kernels.h"
#include "device/cpu/gemm.h"
#include "device/cpu/isa/isa.h"

/* A stack of matrices as z3i_gemm wants them. packed: the scratch that holds it, or NULL. */
typedef struct stack {
  char *data;
  void *packed;
  int dtype;
  int64_t rows, cols, ld;
  bool t;                                         /* stored with rows and columns exchanged */
  int64_t stride[Z3_MAX_DIMS];                    /* of the batch dims */
} stack;

/* Finds the line distance of a matrix; false when neither dim is contiguous (or lines overlap). */
static bool find_layout(const z3i_view *v, stack *s)
{
  int64_t row_stride = v->stride[v->ndim - 2], col_stride = v->stride[v->ndim - 1];
  s->t = false;
  s->ld = s->rows > 1 ? row_stride : s->cols;
  if ((s->cols <= 1 || col_stride == 1) && s->ld >= s->cols) return true;
  s->t = true;
  s->ld = s->cols > 1 ? col_stride : s->rows;
  return (s->rows <= 1 || row_stride == 1) && s->ld >= s->rows;
}

static int stack_of(z3i_device *dev, const z3i_view *v, stack *s)
{
  int dims = v->ndim - 2;
  *s = (stack){ .data = v->data, .dtype = v->dtype, .rows = v->shape[dims], .cols = v->shape[dims + 1] };
  memcpy(s->stride, v->stride, sizeof s->stride);
  if (find_layout(v, s)) return Z3E_OK;
  /* Repeated batches are packed once. */
  z3i_view from = *v, dense = { .dtype = v->dtype, .ndim = v->ndim };
  int64_t stride = 1;
  for (int i = v->ndim - 1; i >= 0; i--) {
    if (i < dims && v->stride[i] == 0) from.shape[i] = Z3I_MIN(v->shape[i], (int64_t)1);
    dense.shape[i] = from.shape[i];
    dense.stride[i] = stride;
    s->stride[i] = i < dims && v->stride[i] == 0 ? 0 : stride;
    stride *= from.shape[i];
  }
  s->t = false;
  s->ld = s->cols;
  if (stride == 0) return Z3E_OK;
  Z3I_TRY(z3i_scratch(dev, (size_t)(stride * z3i_dtype_bytes(v->dtype)), &s->packed));
  s->data = dense.data = s->packed;
  int rc = z3i_isa()->copy(&dense, &from);
  if (rc == Z3E_OK) return rc;
  z3i_pool_free(dev, s->packed);
  s->packed = NULL;
  return z3i_trace(__FILE__, __LINE__, __func__, rc);
}

static void stack_free(z3i_device *dev, stack *s)
{
  if (s->packed != NULL) z3i_pool_free(dev, s->packed);
}

static stack exchanged(stack s)
{
  int64_t rows = s.rows;
  s.rows = s.cols;
  s.cols = rows;
  s.t = !s.t;
  return s;
}

/* ---- batch dims -------------------------------------------------------------------------------------- */
typedef struct batch {
  int dims;
  int64_t shape[Z3_MAX_DIMS], a[Z3_MAX_DIMS], b[Z3_MAX_DIMS], c[Z3_MAX_DIMS];
} batch;

/* Joins dims that lie one after the other in all three, so that few products remain. */
static void batch_join(const z3i_view *out, const stack *a, const stack *b, const stack *c, batch *t)
{
  t->dims = 0;
  for (int i = 0; i < out->ndim - 2; i++) {
    int64_t n = out->shape[i];
    if (n == 1) continue;
    int last = t->dims - 1;
    bool joins = last >= 0 && t->a[last] == a->stride[i] * n && t->b[last] == b->stride[i] * n;
    if (joins && t->c[last] == c->stride[i] * n) {
      t->shape[last] *= n;
    } else {
      last = t->dims++;
      t->shape[last] = n;
    }
    t->a[last] = a->stride[i];
    t->b[last] = b->stride[i];
    t->c[last] = c->stride[i];
  }
}

/* c (+)= a b over all batch dims of out's view. */
static int products(const z3i_call *call, const z3i_view *out, const stack *a, const stack *b, const stack *c, bool add)
{
  batch t;
  batch_join(out, a, b, c, &t);
  z3i_gemm_args g = { .dev = call->dev, .m = a->rows, .n = b->cols, .k = a->cols, .batch = 1, .lda = a->ld,
                      .ldb = b->ld, .ldc = c->ld, .a_t = a->t, .b_t = b->t, .in_dtype = a->dtype,
                      .out_dtype = c->dtype, .add = add };
  int last = t.dims - 1;
  /* A dim that repeats both a and b (an outer one doesn't) isn't a batch: the library has no description of it. */
  if (last >= 0 && (t.a[last] != 0 || t.b[last] != 0)) {
    t.dims = last;
    g.batch = t.shape[last];
    g.a_batch_stride = t.a[last];
    g.b_batch_stride = t.b[last];
    g.c_batch_stride = t.c[last];
    /* One b for all: the rows of all batches are rows of one product. */
    if (g.b_batch_stride == 0 && !g.a_t && g.a_batch_stride == g.m * g.lda && g.c_batch_stride == g.m * g.ldc) {
      g.m *= g.batch;
      g.batch = 1;
    }
  }
  int64_t count = 1, index[Z3_MAX_DIMS] = { 0 };
  for (int i = 0; i < t.dims; i++) count *= t.shape[i];
  for (int64_t r = 0; r < count; r++) {
    int64_t at_a = 0, at_b = 0, at_c = 0;
    for (int i = 0; i < t.dims; i++) {
      at_a += index[i] * t.a[i];
      at_b += index[i] * t.b[i];
      at_c += index[i] * t.c[i];
    }
    g.a = a->data + at_a * z3i_dtype_bytes(a->dtype);
    g.b = b->data + at_b * z3i_dtype_bytes(b->dtype);
    g.c = c->data + at_c * z3i_dtype_bytes(c->dtype);
    Z3I_TRY(z3i_gemm(&g));
    for (int i = t.dims - 1; i >= 0 && ++index[i] == t.shape[i]; i--) index[i] = 0;
  }
  return Z3E_OK;
}

int z3i_cpu_matmul_fwd(const z3i_call *c)
{
  stack a = { 0 }, b = { 0 }, out = { 0 };
  Z3I_TRY(stack_of(c->dev, &c->out[0], &out));
  Z3I_ASSERT(out.packed == NULL && !out.t);
  int rc = stack_of(c->dev, &c->in[0], &a);
  if (rc == Z3E_OK) rc = stack_of(c->dev, &c->in[1], &b);
  if (rc == Z3E_OK) rc = products(c, &c->out[0], &a, &b, &out, false);
  stack_free(c->dev, &a);
  stack_free(c->dev, &b);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

/* da = dout b^T and db = a^T dout, each with all batch dims of out (ops/ sums where an input was repeated). */
int z3i_cpu_matmul_bwd(const z3i_call *c)
{
  stack dout = { 0 };
  int rc = stack_of(c->dev, &c->gout[0], &dout);
  for (int i = 0; i < 2 && rc == Z3E_OK; i++) {
    if (c->gin[i].data == NULL) continue;
    stack other = { 0 }, grad = { 0 };
    bool add = (c->gin_add >> i) & 1u;
    rc = stack_of(c->dev, &c->gin[i], &grad);
    Z3I_ASSERT(rc != Z3E_OK || (grad.packed == NULL && !grad.t));
    if (rc == Z3E_OK) rc = stack_of(c->dev, &c->in[1 - i], &other);
    stack turned = exchanged(other);
    if (rc == Z3E_OK) rc = i == 0 ? products(c, &c->gout[0], &dout, &turned, &grad, add)
                                  : products(c, &c->gout[0], &turned, &dout, &grad, add);
    stack_free(c->dev, &other);
  }
  stack_free(c->dev, &dout);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}
