/* op_backward.c -- one operation backward through the device's kernel, and what gradient rules share. */
#include "ops/op.h"
#include "prof/prof.h"

int z3i_op_backward(z3i_back *b)
{
  z3i_grad_rule rule = z3i_op_grad(b->op);
  int rc = rule(b);
  if (rc == Z3E_OK) return rc;
  for (int i = 0; i < b->n_in; i++) {
    z3_tensor_release(b->gin[i]);
    b->gin[i] = NULL;
  }
  return z3i_trace(__FILE__, __LINE__, __func__, rc);
}

int z3i_accumulate(z3_tensor *dst, z3_tensor *src, bool add)
{
  if (!add) return z3_tensor_copy(dst, src);
  dst->storage->version++;
  if (dst->numel == 0 || !dst->storage->dev->computes) return Z3E_OK;
  z3_attr attr = { 0 };
  z3i_call c = { .op = Z3OP_copy, .attr = &attr, .dev = dst->storage->dev, .gin_add = 1 };
  z3i_tensor_describe(src, &c.gout[0]);
  z3i_tensor_describe(dst, &c.gin[0]);
  z3i_tensor_describe_meta(dst, &c.in[0]);
  z3i_tensor_describe_meta(src, &c.out[0]);
  return z3i_kernel_run(dst->storage->dev->backward[Z3OP_copy], &c, Z3P_BACKWARD, 0);
}

static bool same_shape(int a_ndim, const int64_t *a, int b_ndim, const int64_t *b)
{
  return a_ndim == b_ndim && memcmp(a, b, sizeof *a * (size_t)a_ndim) == 0;
}

static int to_dtype(z3_tensor *t, int dtype, z3_tensor **out)
{
  if (t->dtype == dtype) {
    z3_tensor_retain(*out = t);
    return Z3E_OK;
  }
  return z3i_op1(Z3OP_cast, t, NULL, NULL, &(z3_attr){ .i = { dtype } }, out);
}

int z3i_sum_to(z3_tensor *t, const z3i_meta *meta, z3_tensor **out)
{
  *out = NULL;
  if (same_shape(t->ndim, t->shape, meta->ndim, meta->shape)) return to_dtype(t, meta->dtype, out);
  int shift = t->ndim - meta->ndim;
  int64_t mask = 0;
  for (int i = 0; i < t->ndim; i++)
    if (i < shift || (meta->shape[i - shift] == 1 && t->shape[i] != 1)) mask |= (int64_t)1 << i;
  z3_tensor *sum = NULL, *shaped = NULL;
  Z3I_TRY(z3i_op1(Z3OP_sum, t, NULL, NULL, &(z3_attr){ .i = { mask, 1 } }, &sum));
  z3_attr view = { .i = { meta->ndim } };
  for (int i = 0; i < meta->ndim; i++) view.i[1 + i] = meta->shape[i];
  int rc = z3i_op1(Z3OP_view, sum, NULL, NULL, &view, &shaped);
  z3_tensor_release(sum);
  if (rc == Z3E_OK) rc = to_dtype(shaped, meta->dtype, out);
  z3_tensor_release(shaped);
  return rc;
}

/* The tensor that the kernel writes as gradient of input i: the buffer given, or a new one. Elementwise and matmul
 * gradients come in the broadcast shape, in f32 when they will be summed. */
static int grad_target(z3i_back *b, int i, const z3i_opinfo *info, bool *broadcast, z3_tensor **out)
{
  const z3i_meta *m = &b->in_meta[i], *o = &b->out_meta[0];
  int ndim = m->ndim;
  int64_t shape[Z3_MAX_DIMS];
  memcpy(shape, m->shape, sizeof shape);
  if (info->flags & Z3I_OP_ELEM) {
    ndim = o->ndim;
    memcpy(shape, o->shape, sizeof shape);
  } else if (b->op == Z3OP_matmul) {
    ndim = o->ndim;
    memcpy(shape, o->shape, sizeof shape);
    shape[ndim - 2] = m->shape[m->ndim - 2];
    shape[ndim - 1] = m->shape[m->ndim - 1];
  }
  *broadcast = !same_shape(ndim, shape, m->ndim, m->shape);
  if (!*broadcast && b->into[i] != NULL) {
    z3_tensor_retain(*out = b->into[i]);
    return Z3E_OK;
  }
  if (b->op == Z3OP_attention || b->op == Z3OP_rope) return z3i_heads_alloc(b->dev, m->dtype, shape, out);
  return z3i_tensor_alloc(b->dev, *broadcast ? Z3T_F32 : m->dtype, ndim, shape, Z3M_ACTIVATION, out);
}

