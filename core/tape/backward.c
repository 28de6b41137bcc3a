/* backward.c -- walks recorded nodes in reverse order of recording and accumulates gradients.
 * It can stop at a script's operation and go on later, so its state is an object; a script's backward may itself run a
 * backward, so the objects form a stack. */
#include <stdlib.h>

#include "prof/prof.h"
#include "tape/node.h"

typedef struct walk {
  struct walk *outer;
  z3i_node **node;                                /* in order of running */
  int count, room, at;
  uint64_t mark;
} walk;

static _Thread_local walk *top;
static _Thread_local uint64_t next_mark = 1;

static void walk_free(walk *w)
{
  for (int i = 0; i < w->count; i++) {
    z3i_node *n = w->node[i];
    for (int j = 0; j < n->n_out; j++) {
      z3_tensor_release(n->gout[j]);
      n->gout[j] = NULL;
    }
    z3i_node_release(n);
  }
  z3i_free(w->node);
  z3i_free(w);
}

static void pop(void)
{
  walk *w = top;
  top = w->outer;
  walk_free(w);
  z3i_module_set(z3i_module_now());
}

static int collect(walk *w, z3i_node *n)
{
  if (n == NULL || n->mark == w->mark) return Z3E_OK;
  char name[256];
  if (n->consumed)
    return Z3I_FAIL(Z3E_STALE,
                    "backward: %s was used by a backward already and its saved values are gone: run forward again",
                    z3i_node_name(n, name, sizeof name));
  if (w->count == w->room) {
    int room = w->room ? 2 * w->room : 256;
    z3i_node **bigger = z3i_realloc(w->node, (size_t)room * sizeof *bigger);
    if (bigger == NULL) return Z3E_OOM;
    w->node = bigger;
    w->room = room;
  }
  n->mark = w->mark;
  z3i_node_retain(w->node[w->count++] = n);
  return Z3E_OK;
}

static int by_seq(const void *a, const void *b)
{
  uint64_t x = (*(z3i_node *const *)a)->seq, y = (*(z3i_node *const *)b)->seq;
  return x < y ? 1 : x > y ? -1 : 0;
}

/* ---- accumulation ---- */
static bool exclusive(const z3_tensor *t)
{
  return t->refs == 1 && t->storage->refs == 1 && t->contiguous && !t->storage->wrapped;
}

static int to_leaf(z3_tensor *leaf, z3_tensor *g)
{
  if (leaf->grad_is_buffer) {
    Z3I_TRY(z3i_accumulate(leaf->grad, g, leaf->grad_touched));
    leaf->grad_touched = true;
    return Z3E_OK;
  }
  if (leaf->grad != NULL) return z3i_accumulate(leaf->grad, g, true);
  if (exclusive(g) && g->dtype == leaf->dtype) {
    z3_tensor_retain(leaf->grad = g);
    return Z3E_OK;
  }
  Z3I_TRY(z3i_tensor_alloc(g->storage->dev, leaf->dtype, leaf->ndim, leaf->shape, Z3M_GRAD, &leaf->grad));
  return z3i_accumulate(leaf->grad, g, false);
}

static int to_node(z3i_node *n, int j, z3_tensor *g)
{
  z3_tensor *have = n->gout[j];
  if (have == NULL) {
    z3_tensor_retain(n->gout[j] = g);
    return Z3E_OK;
  }
  if (exclusive(have)) return z3i_accumulate(have, g, true);
  z3_tensor *sum;
  Z3I_TRY(z3i_op1(Z3OP_add, have, g, NULL, NULL, &sum));
  z3_tensor_release(have);
  n->gout[j] = sum;
  return Z3E_OK;
}

static int deliver(const z3i_edge *e, z3_tensor *g)
{
  return e->node != NULL ? to_node(e->node, e->out, g) : e->leaf != NULL ? to_leaf(e->leaf, g) : Z3E_OK;
}

