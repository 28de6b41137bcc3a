/* rules_model.c -- shape and dtype rules of products and of the operations that models are made of. */
#include "ops/op.h"

#define RULE(name) int z3i_rule_##name(z3i_run *r); int z3i_rule_##name(z3i_run *r)

static int misfit(z3i_run *r, int i, const char *wants)
{
  char text[Z3I_SHAPE_TEXT];
  return Z3I_FAIL(Z3E_SHAPE, "%s: %s is %s, wants %s", z3_op_name(r->op), z3i_input_name(r->op, i),
                  z3i_shape_text(r->in[i]->ndim, r->in[i]->shape, text), wants);
}

static int misfit_with(z3i_run *r, int i, int j)
{
  char a[Z3I_SHAPE_TEXT], b[Z3I_SHAPE_TEXT];
  return Z3I_FAIL(Z3E_SHAPE, "%s: %s %s does not fit %s %s", z3_op_name(r->op), z3i_input_name(r->op, i),
                  z3i_shape_text(r->in[i]->ndim, r->in[i]->shape, a), z3i_input_name(r->op, j),
                  z3i_shape_text(r->in[j]->ndim, r->in[j]->shape, b));
}

static int want_float(z3i_run *r, int i)
{
  if (z3i_dtype_float(r->in[i]->dtype)) return Z3E_OK;
  return Z3I_FAIL(Z3E_DTYPE, "%s: %s is %s, wants a floating type", z3_op_name(r->op), z3i_input_name(r->op, i),
                  z3_dtype_name(r->in[i]->dtype));
}

/* Products and attention never convert by themselves: a hidden cast costs more than it helps. */
static int same_dtype(z3i_run *r, int i, int j)
{
  Z3I_TRY(want_float(r, i));
  if (r->in[i]->dtype == r->in[j]->dtype) return Z3E_OK;
  return Z3I_FAIL(Z3E_DTYPE, "%s: %s is %s and %s is %s: convert one with :to", z3_op_name(r->op),
                  z3i_input_name(r->op, i), z3_dtype_name(r->in[i]->dtype), z3i_input_name(r->op, j),
                  z3_dtype_name(r->in[j]->dtype));
}

static int replace_contiguous(z3i_run *r, int i)
{
  z3_tensor *copy;
  Z3I_TRY(z3i_tensor_contiguous(r->in[i], &copy));
  z3_tensor_release(r->in[i]);
  r->in[i] = copy;
  return Z3E_OK;
}

static bool last_contiguous(const z3_tensor *t)
{
  return t->ndim > 0 && (t->stride[t->ndim - 1] == 1 || t->shape[t->ndim - 1] <= 1);
}

RULE(matmul)
{
  const z3_tensor *a = r->in[0], *b = r->in[1];
  Z3I_TRY(same_dtype(r, 0, 1));
  if (a->ndim < 2) return misfit(r, 0, "at least 2 dims");
  if (b->ndim < 2) return misfit(r, 1, "at least 2 dims");
  if (a->shape[a->ndim - 1] != b->shape[b->ndim - 2]) return misfit_with(r, 0, 1);
  int ndim = a->ndim - 2;
  int64_t shape[Z3_MAX_DIMS];
  memcpy(shape, a->shape, sizeof shape);
  if (!z3i_broadcast(&ndim, shape, b->ndim - 2, b->shape)) return misfit_with(r, 0, 1);
  shape[ndim] = a->shape[a->ndim - 2];
  shape[ndim + 1] = b->shape[b->ndim - 1];
  return z3i_run_out(r, 0, a->dtype, ndim + 2, shape);
}

/* Rows of x must lie at one distance, so that x is a matrix for the product. */
static bool rows_regular(const z3_tensor *x)
{
  if (!last_contiguous(x)) return false;
  for (int i = x->ndim - 2; i > 0; i--)
    if (x->shape[i - 1] > 1 && x->stride[i - 1] != x->stride[i] * x->shape[i]) return false;
  return true;
}

