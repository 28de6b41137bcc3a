/* recompute.c -- activation recomputation by replay: a region remembers its operations as a program over numbered
 * values, holds only what came in from outside, and runs the program again when backward reaches it.
 * Source: Chen et al. 2016 (arXiv:1604.06174). Random masks come from keys in the attributes, so a replay has the
 * same bits. A value is dropped after its last use; operations whose results backward never reads aren't run. */
#include "prof/prof.h"
#include "tape/node.h"

typedef struct entry {
  int op, n_in, n_out, first_in, first_out;       /* first_in: place in region->inputs; first_out: value number */
  z3_attr attr;
  z3i_node *node;                                 /* no reference: the node takes itself out (z3i_region_leave) */
  bool run;
} entry;

typedef struct outside {                          /* a value made outside: kept, and checked for later changes */
  z3_tensor *tensor;
  uint32_t version;
  int value;
} outside;

struct z3i_region {
  int32_t refs;
  uint32_t id;
  entry *entries;
  int *inputs;                                    /* value numbers; -1: not given */
  outside *outsides;
  int n_entries, n_inputs, n_outsides, n_values;
  int entry_room, input_room, outside_room;
  bool replayed;
};

static _Thread_local z3i_region *open_region;
static _Thread_local int open_depth;
static _Thread_local uint32_t next_id = 1;

bool z3i_region_open(void) { return open_region != NULL; }
static void region_release(z3i_region *region)
{
  if (region == NULL || --region->refs > 0) return;
  for (int i = 0; i < region->n_outsides; i++) z3_tensor_release(region->outsides[i].tensor);
  z3i_free(region->entries);
  z3i_free(region->inputs);
  z3i_free(region->outsides);
  z3i_free(region);
}

void z3i_region_leave(z3i_node *node)
{
  if (node->region == NULL) return;
  node->region->entries[node->entry].node = NULL;
  region_release(node->region);
  node->region = NULL;
}

int z3_checkpoint_begin(void)
{
  if (open_depth++ > 0 || !z3_grad_enabled()) return Z3E_OK;   /* a region inside a region belongs to the outer one */
  open_region = z3i_alloc(sizeof *open_region);
  if (open_region == NULL) {
    open_depth--;
    return Z3E_OOM;
  }
  open_region->refs = 1;
  open_region->id = next_id++;
  return Z3E_OK;
}

int z3_checkpoint_end(bool failed)
{
  (void)failed;                                   /* what a failed region recorded goes with its tensors */
  Z3I_REQUIRE(open_depth > 0, "checkpoint: end without begin");
  if (--open_depth > 0) return Z3E_OK;
  z3i_region *region = open_region;
  open_region = NULL;
  region_release(region);
  return Z3E_OK;
}

/* Room for one more element of an array. */
static int grow(void **array, int count, int *room, size_t element)
{
  if (count < *room) return Z3E_OK;
  int bigger = *room ? 2 * *room : 64;
  void *p = z3i_realloc(*array, (size_t)bigger * element);
  if (p == NULL) return Z3E_OOM;
  *array = p;
  *room = bigger;
  return Z3E_OK;
}

static int value_of(z3i_region *g, z3_tensor *t, int *value)
{
  *value = -1;
  if (t == NULL) return Z3E_OK;
  if (t->region == g->id) {
    *value = (int)t->value;
    return Z3E_OK;
  }
  for (int i = 0; i < g->n_outsides; i++)
    if (g->outsides[i].tensor == t) {
      *value = g->outsides[i].value;
      return Z3E_OK;
    }
  Z3I_TRY(grow((void **)&g->outsides, g->n_outsides, &g->outside_room, sizeof *g->outsides));
  *value = g->n_values++;
  g->outsides[g->n_outsides++] = (outside){ .tensor = t, .version = t->storage->version, .value = *value };
  z3_tensor_retain(t);
  return Z3E_OK;
}

int z3i_region_note(const z3i_run *r, z3i_node *node)
{
  z3i_region *g = open_region;
  const z3i_opinfo *info = z3i_opinfo_get(r->op);
  Z3I_TRY(grow((void **)&g->entries, g->n_entries, &g->entry_room, sizeof *g->entries));
  entry *e = &g->entries[g->n_entries];
  *e = (entry){
    .op = r->op, .n_in = r->n_in, .n_out = info->n_out, .first_in = g->n_inputs, .attr = r->attr, .node = node
  };
  for (int i = 0; i < r->n_in; i++) {
    int value;
    Z3I_TRY(value_of(g, r->in[i], &value));
    Z3I_TRY(grow((void **)&g->inputs, g->n_inputs, &g->input_room, sizeof *g->inputs));
    g->inputs[g->n_inputs++] = value;
  }
  e->first_out = g->n_values;
  for (int j = 0; j < info->n_out; j++) {
    r->out[j]->region = g->id;
    r->out[j]->value = (uint32_t)g->n_values++;
  }
  if (node != NULL) {
    node->region = g;
    g->refs++;
    node->entry = g->n_entries;
  }
  g->n_entries++;
  return Z3E_OK;
}