/* A further part of a tensor that already has a gradient of its own: added in place of a full tensor of zeros. */
static int narrow_in_place(z3i_node *n, bool *done)
{
  const z3i_edge *e = &n->edge[0];
  z3_tensor *have = e->node != NULL ? e->node->gout[e->out] : NULL;
  *done = n->op == Z3OP_narrow && have != NULL && exclusive(have);
  if (!*done) return Z3E_OK;
  z3_tensor *part;
  Z3I_TRY(z3i_op1(Z3OP_narrow, have, NULL, NULL, &n->attr, &part));
  int rc = z3i_accumulate(part, n->gout[0], true);
  z3_tensor_release(part);
  return rc;
}

/* ---- one node ---- */
static int saved_check(const z3i_node *n, const z3i_saved *s, const char *what, int i)
{
  if (s->tensor == NULL || s->tensor->storage->version == s->version) return Z3E_OK;
  char name[256];
  return Z3I_FAIL(Z3E_STALE,
                  "backward: %s: %s %d was changed in place after forward used it: clone it before changing it",
                  z3i_node_name(n, name, sizeof name), what, i);
}

static bool appears_once(const z3i_node *n, int i)
{
  for (int k = 0; k < n->n_in; k++)
    if (k != i && n->edge[k].leaf == n->edge[i].leaf) return false;
  return true;
}

typedef struct scratch {                          /* arrays per input of the node at hand */
  z3_tensor *in[64], *into[64], *gin[64];
  bool want[64], add[64], done[64];
} scratch;

static int back_setup(z3i_node *n, z3i_back *b, scratch *s)
{
  *b = (z3i_back){ .op = n->op, .n_in = n->n_in, .attr = &n->attr, .dev = n->dev, .in_meta = n->in_meta,
                   .out_meta = n->out_meta, .in = s->in, .want = s->want, .into = s->into, .add = s->add, .gin = s->gin,
                   .done = s->done };
  for (int i = 0; i < n->n_in; i++) {
    Z3I_TRY(saved_check(n, &n->in[i], "input", i));
    z3_tensor *leaf = n->edge[i].leaf;
    s->in[i] = n->in[i].tensor;
    s->want[i] = n->edge[i].node != NULL || leaf != NULL;
    s->into[i] = leaf != NULL && leaf->grad_is_buffer && appears_once(n, i) ? leaf->grad : NULL;
    s->add[i] = leaf != NULL && leaf->grad_touched;
    s->gin[i] = NULL;
    s->done[i] = false;
  }
  for (int j = 0; j < Z3I_MAX_OUT; j++) {
    Z3I_TRY(saved_check(n, &n->out[j], "result", j));
    b->out[j] = n->out[j].tensor;
    b->gout[j] = j < n->n_out ? n->gout[j] : NULL;
  }
  for (int j = 0; j < Z3I_MAX_AUX; j++) b->aux[j] = n->aux[j].tensor;
  return Z3E_OK;
}

static int node_run(z3i_node *n)
{
  bool done = false;
  scratch s;
  z3i_back b;
  if (n->region != NULL) Z3I_TRY(z3i_region_replay(n->region));
  Z3I_TRY(narrow_in_place(n, &done));
  if (done) return Z3E_OK;
  Z3I_REQUIRE(n->n_in <= 64, "backward: %s has %d inputs, at most 64 can be differentiated", z3_op_name(n->op),
              n->n_in);
  Z3I_TRY(back_setup(n, &b, &s));
  Z3I_TRY(z3i_op_backward(&b));
  int rc = Z3E_OK;
  for (int i = 0; i < n->n_in; i++) {
    if (s.done[i]) n->edge[i].leaf->grad_touched = true;
    if (s.gin[i] == NULL) continue;
    if (rc == Z3E_OK) {
      z3_tensor *g = s.gin[i];
      /* a passed-on gradient must not look exclusive while this node still holds it */
      for (int j = 0; j < n->n_out; j++)
        if (n->gout[j] == g) { z3_tensor_release(g); n->gout[j] = NULL; }
      rc = deliver(&n->edge[i], g);
    }
    z3_tensor_release(s.gin[i]);
  }
  return rc;
}

