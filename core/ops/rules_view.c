/* rules_view.c -- views: another shape over the same storage. No kernel runs. */
#include "ops/op.h"

#define RULE(name) int z3i_rule_##name(z3i_run *r); int z3i_rule_##name(z3i_run *r)

static int make(z3i_run *r, int ndim, const int64_t *shape, const int64_t *stride, int64_t offset)
{
  return z3i_tensor_view(r->in[0], ndim, shape, stride, offset, &r->out[0]);
}

/* Strides that show x (not empty) as shape without moving data. False: x's memory order doesn't allow it.
 * Runs of x's dims that lie one after another in memory are matched, from the right, with dims of shape. */
static bool restride(const z3_tensor *x, int ndim, const int64_t *shape, int64_t *stride)
{
  int j = ndim - 1;
  int64_t unit = x->ndim > 0 ? x->stride[x->ndim - 1] : 1, run = 1, made = 1;
  for (int i = x->ndim - 1; i >= 0; i--) {
    run *= x->shape[i];
    bool run_ends = i == 0 || (x->shape[i - 1] != 1 && x->stride[i - 1] != run * unit);
    if (!run_ends) continue;
    for (; j >= 0 && (made < run || shape[j] == 1); j--) {
      stride[j] = made * unit;
      made *= shape[j];
    }
    if (made != run) return false;
    if (i > 0) unit = x->stride[i - 1];
    run = made = 1;
  }
  for (; j >= 0 && shape[j] == 1; j--) stride[j] = 1;
  return j < 0;
}

RULE(view)
{
  z3_tensor *x = r->in[0];
  int ndim = (int)r->attr.i[0], hole = -1;
  int64_t shape[Z3_MAX_DIMS] = { 0 }, known = 1;
  Z3I_REQUIRE(ndim >= 0 && ndim <= Z3_MAX_DIMS, "view: %d dims, wants 0 to %d", ndim, Z3_MAX_DIMS);
  for (int i = 0; i < ndim; i++) {
    shape[i] = r->attr.i[1 + i];
    Z3I_REQUIRE(shape[i] >= -1, "view: size of dim %d is %" PRId64 ", wants >= 0, or -1 once", i, shape[i]);
    Z3I_REQUIRE(shape[i] >= 0 || hole < 0, "view: -1 is given for dims %d and %d, wants it once", hole, i);
    if (shape[i] < 0) hole = i;
    else known *= shape[i];
  }
  char a[Z3I_SHAPE_TEXT], b[Z3I_SHAPE_TEXT];
  if (hole >= 0 && known > 0 && x->numel % known == 0) shape[hole] = x->numel / known;
  if (z3i_numel(ndim, shape) != x->numel || (hole >= 0 && shape[hole] < 0))
    return Z3I_FAIL(Z3E_SHAPE, "view: x %s has %" PRId64 " elements, does not fit %s",
                    z3i_shape_text(x->ndim, x->shape, a), x->numel, z3i_shape_text(ndim, shape, b));
  int64_t stride[Z3_MAX_DIMS];
  z3i_strides(ndim, shape, stride);
  if (x->contiguous) return make(r, ndim, shape, stride, x->offset);
  if (x->numel > 0 && restride(x, ndim, shape, stride)) return make(r, ndim, shape, stride, x->offset);
  if (!r->attr.i[9])                              /* i9: reshape may copy */
    return Z3I_FAIL(Z3E_ARG, "view: x %s is not laid out so that %s can be a view of it: use reshape or contiguous",
                    z3i_shape_text(x->ndim, x->shape, a), z3i_shape_text(ndim, shape, b));
  z3_tensor *copy;
  Z3I_TRY(z3i_tensor_contiguous(x, &copy));
  z3i_strides(ndim, shape, stride);
  int rc = z3i_tensor_view(copy, ndim, shape, stride, copy->offset, &r->out[0]);
  z3_tensor_release(copy);
  return rc;
}

RULE(permute)
{
  const z3_tensor *x = r->in[0];
  int64_t shape[Z3_MAX_DIMS], stride[Z3_MAX_DIMS], seen = 0;
  for (int i = 0; i < x->ndim; i++) {
    int64_t from = r->attr.i[i];
    Z3I_REQUIRE(from >= 0 && from < x->ndim && !((seen >> from) & 1), "permute: entry %d is %" PRId64
                ", wants each of 0 to %d once", i, from, x->ndim - 1);
    seen |= (int64_t)1 << from;
    shape[i] = x->shape[from];
    stride[i] = x->stride[from];
  }
  return make(r, x->ndim, shape, stride, x->offset);
}

