/* op_forward.c -- one operation forward: check the inputs, apply the shape rule, call the kernel. */
#include "device/pool.h"
#include "ops/op.h"
#include "prof/prof.h"

static int check_inputs(int op, const z3i_opinfo *info, z3_tensor *const *in, int n_in)
{
  Z3I_REQUIRE(n_in >= info->min_in && n_in <= info->max_in, "%s: %d inputs, wants %d to %d", info->name, n_in,
              info->min_in, info->max_in);
  const z3i_device *dev = NULL;
  for (int i = 0; i < n_in; i++) {
    if (in[i] == NULL) {
      Z3I_REQUIRE(i >= info->min_in || op == Z3OP_layer_norm || op == Z3OP_rms_norm, "%s: %s is missing", info->name,
                  z3i_input_name(op, i));
      continue;
    }
    if (in[i]->magic != Z3I_TENSOR_MAGIC)
      return Z3I_FAIL(Z3E_STALE, "%s: %s was freed", info->name, z3i_input_name(op, i));
    if (dev == NULL) dev = in[i]->storage->dev;
    Z3I_REQUIRE(dev == in[i]->storage->dev, "%s: %s is on device %s, the others on %s", info->name,
                z3i_input_name(op, i), in[i]->storage->dev->name, dev->name);
  }
  Z3I_REQUIRE(dev != NULL, "%s: no input given", info->name);
  return Z3E_OK;
}

void z3i_run_clear(z3i_run *r)
{
  for (int i = 0; i < r->n_in; i++) z3_tensor_release(r->in[i]);
  for (int j = 0; j < Z3I_MAX_OUT; j++) z3_tensor_release(r->out[j]);
  for (int j = 0; j < Z3I_MAX_AUX; j++) z3_tensor_release(r->aux[j]);
  if (r->in != r->in_few) z3i_free(r->in);
  memset(r, 0, sizeof *r);
}

int z3i_run_out(z3i_run *r, int j, int dtype, int ndim, const int64_t *shape)
{
  return z3i_tensor_alloc(r->dev, dtype, ndim, shape, Z3M_ACTIVATION, &r->out[j]);
}

int z3i_run_aux(z3i_run *r, int j, int dtype, int ndim, const int64_t *shape)
{
  return z3i_tensor_alloc(r->dev, dtype, ndim, shape, Z3M_ACTIVATION, &r->aux[j]);
}

int z3i_heads_alloc(z3i_device *dev, int dtype, const int64_t *shape, z3_tensor **out)
{
  z3_tensor *base;
  *out = NULL;
  Z3I_TRY(
      z3i_tensor_alloc(dev, dtype, 4, (int64_t[]){ shape[0], shape[2], shape[1], shape[3] }, Z3M_ACTIVATION, &base));
  int64_t stride[4] = { base->stride[0], base->stride[2], base->stride[1], base->stride[3] };
  int rc = z3i_tensor_view(base, 4, shape, stride, 0, out);
  z3_tensor_release(base);
  return rc;
}

/* Bytes in memory: what is repeated by broadcasting counts once. */
static int64_t view_bytes(const z3i_view *v, int count)
{
  int64_t bytes = 0;
  for (int i = 0; i < count; i++) {
    if (v[i].data == NULL) continue;
    int64_t n = z3i_dtype_bytes(v[i].dtype);
    for (int k = 0; k < v[i].ndim; k++)
      if (v[i].stride[k] != 0 || v[i].shape[k] == 0) n *= v[i].shape[k];
    bytes += n;
  }
  return bytes;
}

/* Only the rows that the ids name are read, and in backward changed where the gradient is added to. */
static int64_t embedding_bytes(const z3i_call *c)
{
  int64_t ids = view_bytes(&c->in[0], 1), rows = view_bytes(&c->out[0], 1), from = view_bytes(&c->gout[0], 1);
  if (c->out[0].data != NULL) return ids + 2 * rows;
  return ids + from + ((c->gin_add & 2u) ? 2 * from : view_bytes(&c->gin[1], 1) + from);
}

static int64_t call_bytes(const z3i_call *c)
{
  if (c->op == Z3OP_embedding) return embedding_bytes(c);
  int64_t bytes = view_bytes(c->in, Z3I_MAX_IN) + view_bytes(c->out, Z3I_MAX_OUT) + view_bytes(c->aux, Z3I_MAX_AUX) +
                  view_bytes(c->gout, Z3I_MAX_OUT) + view_bytes(c->gin, Z3I_MAX_IN);
  for (int i = 0; i < Z3I_MAX_IN; i++)            /* added to: read, too */
    if ((c->gin_add >> i) & 1u) bytes += view_bytes(&c->gin[i], 1);
  return bytes;
}

int z3i_kernel_run(z3i_kernel kernel, const z3i_call *c, int kind, double flops)
{
  if (!c->dev->computes) return kernel != NULL ? kernel(c) : Z3E_OK;
  int64_t start = z3i_prof_start();
  Z3I_TRY(kernel(c));
  if (start == 0) return Z3E_OK;
  if (kind == Z3P_FORWARD) kind = z3i_prof_phase;
  z3i_prof_add(kind, c->op, start, call_bytes(c), flops, z3i_owner_get());
  return Z3E_OK;
}

