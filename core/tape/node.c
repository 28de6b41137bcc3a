/* node.c -- life of a node: making, saving, freeing. Freeing is iterative: a long chain must not eat the stack. */
#include <stdio.h>

#include "tape/node.h"

z3i_node *z3i_node_new(int op, int n_in, int n_out)
{
  size_t in = (size_t)n_in, out = (size_t)n_out;
  size_t bytes = sizeof(z3i_node) + in * (sizeof(z3i_edge) + sizeof(z3i_meta) + sizeof(z3i_saved)) +
                 out * (sizeof(z3i_meta) + sizeof(z3_tensor *));
  z3i_node *node = z3i_alloc(bytes);
  if (node == NULL) return NULL;
  *node = (z3i_node){ .refs = 1, .op = op, .n_in = n_in, .n_out = n_out };
  node->edge = (z3i_edge *)(node + 1);
  node->in_meta = (z3i_meta *)(node->edge + in);
  node->out_meta = node->in_meta + in;
  node->in = (z3i_saved *)(node->out_meta + out);
  node->gout = (z3_tensor **)(node->in + in);
  return node;
}

void z3i_node_retain(z3i_node *node) { __atomic_add_fetch(&node->refs, 1, __ATOMIC_RELAXED); }

static void drop(z3i_saved *s)
{
  z3_tensor_release(s->tensor);
  s->tensor = NULL;
}

void z3i_node_drop_saved(z3i_node *node)
{
  for (int i = 0; i < node->n_in; i++) drop(&node->in[i]);
  for (int j = 0; j < Z3I_MAX_OUT; j++) drop(&node->out[j]);
  for (int j = 0; j < Z3I_MAX_AUX; j++) drop(&node->aux[j]);
  z3i_region_leave(node);
}

void z3i_node_drop_edges(z3i_node *node)
{
  for (int i = 0; i < node->n_in; i++) {
    z3_tensor_release(node->edge[i].leaf);
    z3i_node_release(node->edge[i].node);
    node->edge[i] = (z3i_edge){ 0 };
  }
}

/* Nodes without references wait in a list (linked through their mark) until the outermost call frees them. */
void z3i_node_release(z3i_node *node)
{
  static _Thread_local z3i_node *waiting;
  static _Thread_local bool freeing;
  if (node == NULL || __atomic_sub_fetch(&node->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
  node->mark = (uint64_t)(uintptr_t)waiting;
  waiting = node;
  if (freeing) return;
  freeing = true;
  while (waiting != NULL) {
    z3i_node *n = waiting;
    waiting = (z3i_node *)(uintptr_t)n->mark;
    z3i_node_drop_saved(n);
    for (int j = 0; j < n->n_out; j++) z3_tensor_release(n->gout[j]);
    z3i_node_drop_edges(n);
    if (n->op == Z3OP_script && !n->consumed) z3i_script_ended(n->tag);
    z3i_free(n);
  }
  freeing = false;
}

__attribute__((constructor)) static void install(void) { z3i_tensor_drop_node = z3i_node_release; }

/* Saved outputs are views without history: a node that held its own output would never be freed. */
static int save(z3i_saved *s, z3_tensor *t, bool is_output)
{
  if (t == NULL) return Z3E_OK;
  if (!is_output) z3_tensor_retain(s->tensor = t);
  else Z3I_TRY(z3i_tensor_view(t, t->ndim, t->shape, t->stride, t->offset, &s->tensor));
  s->version = t->storage->version;
  return Z3E_OK;
}

int z3i_node_save(z3i_node *node, const z3i_run *r)
{
  uint32_t what = z3i_opinfo_get(node->op)->save;
  for (int i = 0; i < Z3I_MIN(node->n_in, Z3I_MAX_IN); i++)
    if (what & ((uint32_t)Z3I_SAVE_IN0 << i)) Z3I_TRY(save(&node->in[i], r->in[i], false));
  for (int j = 0; j < Z3I_MAX_OUT; j++)
    if (what & ((uint32_t)Z3I_SAVE_OUT0 << j)) Z3I_TRY(save(&node->out[j], r->out[j], true));
  for (int j = 0; j < Z3I_MAX_AUX; j++)
    if (what & ((uint32_t)Z3I_SAVE_AUX0 << j)) Z3I_TRY(save(&node->aux[j], r->aux[j], false));
  return Z3E_OK;
}

void z3i_edge_to(z3i_edge *edge, z3_tensor *t)
{
  if (t == NULL || !t->requires_grad) return;
  if (t->node != NULL) {
    z3i_node_retain(edge->node = t->node);
    edge->out = t->out_index;
  } else {
    z3_tensor_retain(edge->leaf = t);
  }
}

const char *z3i_node_name(const z3i_node *node, char *buf, size_t room)
{
  const char *module = z3i_module_name(node->module);
  snprintf(buf, room, "%s%s%s", module, module[0] ? ": " : "", z3_op_name(node->op));
  return buf;
}