RULE(narrow)
{
  const z3_tensor *x = r->in[0];
  int64_t dim = r->attr.i[0], start = r->attr.i[1], count = r->attr.i[2];
  Z3I_REQUIRE(dim >= 0 && dim < x->ndim, "narrow: dim is %" PRId64 ", the tensor has %d dims", dim, x->ndim);
  Z3I_REQUIRE(start >= 0 && count >= 0 && start <= x->shape[dim] && count <= x->shape[dim] - start,
              "narrow: %" PRId64 " elements from %" PRId64 ", dim %" PRId64 " has %" PRId64, count, start, dim,
              x->shape[dim]);
  int64_t shape[Z3_MAX_DIMS];
  memcpy(shape, x->shape, sizeof shape);
  shape[dim] = count;
  return make(r, x->ndim, shape, x->stride, x->offset + start * x->stride[dim]);
}

RULE(expand)
{
  const z3_tensor *x = r->in[0];
  int ndim = (int)r->attr.i[0];
  Z3I_REQUIRE(ndim >= x->ndim && ndim <= Z3_MAX_DIMS, "expand: to %d dims, wants %d to %d", ndim, x->ndim, Z3_MAX_DIMS);
  int64_t shape[Z3_MAX_DIMS], stride[Z3_MAX_DIMS];
  int shift = ndim - x->ndim;
  for (int i = 0; i < ndim; i++) {
    int64_t own = i < shift ? 1 : x->shape[i - shift];
    shape[i] = r->attr.i[1 + i] == -1 && i >= shift ? own : r->attr.i[1 + i];
    if (shape[i] < 0 || (own != 1 && own != shape[i])) {
      char text[Z3I_SHAPE_TEXT];
      return Z3I_FAIL(Z3E_SHAPE, "expand: dim %d of x %s cannot become %" PRId64, i,
                      z3i_shape_text(x->ndim, x->shape, text), shape[i]);
    }
  }
  Z3I_TRY(z3i_shape_check(x->dtype, ndim, shape));   /* a view may be far larger than memory, but must be countable */
  z3i_broadcast_strides(x, ndim, shape, stride);
  return make(r, ndim, shape, stride, x->offset);
}

RULE(cat)
{
  const z3_tensor *first = r->in[0];
  int64_t dim = r->attr.i[0], shape[Z3_MAX_DIMS], at = 0;
  Z3I_REQUIRE(dim >= 0 && dim < first->ndim, "cat: dim is %" PRId64 ", the tensors have %d dims", dim, first->ndim);
  memcpy(shape, first->shape, sizeof shape);
  shape[dim] = 0;
  for (int i = 0; i < r->n_in; i++) {
    const z3_tensor *x = r->in[i];
    bool fits = x->ndim == first->ndim && x->dtype == first->dtype;
    for (int d = 0; fits && d < x->ndim; d++) fits = d == dim || x->shape[d] == first->shape[d];
    if (!fits) {
      char a[Z3I_SHAPE_TEXT], b[Z3I_SHAPE_TEXT];
      return Z3I_FAIL(x->dtype == first->dtype ? Z3E_SHAPE : Z3E_DTYPE,
                      "cat: tensor %d is %s %s, does not fit %s %s along dim %" PRId64, i, z3_dtype_name(x->dtype),
                      z3i_shape_text(x->ndim, x->shape, a), z3_dtype_name(first->dtype),
                      z3i_shape_text(first->ndim, first->shape, b), dim);
    }
    shape[dim] += x->shape[dim];
  }
  Z3I_TRY(z3i_run_out(r, 0, first->dtype, first->ndim, shape));
  z3_tensor *out = r->out[0];
  for (int i = 0; i < r->n_in; i++) {
    z3_tensor *part;
    Z3I_TRY(
        z3i_tensor_view(out, first->ndim, r->in[i]->shape, out->stride, out->offset + at * out->stride[dim], &part));
    int rc = z3_tensor_copy(part, r->in[i]);
    z3_tensor_release(part);
    if (rc != Z3E_OK) return rc;
    at += r->in[i]->shape[dim];
  }
  return Z3E_OK;
}

RULE(script) { return Z3I_FAIL(Z3E_ARG, "%s: recorded with z3_script_record only", z3_op_name(r->op)); }