RULE(linear)
{
  const z3_tensor *x = r->in[0], *w = r->in[1], *bias = r->n_in > 2 ? r->in[2] : NULL;
  int k_dim = r->attr.i[0] ? 0 : 1;
  Z3I_TRY(same_dtype(r, 0, 1));
  if (x->ndim < 1) return misfit(r, 0, "at least one dim");
  if (w->ndim != 2) return misfit(r, 1, "2 dims");
  if (x->shape[x->ndim - 1] != w->shape[k_dim]) return misfit_with(r, 0, 1);
  if (bias != NULL) {
    Z3I_TRY(same_dtype(r, 2, 1));
    if (bias->ndim != 1 || bias->shape[0] != w->shape[1 - k_dim]) return misfit_with(r, 2, 1);
    Z3I_TRY(replace_contiguous(r, 2));
  }
  if (!rows_regular(x)) Z3I_TRY(replace_contiguous(r, 0));
  if (!last_contiguous(w)) Z3I_TRY(replace_contiguous(r, 1));
  int64_t shape[Z3_MAX_DIMS];
  memcpy(shape, x->shape, sizeof shape);
  shape[x->ndim - 1] = w->shape[1 - k_dim];
  return z3i_run_out(r, 0, x->dtype, x->ndim, shape);
}

RULE(softmax)
{
  Z3I_TRY(want_float(r, 0));
  if (r->in[0]->ndim < 1) return misfit(r, 0, "at least one dim");
  return z3i_run_out(r, 0, r->in[0]->dtype, r->in[0]->ndim, r->in[0]->shape);
}

/* x (..,C) with weight and bias (C) or none. Weights may be f32 beside 16-bit data. */
static int norm(z3i_run *r, int n_aux)
{
  const z3_tensor *x = r->in[0];
  Z3I_TRY(want_float(r, 0));
  if (x->ndim < 1) return misfit(r, 0, "at least one dim");
  Z3I_REQUIRE(r->attr.f[0] >= 0, "%s: eps is %g, wants >= 0", z3_op_name(r->op), r->attr.f[0]);
  for (int i = 1; i < r->n_in; i++) {
    if (r->in[i] == NULL) continue;
    Z3I_TRY(want_float(r, i));
    if (r->in[i]->ndim != 1 || r->in[i]->shape[0] != x->shape[x->ndim - 1]) return misfit_with(r, i, 0);
  }
  Z3I_TRY(z3i_run_out(r, 0, x->dtype, x->ndim, x->shape));
  for (int j = 0; j < n_aux; j++) Z3I_TRY(z3i_run_aux(r, j, Z3T_F32, x->ndim - 1, x->shape));
  return Z3E_OK;
}
RULE(layer_norm) { return norm(r, 2); }
RULE(rms_norm) { return norm(r, 1); }

RULE(rope)
{
  const z3_tensor *x = r->in[0], *table = r->in[1], *positions = r->n_in > 2 ? r->in[2] : NULL;
  Z3I_TRY(want_float(r, 0));
  if (x->ndim != 4 || x->shape[3] % 2 != 0) return misfit(r, 0, "(B,H,T,D) with D even");
  if (table->dtype != Z3T_F32 || table->ndim != 2 || table->shape[1] != x->shape[3]) return misfit_with(r, 1, 0);
  Z3I_TRY(replace_contiguous(r, 1));
  if (positions != NULL) {
    if (positions->dtype != Z3T_I32)
      return Z3I_FAIL(Z3E_DTYPE, "rope: positions is %s, wants i32", z3_dtype_name(positions->dtype));
    if (positions->ndim != 2 || positions->shape[0] != x->shape[0] || positions->shape[1] != x->shape[2])
      return misfit_with(r, 2, 0);
    Z3I_TRY(replace_contiguous(r, 2));
  } else {
    int64_t first = r->attr.i[0], last = first + x->shape[2];
    Z3I_REQUIRE(first >= 0 && last <= table->shape[0],
                "rope: positions %" PRId64 " to %" PRId64 ", the table has %" PRId64, first, last - 1, table->shape[0]);
  }
  if (!last_contiguous(r->in[0])) Z3I_TRY(replace_contiguous(r, 0));
  return z3i_heads_alloc(r->dev, x->dtype, r->in[0]->shape, &r->out[0]);
}

