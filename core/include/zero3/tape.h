/* tape.h -- recording and backward.
 * Every recorded operation is a node that keeps what its backward needs; nodes live as long as a tensor that they
 * made or backward itself needs them. Backward walks the nodes in reverse order of recording. Per thread. */
#ifndef ZERO3_TAPE_H
#define ZERO3_TAPE_H
#ifndef Z3_CDEF
#include "zero3/ops.h"
#endif

/* Recording on this thread; returns the state before. Starts on. */
bool z3_grad_enable(bool on);
bool z3_grad_enabled(void);

/* Leaves only. Errors: Z3E_ARG for a recorded result; Z3E_DTYPE for integers. */
int z3_requires_grad_set(z3_tensor *t, bool on);
bool z3_requires_grad(const z3_tensor *t);
bool z3_is_leaf(const z3_tensor *t);
/* New reference to the same values without history. */
int z3_detach(z3_tensor *t, z3_tensor **out);
/* Gradient of a leaf: a new reference, NULL when there is none (yet). */
int z3_grad_get(z3_tensor *t, z3_tensor **out);
/* Replaces (NULL: drops) the gradient. */
int z3_grad_set(z3_tensor *t, z3_tensor *grad);
/* Gradients of t accumulate into grad (f32, same shape) from now on: written, not added, by the first backward after
 * each z3_grad_clear. The engine gives every parameter its buffer this way. */
int z3_grad_buffer(z3_tensor *t, z3_tensor *grad);
void z3_grad_clear(z3_tensor *t);
bool z3_grad_touched(const z3_tensor *t);        /* got a gradient since the last clear */

/* Backward of loss. grad: gradient of loss itself, NULL means 1 (loss must then be one element).
 * Errors: Z3E_STALE (second backward, a saved tensor changed in place), Z3E_ARG (loss has no history), Z3E_OOM.
 * Returns Z3E_SCRIPT when a script operation is reached: see z3_backward_script_*, then z3_backward_resume. */
int z3_backward(z3_tensor *loss, z3_tensor *grad);

/* A script operation: its outputs were computed by the script (unrecorded); this records one node from in to out.
 * tag comes back when backward reaches the node. */
int z3_script_record(z3_tensor *const *in, int n_in, z3_tensor *const *out, int n_out, int64_t tag);
int z3_backward_script_tag(int64_t *tag);
int z3_backward_script_grad(int j, z3_tensor **out);          /* gradient of output j: new reference, NULL if none */
int z3_backward_resume(z3_tensor *const *grad_in, int n);     /* gradients of the inputs, NULL where none */
void z3_backward_abort(void);                                  /* gives up a stopped backward */
/* Tags of script operations that backward has passed or that were freed without it, each once: what the script saved
 * for them can go. Fills up to n; returns how many. */
int z3_script_dropped(int64_t *tags, int n);

/* Activation recomputation: between begin and end operations run and are remembered as a program; what they would
 * save is dropped at end except the region's inputs, and computed again in backward by running the program. */
int z3_checkpoint_begin(void);
int z3_checkpoint_end(bool failed);

/* Module boundaries. A module registers its path once; enter/leave pairs nest. */
int z3_module_id(const char *path);              /* -1 on failure */
void z3_module_enter(int id);
void z3_module_leave(void);
int z3_module_depth(void);
void z3_module_unwind(int depth);                /* after a script error: leave until this depth */
const char *z3_module_current(void);             /* path of the innermost one; "" outside */
#endif
