/* node.h -- what the tape is made of. Private to tape/.
 * A node is one recorded operation. It is referenced by the tensors that it made and by the edges of later nodes. */
#ifndef Z3I_NODE_H
#define Z3I_NODE_H
#include "ops/op.h"
#include "zero3/tape.h"

typedef struct z3i_node z3i_node;
typedef struct z3i_region z3i_region;

/* Where the gradient of an input goes: output number out of node, or a leaf; both NULL: nowhere. */
typedef struct z3i_edge {
  z3i_node *node;
  z3_tensor *leaf;
  int out;
} z3i_edge;

/* A value that backward will read, and the version of its storage when it was saved. */
typedef struct z3i_saved {
  z3_tensor *tensor;
  uint32_t version;
} z3i_saved;

struct z3i_node {
  int32_t refs;
  int op, n_in, n_out, module;
  uint64_t seq;                                   /* order of recording; backward runs it in reverse */
  uint64_t mark;                                  /* the backward that has collected this node */
  bool consumed;
  int64_t tag;                                    /* script operations: the script's own number */
  z3_attr attr;
  z3i_device *dev;
  z3i_region *region;                             /* NULL, or where saved values come from, by running entry again */
  int entry;
  z3i_edge *edge;                                 /* [n_in] */
  z3i_meta *in_meta, *out_meta;                   /* [n_in], [n_out] */
  z3i_saved *in;                                  /* [n_in] */
  z3i_saved out[Z3I_MAX_OUT], aux[Z3I_MAX_AUX];
  z3_tensor **gout;                               /* [n_out], gradients while backward runs */
};

z3i_node *z3i_node_new(int op, int n_in, int n_out);    /* zeroed, one reference; NULL on failure */
void z3i_node_retain(z3i_node *node);
void z3i_node_release(z3i_node *node);
void z3i_node_drop_saved(z3i_node *node);               /* and its region */
void z3i_node_drop_edges(z3i_node *node);
/* Saves what op.def says that backward reads. */
int z3i_node_save(z3i_node *node, const z3i_run *r);
void z3i_edge_to(z3i_edge *edge, z3_tensor *t);         /* t may be NULL */
/* "h.0.attn: linear" for messages. */
const char *z3i_node_name(const z3i_node *node, char *buf, size_t room);
const char *z3i_module_name(int id);

/* Module of the node that backward is at; 0 outside. Sets the owner of what is allocated. */
void z3i_module_set(int id);
int z3i_module_now(void);

/* ---- ended.c ---- */
void z3i_script_ended(int64_t tag);

/* ---- recompute.c ---- */
/* Remembers a run in the open region of this thread, if there is one; node may be NULL (unrecorded run). */
int z3i_region_note(const z3i_run *r, z3i_node *node);
bool z3i_region_open(void);
/* Fills the saved values of all nodes of the region. */
int z3i_region_replay(z3i_region *region);
void z3i_region_leave(z3i_node *node);                  /* the node needs the region no more */
#endif
