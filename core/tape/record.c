/* record.c -- runs an operation and records it; what a leaf is; gradients of leaves. */
#include "prof/prof.h"
#include "tape/node.h"

static _Thread_local bool enabled = true;
static _Thread_local uint64_t next_seq = 1;

bool z3_grad_enable(bool on)
{
  bool before = enabled;
  enabled = on;
  return before;
}

bool z3_grad_enabled(void) { return enabled; }

static void made_by(z3_tensor *t, z3i_node *node, int j)
{
  z3i_node_retain(t->node = node);
  t->out_index = (uint8_t)j;
  t->requires_grad = true;
}

static int node_fill(z3i_node *node, z3_tensor *const *in, z3_tensor *const *out)
{
  node->seq = next_seq++;
  node->module = z3i_module_now();
  for (int i = 0; i < node->n_in; i++) {
    z3i_meta_of(in[i], &node->in_meta[i]);
    z3i_edge_to(&node->edge[i], in[i]);
  }
  for (int j = 0; j < node->n_out; j++) z3i_meta_of(out[j], &node->out_meta[j]);
  return Z3E_OK;
}

static int record(z3i_run *r, z3_tensor *const *in, const z3i_opinfo *info)
{
  z3i_node *node = z3i_node_new(r->op, r->n_in, info->n_out);
  if (node == NULL) return Z3E_OOM;
  node->attr = r->attr;
  node->dev = r->dev;
  int rc = node_fill(node, in, r->out);
  if (rc == Z3E_OK) rc = z3i_region_open() ? z3i_region_note(r, node) : z3i_node_save(node, r);
  for (int j = 0; j < info->n_out && rc == Z3E_OK; j++)
    if (z3i_dtype_float(r->out[j]->dtype)) made_by(r->out[j], node, j);
  z3i_node_release(node);
  return rc;
}

static bool differentiable(const z3i_run *r, z3_tensor *const *in, const z3i_opinfo *info)
{
  if ((info->flags & Z3I_OP_NOGRAD) || !z3i_dtype_float(r->out[0]->dtype)) return false;
  for (int i = 0; i < r->n_in; i++)
    if (in[i] != NULL && in[i]->requires_grad) return true;
  return false;
}