static void describe_saved(const z3i_back *b, const z3i_opinfo *info, z3i_call *c)
{
  for (int i = 0; i < b->n_in; i++) {
    const z3i_meta *m = &b->in_meta[i];
    if (!m->given) continue;
    if (b->in[i] != NULL) z3i_tensor_describe(b->in[i], &c->in[i]);
    else {
      c->in[i].dtype = m->dtype;
      c->in[i].ndim = m->ndim;
      memcpy(c->in[i].shape, m->shape, sizeof m->shape);
      z3i_strides(m->ndim, m->shape, c->in[i].stride);
    }
    const z3i_meta *o = &b->out_meta[0];
    if (b->in[i] == NULL) continue;
    if (info->flags & Z3I_OP_ELEM) z3i_broadcast_view(b->in[i], o->ndim, o->shape, 0, &c->in[i]);
    else if (b->op == Z3OP_matmul) z3i_broadcast_view(b->in[i], o->ndim, o->shape, 2, &c->in[i]);
  }
  for (int j = 0; j < info->n_out; j++) {
    const z3i_meta *m = &b->out_meta[j];
    c->out[j] = (z3i_view){ .dtype = m->dtype, .ndim = m->ndim };
    memcpy(c->out[j].shape, m->shape, sizeof m->shape);
    z3i_strides(m->ndim, m->shape, c->out[j].stride);
    if (b->out[j] != NULL) z3i_tensor_describe(b->out[j], &c->out[j]);
  }
  for (int j = 0; j < info->n_aux; j++)
    if (b->aux[j] != NULL) z3i_tensor_describe(b->aux[j], &c->aux[j]);
}

/* Gradients of the outputs as the kernel wants them: contiguous for most. */
static int describe_gout(z3i_back *b, const z3i_opinfo *info, z3_tensor **held, z3i_call *c)
{
  bool heads = b->op == Z3OP_attention || b->op == Z3OP_rope;   /* any strides with the last dim contiguous */
  for (int j = 0; j < info->n_out; j++) {
    z3_tensor *g = b->gout[j];
    if (g == NULL) continue;
    bool as_it_is = (info->flags & Z3I_OP_ELEM) || (heads && g->ndim > 0 && g->stride[g->ndim - 1] == 1);
    if (as_it_is) z3_tensor_retain(held[j] = g);
    else Z3I_TRY(z3i_tensor_contiguous(g, &held[j]));
    z3i_tensor_describe(held[j], &c->gout[j]);
  }
  return Z3E_OK;
}

/* After the kernel: sums broadcast gradients down; hands over the rest. */
static int deliver(z3i_back *b, int i, bool broadcast, z3_tensor *target)
{
  if (target == b->into[i]) {
    target->storage->version++;
    b->done[i] = true;
    return Z3E_OK;
  }
  if (broadcast) return z3i_sum_to(target, &b->in_meta[i], &b->gin[i]);
  z3_tensor_retain(b->gin[i] = target);
  return Z3E_OK;
}

/* One product per gradient; linear_cross_entropy computes its logits again; attention's backward is five products to
 * two. */
static double back_flops(const z3i_back *b)
{
  if (!z3i_prof_on || b->n_in < 2) return 0;
  double one = z3i_op_flops(b->op, b->in_meta, b->attr);
  if (b->op == Z3OP_attention) return 2.5 * one;
  return one * ((b->op == Z3OP_linear_cross_entropy) + b->want[0] + b->want[1]);
}

int z3i_grad_kernel(z3i_back *b)
{
  const z3i_opinfo *info = z3i_opinfo_get(b->op);
  z3i_kernel kernel = b->dev->backward[b->op];
  if (kernel == NULL && b->dev->computes)
    return Z3I_FAIL(Z3E_UNSUPPORTED, "%s: backward is not supported on device %s", info->name, b->dev->name);
  z3i_call c = { .op = b->op, .attr = b->attr, .dev = b->dev };
  z3_tensor *held[Z3I_MAX_OUT] = { 0 }, *target[Z3I_MAX_IN] = { 0 };
  bool broadcast[Z3I_MAX_IN] = { 0 };
  int rc = describe_gout(b, info, held, &c);
  describe_saved(b, info, &c);
  for (int i = 0; i < b->n_in && rc == Z3E_OK; i++) {
    if (!b->want[i]) continue;
    rc = grad_target(b, i, info, &broadcast[i], &target[i]);
    if (rc != Z3E_OK) break;
    z3i_tensor_describe(target[i], &c.gin[i]);
    if (target[i] == b->into[i] && b->add[i]) c.gin_add |= 1u << i;
  }
  if (rc == Z3E_OK) rc = z3i_kernel_run(kernel, &c, Z3P_BACKWARD, back_flops(b));
  for (int i = 0; i < b->n_in && rc == Z3E_OK; i++)
    if (target[i] != NULL) rc = deliver(b, i, broadcast[i], target[i]);
  for (int i = 0; i < b->n_in; i++) z3_tensor_release(target[i]);
  for (int j = 0; j < Z3I_MAX_OUT; j++) z3_tensor_release(held[j]);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}