/* Multiplications and additions of one product of the operation's; backward has one per gradient wanted. */
double z3i_op_flops(int op, const z3i_meta *in, const z3_attr *attr)
{
  if (op == Z3OP_linear || op == Z3OP_linear_cross_entropy)
    return 2.0 * (double)z3i_numel(in[0].ndim, in[0].shape) *
           (double)in[1].shape[attr->i[0] && op == Z3OP_linear ? 1 : 0];
  if (op == Z3OP_matmul) return 2.0 * (double)z3i_numel(in[0].ndim, in[0].shape) * (double)in[1].shape[in[1].ndim - 1];
  if (op != Z3OP_attention) return 0;
  double all = 4.0 * (double)z3i_numel(4, in[0].shape) * (double)in[1].shape[2];   /* two products */
  return attr->i[0] ? all / 2 : all;
}

static double run_flops(const z3i_run *r)
{
  if (!z3i_prof_on || r->n_in < 2 || r->in[1] == NULL) return 0;
  z3i_meta in[2];
  z3i_meta_of(r->in[0], &in[0]);
  z3i_meta_of(r->in[1], &in[1]);
  return z3i_op_flops(r->op, in, &r->attr);
}

static void describe(z3_tensor *t, z3i_view *v)
{
  if (t != NULL) z3i_tensor_describe(t, v);
}

void z3i_broadcast_view(const z3_tensor *t, int out_ndim, const int64_t *out_shape, int keep, z3i_view *v)
{
  int64_t shape[Z3_MAX_DIMS];
  memcpy(shape, out_shape, sizeof shape);
  for (int i = 1; i <= keep; i++) shape[out_ndim - i] = t->shape[t->ndim - i];
  v->ndim = out_ndim;
  memcpy(v->shape, shape, sizeof shape);
  z3i_broadcast_strides(t, out_ndim, shape, v->stride);
}

static int call_kernel(z3i_run *r, const z3i_opinfo *info)
{
  z3i_kernel kernel = r->dev->forward[r->op];
  if (kernel == NULL && !r->dev->computes) return Z3E_OK;
  if (kernel == NULL) return Z3I_FAIL(Z3E_UNSUPPORTED, "%s: not supported on device %s", info->name, r->dev->name);
  z3i_call c = { .op = r->op, .attr = &r->attr, .dev = r->dev };
  for (int j = 0; j < info->n_out; j++) describe(r->out[j], &c.out[j]);
  for (int j = 0; j < info->n_aux; j++) describe(r->aux[j], &c.aux[j]);
  for (int i = 0; i < r->n_in; i++) {
    describe(r->in[i], &c.in[i]);
    if (r->in[i] == NULL) continue;
    if (info->flags & Z3I_OP_ELEM) z3i_broadcast_view(r->in[i], r->out[0]->ndim, r->out[0]->shape, 0, &c.in[i]);
    else if (r->op == Z3OP_matmul) z3i_broadcast_view(r->in[i], r->out[0]->ndim, r->out[0]->shape, 2, &c.in[i]);
  }
  return z3i_kernel_run(kernel, &c, Z3P_FORWARD, run_flops(r));
}

int z3i_op_forward(int op, z3_tensor *const *in, int n_in, const z3_attr *attr, z3i_run *r)
{
  memset(r, 0, sizeof *r);
  Z3I_REQUIRE(op >= 0 && op < Z3OP_COUNT, "apply: operation number is %d, wants 0 to %d", op, Z3OP_COUNT - 1);
  const z3i_opinfo *info = z3i_opinfo_get(op);
  Z3I_TRY(check_inputs(op, info, in, n_in));
  r->op = op;
  r->in = r->in_few;
  if (n_in > Z3I_MAX_IN && (r->in = z3i_alloc((size_t)n_in * sizeof *r->in)) == NULL) return Z3E_OOM;
  r->n_in = n_in;
  if (attr != NULL) r->attr = *attr;
  int rc = Z3E_OK;
  for (int i = 0; i < n_in && rc == Z3E_OK; i++) {
    if (in[i] == NULL) continue;
    r->dev = in[i]->storage->dev;
    if (info->flags & Z3I_OP_CONTIG) rc = z3i_tensor_contiguous(in[i], &r->in[i]);
    else z3_tensor_retain(r->in[i] = in[i]);
  }
  if (rc == Z3E_OK) rc = z3i_op_rule(op)(r);
  bool runs = rc == Z3E_OK && !(info->flags & (Z3I_OP_VIEW | Z3I_OP_HIGH));
  if (runs) rc = call_kernel(r, info);
  if (rc != Z3E_OK) {
    z3i_run_clear(r);
    return z3i_trace(__FILE__, __LINE__, __func__, rc);
  }
  return Z3E_OK;
}

int z3i_op1(int op, z3_tensor *a, z3_tensor *b, z3_tensor *c, const z3_attr *attr, z3_tensor **out)
{
  *out = NULL;
  z3_tensor *in[3] = { a, b, c };
  z3i_run r;
  Z3I_TRY(z3i_op_forward(op, in, c ? 3 : b ? 2 : 1, attr, &r));
  *out = r.out[0];
  r.out[0] = NULL;
  z3i_run_clear(&r);
  return Z3E_OK;
}

void z3i_meta_of(const z3_tensor *t, z3i_meta *out)
{
  *out = (z3i_meta){ .given = t != NULL };
  if (t == NULL) return;
  out->dtype = t->dtype;
  out->ndim = t->ndim;
  memcpy(out->shape, t->shape, sizeof *out->shape * (size_t)t->ndim);
}