RULE(attention)
{
  const z3_tensor *q = r->in[0], *k = r->in[1], *v = r->in[2], *mask = r->n_in > 3 ? r->in[3] : NULL;
  Z3I_TRY(same_dtype(r, 0, 1));
  Z3I_TRY(same_dtype(r, 0, 2));
  for (int i = 0; i < 3; i++)
    if (r->in[i]->ndim != 4) return misfit(r, i, "(B,H,T,D)");
  if (memcmp(k->shape, v->shape, 3 * sizeof *k->shape) != 0 || k->shape[3] != v->shape[3]) return misfit_with(r, 1, 2);
  bool fits = q->shape[0] == k->shape[0] && q->shape[3] == k->shape[3];
  if (!fits || (k->shape[1] == 0 ? q->shape[1] != 0 : q->shape[1] % k->shape[1] != 0)) return misfit_with(r, 0, 1);
  if (mask != NULL) {
    if (mask->dtype != Z3T_U8)
      return Z3I_FAIL(Z3E_DTYPE, "attention: mask is %s, wants u8 (1 = visible)", z3_dtype_name(mask->dtype));
    int ndim = 4;
    int64_t full[Z3_MAX_DIMS] = { q->shape[0], q->shape[1], q->shape[2], k->shape[2] }, shape[Z3_MAX_DIMS];
    memcpy(shape, full, sizeof shape);
    if (mask->ndim > 4 || !z3i_broadcast(&ndim, shape, mask->ndim, mask->shape) ||
        memcmp(shape, full, 4 * sizeof *full) != 0)
      return misfit(r, 3, "a shape that broadcasts to (B,H,T,S)");
    z3_tensor *view;
    int64_t stride[Z3_MAX_DIMS];
    z3i_broadcast_strides(mask, 4, full, stride);
    Z3I_TRY(z3i_tensor_view(mask, 4, full, stride, mask->offset, &view));
    z3_tensor_release(r->in[3]);
    r->in[3] = view;
  }
  for (int i = 0; i < 3; i++)
    if (!last_contiguous(r->in[i])) Z3I_TRY(replace_contiguous(r, i));
  Z3I_TRY(z3i_heads_alloc(r->dev, q->dtype, q->shape, &r->out[0]));
  return z3i_run_aux(r, 0, Z3T_F32, 3, q->shape);
}

static int want_targets(z3i_run *r, int i, int64_t rows)
{
  const z3_tensor *t = r->in[i];
  if (t->dtype != Z3T_I32 && t->dtype != Z3T_I64)
    return Z3I_FAIL(Z3E_DTYPE, "%s: targets is %s, wants i32 or i64", z3_op_name(r->op), z3_dtype_name(t->dtype));
  if (t->ndim != 1 || t->shape[0] != rows) return misfit_with(r, i, 0);
  Z3I_REQUIRE(r->attr.i[1] >= Z3RED_SUM && r->attr.i[1] <= Z3RED_NONE,
              "%s: reduction number is %" PRId64 ", wants 0 to 2", z3_op_name(r->op), r->attr.i[1]);
  Z3I_TRY(z3i_run_out(r, 0, Z3T_F32, r->attr.i[1] == Z3RED_NONE ? 1 : 0, &rows));
  Z3I_TRY(z3i_run_out(r, 1, Z3T_I64, 0, NULL));
  return z3i_run_aux(r, 0, Z3T_F32, 1, &rows);
}

RULE(cross_entropy)
{
  Z3I_TRY(want_float(r, 0));
  if (r->in[0]->ndim != 2) return misfit(r, 0, "(N,V)");
  return want_targets(r, 1, r->in[0]->shape[0]);
}

RULE(linear_cross_entropy)
{
  Z3I_TRY(same_dtype(r, 0, 1));
  if (r->in[0]->ndim != 2) return misfit(r, 0, "(N,C)");
  if (r->in[1]->ndim != 2 || r->in[1]->shape[1] != r->in[0]->shape[1]) return misfit_with(r, 1, 0);
  return want_targets(r, 2, r->in[0]->shape[0]);
}