/* ---- replay ---- */
/* Which entries must run: those whose results backward or another such entry reads. last[v]: last entry reading v. */
static void plan(z3i_region *g, bool *needed, int *last)
{
  for (int v = 0; v < g->n_values; v++) last[v] = -1;
  for (int k = g->n_entries - 1; k >= 0; k--) {
    entry *e = &g->entries[k];
    uint32_t save = e->node != NULL ? z3i_opinfo_get(e->op)->save : 0;
    e->run = save >= (uint32_t)Z3I_SAVE_OUT0;     /* backward reads a result or an aux result */
    for (int j = 0; j < e->n_out; j++) e->run = e->run || needed[e->first_out + j];
    for (int i = 0; i < e->n_in; i++) {
      int v = g->inputs[e->first_in + i];
      bool read = e->run || (i < Z3I_MAX_IN && (save & ((uint32_t)Z3I_SAVE_IN0 << i)));
      if (v < 0 || !read) continue;
      needed[v] = true;
      if (last[v] < 0) last[v] = k;
    }
  }
}

/* An entry that isn't run only hands its inputs over to its node, in the form in which kernels want them. */
static int hand_over(entry *e, z3_tensor **in)
{
  const z3i_opinfo *info = z3i_opinfo_get(e->op);
  bool any_layout = (info->flags & Z3I_OP_ELEM) || e->op == Z3OP_matmul;
  z3_tensor *laid_out[Z3I_MAX_IN] = { 0 };
  int rc = Z3E_OK, n = Z3I_MIN(e->n_in, Z3I_MAX_IN);
  for (int i = 0; i < n && rc == Z3E_OK; i++) {
    if (in[i] == NULL || !(info->save & ((uint32_t)Z3I_SAVE_IN0 << i))) continue;
    if (any_layout) z3_tensor_retain(laid_out[i] = in[i]);
    else rc = z3i_tensor_contiguous(in[i], &laid_out[i]);
  }
  z3i_run r = { .op = e->op, .n_in = n, .in = laid_out };
  if (rc == Z3E_OK) rc = z3i_node_save(e->node, &r);
  for (int i = 0; i < n; i++) z3_tensor_release(laid_out[i]);
  return rc;
}

static int run_entry(z3i_region *g, entry *e, z3_tensor **values)
{
  z3_tensor *few[64], **in = few;
  if (e->n_in > 64 && (in = z3i_alloc((size_t)e->n_in * sizeof *in)) == NULL) return Z3E_OOM;
  for (int i = 0; i < e->n_in; i++) {
    int v = g->inputs[e->first_in + i];
    in[i] = v >= 0 ? values[v] : NULL;
  }
  bool live = e->node != NULL;
  int rc = Z3E_OK;
  if (!e->run) {
    if (live) rc = hand_over(e, in);
  } else {
    z3i_run r;
    rc = z3i_op_forward(e->op, in, e->n_in, &e->attr, &r);
    if (rc == Z3E_OK && live) rc = z3i_node_save(e->node, &r);
    for (int j = 0; j < e->n_out && rc == Z3E_OK; j++) {
      values[e->first_out + j] = r.out[j];
      r.out[j] = NULL;
    }
    if (r.in != NULL) z3i_run_clear(&r);
  }
  if (in != few) z3i_free(in);
  return rc;
}

static int replay(z3i_region *g, z3_tensor **values, const int *last)
{
  for (int i = 0; i < g->n_outsides; i++) {
    const outside *o = &g->outsides[i];
    if (o->tensor->storage->version != o->version)
      return Z3I_FAIL(
          Z3E_STALE,
          "backward: a tensor that a recomputed region used was changed in place after forward: clone it first");
    z3_tensor_retain(values[o->value] = o->tensor);
  }
  for (int k = 0; k < g->n_entries; k++) {
    entry *e = &g->entries[k];
    Z3I_TRY(run_entry(g, e, values));
    for (int i = 0; i < e->n_in; i++) {
      int v = g->inputs[e->first_in + i];
      if (v < 0 || last[v] > k || values[v] == NULL) continue;
      z3_tensor_release(values[v]);
      values[v] = NULL;
    }
  }
  return Z3E_OK;
}

int z3i_region_replay(z3i_region *g)
{
  if (g->replayed) return Z3E_OK;
  size_t n = (size_t)Z3I_MAX(g->n_values, 1);
  z3_tensor **values = z3i_alloc(n * sizeof *values);
  bool *needed = z3i_alloc(n * sizeof *needed);
  int *last = z3i_alloc(n * sizeof *last);
  int rc = values != NULL && needed != NULL && last != NULL ? Z3E_OK : Z3E_OOM;
  if (rc == Z3E_OK) {
    int phase = z3i_prof_phase;
    z3i_prof_phase = Z3P_RECOMPUTE;
    plan(g, needed, last);
    rc = replay(g, values, last);
    z3i_prof_phase = phase;
  }
  for (int v = 0; values != NULL && v < g->n_values; v++) z3_tensor_release(values[v]);
  z3i_free(values);
  z3i_free(needed);
  z3i_free(last);
  g->replayed = rc == Z3E_OK;
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}
