/* rules_reduce.c -- shape and dtype rules of reductions, and of operations along one dim.
 * attr: i0 = bit mask of dims (0: all), i1 = keep them as size 1. */
#include "ops/op.h"

#define RULE(name) int z3i_rule_##name(z3i_run *r); int z3i_rule_##name(z3i_run *r)

static int reduced(z3i_run *r, int *ndim, int64_t *shape, int64_t *count)
{
  const z3_tensor *x = r->in[0];
  if (r->attr.i[0] == 0) r->attr.i[0] = ((int64_t)1 << x->ndim) - 1;
  int64_t mask = r->attr.i[0];
  Z3I_REQUIRE(mask >= 0 && mask < (int64_t)1 << Z3I_MAX(x->ndim, 1),
              "%s: a dim to reduce is beyond the tensor's %d dims", z3_op_name(r->op), x->ndim);
  *ndim = 0;
  *count = 1;
  for (int i = 0; i < x->ndim; i++) {
    bool gone = (mask >> i) & 1;
    if (gone) *count *= x->shape[i];
    if (!gone || r->attr.i[1]) shape[(*ndim)++] = gone ? 1 : x->shape[i];
  }
  return Z3E_OK;
}

RULE(sum)
{
  int ndim;
  int64_t shape[Z3_MAX_DIMS], count;
  Z3I_TRY(reduced(r, &ndim, shape, &count));
  int dtype = r->in[0]->dtype;
  return z3i_run_out(r, 0, z3i_dtype_float(dtype) ? dtype : Z3T_I64, ndim, shape);
}

RULE(mean)
{
  int ndim;
  int64_t shape[Z3_MAX_DIMS], count;
  Z3I_TRY(reduced(r, &ndim, shape, &count));
  int dtype = r->in[0]->dtype;
  return z3i_run_out(r, 0, z3i_dtype_float(dtype) ? dtype : Z3T_F32, ndim, shape);
}

static int nonempty(z3i_run *r, int *ndim, int64_t *shape)
{
  int64_t count;
  Z3I_TRY(reduced(r, ndim, shape, &count));
  if (count > 0) return Z3E_OK;
  char text[Z3I_SHAPE_TEXT];
  return Z3I_FAIL(Z3E_ARG, "%s: nothing to choose from: x is %s", z3_op_name(r->op),
                  z3i_shape_text(r->in[0]->ndim, r->in[0]->shape, text));
}

RULE(extreme)
{
  int ndim;
  int64_t shape[Z3_MAX_DIMS];
  Z3I_TRY(nonempty(r, &ndim, shape));
  Z3I_TRY(z3i_run_out(r, 0, r->in[0]->dtype, ndim, shape));
  return z3i_run_aux(r, 0, Z3T_I64, ndim, shape);
}

RULE(shared_extreme)
{
  int ndim;
  int64_t shape[Z3_MAX_DIMS];
  Z3I_TRY(nonempty(r, &ndim, shape));
  return z3i_run_out(r, 0, r->in[0]->dtype, ndim, shape);
}

RULE(argmax)
{
  int ndim;
  int64_t shape[Z3_MAX_DIMS];
  Z3I_TRY(nonempty(r, &ndim, shape));
  return z3i_run_out(r, 0, Z3T_I64, ndim, shape);
}

static int dim_ok(z3i_run *r)
{
  int64_t dim = r->attr.i[0];
  Z3I_REQUIRE(dim >= 0 && dim < r->in[0]->ndim, "%s: dim is %" PRId64 ", the tensor has %d dims", z3_op_name(r->op),
              dim, r->in[0]->ndim);
  return Z3E_OK;
}

RULE(same_dim)                                    /* cumsum */
{
  Z3I_TRY(dim_ok(r));
  int dtype = r->in[0]->dtype;
  return z3i_run_out(r, 0, z3i_dtype_float(dtype) ? dtype : Z3T_I64, r->in[0]->ndim, r->in[0]->shape);
}

RULE(tril)
{
  Z3I_REQUIRE(r->in[0]->ndim >= 2, "tril: x has %d dims, wants at least 2", r->in[0]->ndim);
  return z3i_run_out(r, 0, r->in[0]->dtype, r->in[0]->ndim, r->in[0]->shape);
}

static int want_ids(z3i_run *r, int i)
{
  int dtype = r->in[i]->dtype;
  if (dtype == Z3T_I32 || dtype == Z3T_I64) return Z3E_OK;
  return Z3I_FAIL(Z3E_DTYPE, "%s: %s is %s, wants i32 or i64", z3_op_name(r->op), z3i_input_name(r->op, i),
                  z3_dtype_name(dtype));
}

RULE(index_select)
{
  Z3I_TRY(dim_ok(r));
  Z3I_TRY(want_ids(r, 1));
  char text[Z3I_SHAPE_TEXT];
  if (r->in[1]->ndim != 1)
    return Z3I_FAIL(Z3E_SHAPE, "index_select: ids is %s, wants one dim",
                    z3i_shape_text(r->in[1]->ndim, r->in[1]->shape, text));
  int64_t shape[Z3_MAX_DIMS];
  memcpy(shape, r->in[0]->shape, sizeof shape);
  shape[r->attr.i[0]] = r->in[1]->shape[0];
  return z3i_run_out(r, 0, r->in[0]->dtype, r->in[0]->ndim, shape);
}

RULE(gather)
{
  Z3I_TRY(dim_ok(r));
  Z3I_TRY(want_ids(r, 1));
  const z3_tensor *x = r->in[0], *ids = r->in[1];
  bool fits = x->ndim == ids->ndim;
  for (int i = 0; fits && i < x->ndim; i++)
    if (i != r->attr.i[0] && ids->shape[i] > x->shape[i]) fits = false;
  char a[Z3I_SHAPE_TEXT], b[Z3I_SHAPE_TEXT];
  if (!fits)
    return Z3I_FAIL(Z3E_SHAPE, "gather: ids %s does not fit x %s", z3i_shape_text(ids->ndim, ids->shape, a),
                    z3i_shape_text(x->ndim, x->shape, b));
  return z3i_run_out(r, 0, x->dtype, ids->ndim, ids->shape);
}

RULE(embedding)
{
  Z3I_TRY(want_ids(r, 0));
  const z3_tensor *ids = r->in[0], *w = r->in[1];
  char text[Z3I_SHAPE_TEXT];
  if (w->ndim != 2 || !z3i_dtype_float(w->dtype))
    return Z3I_FAIL(Z3E_SHAPE, "embedding: weight is %s %s, wants a floating (rows, width)", z3_dtype_name(w->dtype),
                    z3i_shape_text(w->ndim, w->shape, text));
  if (ids->ndim == Z3_MAX_DIMS)
    return Z3I_FAIL(Z3E_SHAPE, "embedding: ids has %d dims, wants fewer than %d", ids->ndim, Z3_MAX_DIMS);
  int64_t shape[Z3_MAX_DIMS];
  memcpy(shape, ids->shape, sizeof shape);
  shape[ids->ndim] = w->shape[1];
  return z3i_run_out(r, 0, w->dtype, ids->ndim + 1, shape);
}