static int apply(int op, z3_tensor *const *in, int n_in, const z3_attr *attr, z3_tensor **out)
{
  if (op >= 0 && op < Z3OP_COUNT)
    for (int j = 0; j < z3i_opinfo_get(op)->n_out; j++) out[j] = NULL;
  z3i_run r;
  Z3I_TRY(z3i_op_forward(op, in, n_in, attr, &r));
  const z3i_opinfo *info = z3i_opinfo_get(op);
  int rc = Z3E_OK;
  if (enabled) {
    if (differentiable(&r, in, info)) rc = record(&r, in, info);
    else if (z3i_region_open()) rc = z3i_region_note(&r, NULL);
  }
  for (int j = 0; j < info->n_out && rc == Z3E_OK; j++) {
    out[j] = r.out[j];
    r.out[j] = NULL;
  }
  z3i_run_clear(&r);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

int z3_apply(int op, z3_tensor *const *in, int n_in, const z3_attr *attr, z3_tensor **out)
{
  int64_t start = z3i_prof_enter();
  int rc = apply(op, in, n_in, attr, out);
  z3i_prof_leave(Z3P_CALL_APPLY, start);
  return rc;
}

int z3_script_record(z3_tensor *const *in, int n_in, z3_tensor *const *out, int n_out, int64_t tag)
{
  Z3I_REQUIRE(n_in >= 0 && n_out >= 1 && n_out <= 64, "script operation: %d inputs, %d outputs, wants 1 to 64 outputs",
              n_in, n_out);
  bool any = false;
  for (int i = 0; i < n_in; i++) {
    if (in[i] == NULL) continue;
    Z3I_TRY(z3i_tensor_check(in[i], "script operation: input"));
    any = any || in[i]->requires_grad;
  }
  for (int j = 0; j < n_out; j++) {
    Z3I_TRY(z3i_tensor_check(out[j], "script operation: output"));
    Z3I_REQUIRE(out[j]->node == NULL && !out[j]->requires_grad, "script operation: output %d has a history of its own: "
                "compute it without recording, or return a new tensor", j);
  }
  if (!enabled || !any) return Z3E_OK;
  z3i_node *node = z3i_node_new(Z3OP_script, n_in, n_out);
  if (node == NULL) return Z3E_OOM;
  node->tag = tag;
  node->dev = out[0]->storage->dev;
  node_fill(node, in, out);
  for (int j = 0; j < n_out; j++)
    if (z3i_dtype_float(out[j]->dtype)) made_by(out[j], node, j);
  z3i_node_release(node);
  return Z3E_OK;
}

/* ---- leaves ---- */
int z3_requires_grad_set(z3_tensor *t, bool on)
{
  Z3I_TRY(z3i_tensor_check(t, "requires_grad"));
  Z3I_REQUIRE(t->node == NULL, "requires_grad: the tensor is a recorded result, not a leaf: detach it first");
  if (on && !z3i_dtype_float(t->dtype))
    return Z3I_FAIL(Z3E_DTYPE, "requires_grad: the tensor is %s, wants a floating type", z3_dtype_name(t->dtype));
  t->requires_grad = on;
  return Z3E_OK;
}

bool z3_requires_grad(const z3_tensor *t) { return z3i_tensor_ok(t) && t->requires_grad; }
bool z3_is_leaf(const z3_tensor *t) { return z3i_tensor_ok(t) && t->node == NULL; }

int z3_detach(z3_tensor *t, z3_tensor **out)
{
  *out = NULL;
  Z3I_TRY(z3i_tensor_check(t, "detach"));
  return z3i_tensor_view(t, t->ndim, t->shape, t->stride, t->offset, out);
}

int z3_grad_get(z3_tensor *t, z3_tensor **out)
{
  *out = NULL;
  Z3I_TRY(z3i_tensor_check(t, "grad"));
  if (t->grad == NULL || (t->grad_is_buffer && !t->grad_touched)) return Z3E_OK;
  z3_tensor_retain(*out = t->grad);
  return Z3E_OK;
}

static int fits(const z3_tensor *t, const z3_tensor *grad, bool any_float)
{
  char a[Z3I_SHAPE_TEXT], b[Z3I_SHAPE_TEXT];
  bool same = grad->ndim == t->ndim && memcmp(grad->shape, t->shape, sizeof *t->shape * (size_t)t->ndim) == 0;
  if (!same)
    return Z3I_FAIL(Z3E_SHAPE, "grad: %s does not fit the tensor's %s", z3i_shape_text(grad->ndim, grad->shape, a),
                    z3i_shape_text(t->ndim, t->shape, b));
  bool type_ok = any_float ? z3i_dtype_float(grad->dtype) : grad->dtype == Z3T_F32 && grad->contiguous;
  if (!type_ok)
    return Z3I_FAIL(Z3E_DTYPE, "grad: %s does not fit a %s tensor", z3_dtype_name(grad->dtype),
                    z3_dtype_name(t->dtype));
  return Z3E_OK;
}

int z3_grad_set(z3_tensor *t, z3_tensor *grad)
{
  Z3I_TRY(z3i_tensor_check(t, "grad"));
  if (grad != NULL) {
    Z3I_TRY(z3i_tensor_check(grad, "grad"));
    Z3I_TRY(fits(t, grad, true));
    z3_tensor_retain(grad);
  }
  z3_tensor_release(t->grad);
  t->grad = grad;
  t->grad_is_buffer = t->grad_touched = false;
  return Z3E_OK;
}

int z3_grad_buffer(z3_tensor *t, z3_tensor *grad)
{
  Z3I_TRY(z3i_tensor_check(grad, "grad buffer"));
  Z3I_TRY(z3i_tensor_check(t, "grad buffer"));
  Z3I_TRY(fits(t, grad, false));
  Z3I_TRY(z3_grad_set(t, grad));
  t->grad_is_buffer = true;
  return Z3E_OK;
}

void z3_grad_clear(z3_tensor *t)
{
  if (!z3i_tensor_ok(t)) return;
  if (!t->grad_is_buffer) {
    z3_tensor_release(t->grad);
    t->grad = NULL;
  }
  t->grad_touched = false;
}

bool z3_grad_touched(const z3_tensor *t)
{
  return z3i_tensor_ok(t) && t->grad != NULL && (!t->grad_is_buffer || t->grad_touched);
}
