/* rules_elem.c -- shape and dtype rules of elementwise operations.
 * Promotion as PyTorch's: 16-bit with f32 gives f32, bf16 with f16 gives f32, an integer takes the float's type,
 * the wider of two integers wins. A tensor without dims changes the type of one with dims only from integer to float
 * (and bytes widen, since they stand for truth values too). */
#include <math.h>

#include "ops/op.h"

#define RULE(name) int z3i_rule_##name(z3i_run *r); int z3i_rule_##name(z3i_run *r)

static int promote(const z3_tensor *x, const z3_tensor *y)
{
  int a = x->dtype, b = y->dtype;
  if (a == b) return a;
  if ((x->ndim == 0) != (y->ndim == 0)) {
    int with_dims = x->ndim > 0 ? a : b, without = x->ndim > 0 ? b : a;
    if (z3i_dtype_float(with_dims)) return with_dims;
    if (!z3i_dtype_float(without) && with_dims != Z3T_U8) return with_dims;
  }
  if (z3i_dtype_float(a) && z3i_dtype_float(b)) return Z3T_F32;
  if (z3i_dtype_float(a)) return a;
  if (z3i_dtype_float(b)) return b;
  static const int rank[Z3T_COUNT] = { [Z3T_U8] = 0, [Z3T_I32] = 1, [Z3T_I64] = 2 };
  return rank[a] > rank[b] ? a : b;
}

static int as_float(int dtype) { return z3i_dtype_float(dtype) ? dtype : Z3T_F32; }

static int broadcast_all(z3i_run *r, int *ndim, int64_t *shape)
{
  *ndim = 0;
  for (int i = 0; i < r->n_in; i++) {
    int before = *ndim;
    int64_t seen[Z3_MAX_DIMS];
    memcpy(seen, shape, sizeof seen);
    if (z3i_broadcast(ndim, shape, r->in[i]->ndim, r->in[i]->shape)) continue;
    char a[Z3I_SHAPE_TEXT], b[Z3I_SHAPE_TEXT];
    return Z3I_FAIL(Z3E_SHAPE, "%s: %s %s does not broadcast with %s", z3_op_name(r->op), z3i_input_name(r->op, i),
                    z3i_shape_text(r->in[i]->ndim, r->in[i]->shape, a), z3i_shape_text(before, seen, b));
  }
  return Z3E_OK;
}

static int elementwise(z3i_run *r, int dtype)
{
  int ndim = 0;
  int64_t shape[Z3_MAX_DIMS] = { 0 };
  Z3I_TRY(broadcast_all(r, &ndim, shape));
  return z3i_run_out(r, 0, dtype, ndim, shape);
}

RULE(same) { return elementwise(r, r->in[0]->dtype); }
RULE(unary) { return elementwise(r, r->in[0]->dtype); }
RULE(unary_float) { return elementwise(r, as_float(r->in[0]->dtype)); }
RULE(unary_u8) { return elementwise(r, Z3T_U8); }
RULE(binary) { return elementwise(r, promote(r->in[0], r->in[1])); }
RULE(binary_float) { return elementwise(r, as_float(promote(r->in[0], r->in[1]))); }
RULE(compare) { return elementwise(r, Z3T_U8); }

static bool is_whole(double v) { return fabs(v) < 0x1p63 && v == trunc(v); }

/* A whole number leaves an integer tensor's type alone; any other number makes it f32. */
RULE(scalar)
{
  int dtype = r->in[0]->dtype;
  return elementwise(r, is_whole(r->attr.f[0]) ? dtype : as_float(dtype));
}

/* An integer to a whole power >= 0 stays one; any other power makes it f32. */
RULE(pow_scalar)
{
  double power = r->attr.f[0];
  int dtype = r->in[0]->dtype;
  return elementwise(r, power >= 0 && is_whole(power) ? dtype : as_float(dtype));
}

RULE(cast)
{
  int dtype = (int)r->attr.i[0];
  Z3I_REQUIRE(z3i_dtype_ok(dtype), "cast: dtype number is %d, wants 0 to %d", dtype, Z3T_COUNT - 1);
  return z3i_run_out(r, 0, dtype, r->in[0]->ndim, r->in[0]->shape);
}

static int want_mask(z3i_run *r, int i)
{
  if (r->in[i]->dtype == Z3T_U8) return Z3E_OK;
  return Z3I_FAIL(Z3E_DTYPE, "%s: %s is %s, wants u8 (1 = true)", z3_op_name(r->op), z3i_input_name(r->op, i),
                  z3_dtype_name(r->in[i]->dtype));
}

RULE(where)
{
  Z3I_TRY(want_mask(r, 0));
  return elementwise(r, promote(r->in[1], r->in[2]));
}

RULE(masked_fill)
{
  Z3I_TRY(want_mask(r, 1));
  return elementwise(r, r->in[0]->dtype);
}

RULE(dropout)
{
  double p = r->attr.f[0];
  Z3I_REQUIRE(p >= 0 && p <= 1, "dropout: p is %g, wants 0 to 1", p);
  if (!z3i_dtype_float(r->in[0]->dtype))
    return Z3I_FAIL(Z3E_DTYPE, "dropout: x is %s, wants a floating type", z3_dtype_name(r->in[0]->dtype));
  return elementwise(r, r->in[0]->dtype);
}