static void node_finish(z3i_node *n)
{
  z3i_node_drop_saved(n);
  z3i_node_drop_edges(n);
  if (n->op == Z3OP_script && !n->consumed) z3i_script_ended(n->tag);
  n->consumed = true;
  for (int j = 0; j < n->n_out; j++) {
    z3_tensor_release(n->gout[j]);
    n->gout[j] = NULL;
  }
}

static bool has_gradient(const z3i_node *n)
{
  for (int j = 0; j < n->n_out; j++)
    if (n->gout[j] != NULL) return true;
  return false;
}

/* Nodes after the one at hand were recorded before it, so all their gradients have arrived when their turn comes. */
static int walk_run(walk *w)
{
  bool before = z3_grad_enable(false);
  int rc = Z3E_OK, phase = z3i_prof_phase;
  z3i_prof_phase = Z3P_BACKWARD;
  for (; w->at < w->count; w->at++) {
    z3i_node *n = w->node[w->at];
    if (has_gradient(n)) {
      z3i_module_set(n->module);
      if (n->op == Z3OP_script) {
        rc = Z3E_SCRIPT;
        break;
      }
      rc = node_run(n);
      if (rc != Z3E_OK) {
        z3i_error_prefix(z3i_module_name(n->module));
        break;
      }
    }
    node_finish(n);
  }
  z3_grad_enable(before);
  z3i_prof_phase = phase;
  if (rc != Z3E_SCRIPT) pop();
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

/* ---- public ---- */
static int seed_gradient(z3_tensor *loss, z3_tensor *grad, z3_tensor **out)
{
  char a[Z3I_SHAPE_TEXT], b[Z3I_SHAPE_TEXT];
  *out = NULL;
  if (grad == NULL) {
    if (loss->numel != 1)
      return Z3I_FAIL(Z3E_SHAPE, "backward: the tensor is %s, wants one element, or a gradient for it",
                      z3i_shape_text(loss->ndim, loss->shape, a));
    Z3I_TRY(z3i_tensor_alloc(loss->storage->dev, loss->dtype, loss->ndim, loss->shape, Z3M_ACTIVATION, out));
    return z3_tensor_fill(*out, 1);
  }
  Z3I_TRY(z3i_tensor_check(grad, "backward: gradient"));
  if (grad->ndim != loss->ndim || memcmp(grad->shape, loss->shape, sizeof *grad->shape * (size_t)grad->ndim) != 0)
    return Z3I_FAIL(Z3E_SHAPE, "backward: gradient %s does not fit the tensor %s",
                    z3i_shape_text(grad->ndim, grad->shape, a), z3i_shape_text(loss->ndim, loss->shape, b));
  if (grad->dtype == loss->dtype) {
    z3_tensor_retain(*out = grad);
    return Z3E_OK;
  }
  return z3i_op1(Z3OP_cast, grad, NULL, NULL, &(z3_attr){ .i = { loss->dtype } }, out);
}

static int backward(z3_tensor *loss, z3_tensor *grad)
{
  Z3I_TRY(z3i_tensor_check(loss, "backward"));
  Z3I_REQUIRE(
      loss->requires_grad,
      "backward: the tensor has no history: no input of it requires a gradient, or it was made without recording");
  z3_tensor *g;
  int rc = seed_gradient(loss, grad, &g);
  if (rc != Z3E_OK || loss->node == NULL) {
    if (rc == Z3E_OK) rc = to_leaf(loss, g);
    z3_tensor_release(g);
    return rc;
  }
  walk *w = z3i_alloc(sizeof *w);
  if (w == NULL) {
    z3_tensor_release(g);
    return Z3E_OOM;
  }
  w->mark = next_mark++;
  w->outer = top;
  top = w;
  rc = collect(w, loss->node);
  for (int i = 0; i < w->count && rc == Z3E_OK; i++)
    for (int k = 0; k < w->node[i]->n_in && rc == Z3E_OK; k++) rc = collect(w, w->node[i]->edge[k].node);
  if (rc != Z3E_OK) {
    z3_tensor_release(g);
    pop();
    return z3i_trace(__FILE__, __LINE__, __func__, rc);
  }
  qsort(w->node, (size_t)w->count, sizeof *w->node, by_seq);
  loss->node->gout[loss->out_index] = g;
  return walk_run(w);
}

int z3_backward(z3_tensor *loss, z3_tensor *grad)
{
  int64_t start = z3i_prof_enter();
  int rc = backward(loss, grad);
  z3i_prof_leave(Z3P_CALL_BACKWARD, start);
  return rc;
}

static int stopped_node(z3i_node **out)
{
  *out = top != NULL && top->at < top->count ? top->node[top->at] : NULL;
  Z3I_REQUIRE(*out != NULL && (*out)->op == Z3OP_script, "backward: not stopped at a script operation");
  return Z3E_OK;
}

int z3_backward_script_tag(int64_t *tag)
{
  z3i_node *n;
  *tag = 0;
  Z3I_TRY(stopped_node(&n));
  *tag = n->tag;
  return Z3E_OK;
}

int z3_backward_script_grad(int j, z3_tensor **out)
{
  z3i_node *n;
  *out = NULL;
  Z3I_TRY(stopped_node(&n));
  Z3I_REQUIRE(j >= 0 && j < n->n_out, "script operation: output %d, it has %d", j, n->n_out);
  if (n->gout[j] != NULL) z3_tensor_retain(*out = n->gout[j]);
  return Z3E_OK;
}

static int script_deliver(z3i_node *n, z3_tensor *g, int i)
{
  char a[Z3I_SHAPE_TEXT], b[Z3I_SHAPE_TEXT];
  const z3i_meta *m = &n->in_meta[i];
  Z3I_TRY(z3i_tensor_check(g, "script operation: gradient"));
  if (g->ndim != m->ndim || memcmp(g->shape, m->shape, sizeof *g->shape * (size_t)g->ndim) != 0)
    return Z3I_FAIL(Z3E_SHAPE, "script operation: gradient %d is %s, its input is %s", i + 1,
                    z3i_shape_text(g->ndim, g->shape, a), z3i_shape_text(m->ndim, m->shape, b));
  z3_tensor *own = NULL;                          /* the script may keep g: never add into it */
  Z3I_TRY(z3i_op1(Z3OP_cast, g, NULL, NULL, &(z3_attr){ .i = { m->dtype } }, &own));
  int rc = deliver(&n->edge[i], own);
  z3_tensor_release(own);
  return rc;
}

int z3_backward_resume(z3_tensor *const *grad_in, int count)
{
  z3i_node *n;
  Z3I_TRY(stopped_node(&n));
  int rc = Z3E_OK;
  if (count != n->n_in) rc = Z3I_FAIL(Z3E_ARG, "script operation: %d gradients for %d inputs", count, n->n_in);
  for (int i = 0; i < n->n_in && rc == Z3E_OK; i++)
    if (grad_in[i] != NULL && (n->edge[i].node != NULL || n->edge[i].leaf != NULL))
      rc = script_deliver(n, grad_in[i], i);
  if (rc != Z3E_OK) {
    pop();
    return rc;
  }
  node_finish(n);
  top->at++;
  int64_t start = z3i_prof_enter();
  rc = walk_run(top);
  z3i_prof_leave(Z3P_CALL_BACKWARD, start);
  return rc;
}

void z3_backward_abort(void)
{
  if (top != NULL) pop();
}
