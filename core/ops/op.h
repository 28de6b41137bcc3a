/* op.h -- running one operation forward and backward: shape and dtype rules, then the device's kernel.
 * Private to ops/ and the folders above. Recording is tape/'s business.
 *
 * To add an operation: a line in op.def, its shape rule in one of rules_*.c (named in rules.def), its kernels
 * in the devices' tables; or, where backward is made of other operations, a gradient rule in grad_*.c. */
#ifndef Z3I_OP_H
#define Z3I_OP_H
#include "tensor/tensor.h"
#include "zero3/ops.h"

enum { Z3I_SAVE_IN0 = 1, Z3I_SAVE_OUT0 = 1 << 8, Z3I_SAVE_AUX0 = 1 << 10 };
enum { Z3I_OP_VIEW = 1, Z3I_OP_CONTIG = 2, Z3I_OP_ELEM = 4, Z3I_OP_NOGRAD = 8, Z3I_OP_HIGH = 16 };

/* A forward run: inputs as kernels get them (contiguous where wanted), and what came out. */
typedef struct z3i_run {
  int op, n_in;
  z3_attr attr;
  z3_tensor **in;                                 /* one reference each; NULL: not given */
  z3_tensor *in_few[Z3I_MAX_IN];
  z3_tensor *out[Z3I_MAX_OUT], *aux[Z3I_MAX_AUX];
  z3i_device *dev;
} z3i_run;

typedef struct z3i_meta {
  int8_t dtype, ndim;
  bool given;
  int64_t shape[Z3_MAX_DIMS];
} z3i_meta;

/* A backward run. gin[i] is made unless into[i] is given and the kernel can write there (then done has bit i). */
typedef struct z3i_back {
  int op, n_in;
  const z3_attr *attr;
  z3i_device *dev;
  const z3i_meta *in_meta, *out_meta;
  z3_tensor *const *in;                           /* saved values; NULL where not saved */
  z3_tensor *out[Z3I_MAX_OUT], *aux[Z3I_MAX_AUX];
  z3_tensor *gout[Z3I_MAX_OUT];                   /* gradient of each output; NULL: none arrived */
  const bool *want;
  z3_tensor *const *into;                         /* gradient buffers to write, or to add to where add[i] */
  const bool *add;
  z3_tensor **gin;                                /* results: a new reference each */
  bool *done;
} z3i_back;

typedef int (*z3i_rule)(z3i_run *r);              /* checks, then makes out and aux */
typedef int (*z3i_grad_rule)(z3i_back *b);

typedef struct z3i_opinfo {
  const char *name;
  int min_in, max_in, n_out, n_aux;
  uint32_t save, flags;
} z3i_opinfo;
const z3i_opinfo *z3i_opinfo_get(int op);
z3i_rule z3i_op_rule(int op);
z3i_grad_rule z3i_op_grad(int op);
int z3i_grad_kernel(z3i_back *b);                 /* the rule of most: the device's backward kernel */

/* Runs forward. On success r->out, r->aux and r->in hold references; z3i_run_clear drops them all.
 * On failure nothing is held. */
int z3i_op_forward(int op, z3_tensor *const *in, int n_in, const z3_attr *attr, z3i_run *r);
void z3i_run_clear(z3i_run *r);
int z3i_op_backward(z3i_back *b);

/* ---- for rules ---- */
/* The result j (or aux j) as a new contiguous tensor. */
int z3i_run_out(z3i_run *r, int j, int dtype, int ndim, const int64_t *shape);
int z3i_run_aux(z3i_run *r, int j, int dtype, int ndim, const int64_t *shape);
/* "linear: x" for messages: name of input i. */
const char *z3i_input_name(int op, int i);
/* Forward of an operation outside any tape, first result only (a new reference): gradient rules compute with it. */
int z3i_op1(int op, z3_tensor *a, z3_tensor *b, z3_tensor *c, const z3_attr *attr, z3_tensor **out);
/* Sums t (a broadcast shape) down to the shape of meta, in its dtype; may give t itself (a new reference). */
int z3i_sum_to(z3_tensor *t, const z3i_meta *meta, z3_tensor **out);
/* dst (+)= src, converting; equal shapes. */
int z3i_accumulate(z3_tensor *dst, z3_tensor *src, bool add);
/* Shows t as out's shape, repeated where it is broadcast; the last `keep` dims stay its own (matmul's 2). */
void z3i_broadcast_view(const z3_tensor *t, int out_ndim, const int64_t *out_shape, int keep, z3i_view *v);
/* Runs a kernel and reports it to the profiler (kind Z3P_...). */
int z3i_kernel_run(z3i_kernel kernel, const z3i_call *c, int kind, double flops);
double z3i_op_flops(int op, const z3i_meta *in, const z3_attr *attr);
void z3i_meta_of(const z3_tensor *t, z3i_meta *out);
/* A tensor of (B,H,T,D) whose memory is laid out (B,T,H,D): heads side by side, as the layers around attention want. */
int z3i_heads_alloc(z3i_device *dev, int dtype, const int64_t *shape_BHTD, z3_tensor **out);
#endif
