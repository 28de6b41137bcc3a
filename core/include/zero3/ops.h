/* ops.h -- operations on tensors. Each runs at once on its inputs' device and is recorded when one of its inputs
 * requires a gradient and recording is on (see tape.h). The list, with inputs and attributes, is op.def. */
#ifndef ZERO3_OPS_H
#define ZERO3_OPS_H
#ifndef Z3_CDEF
#include "zero3/tensor.h"
#endif

enum {
#define Z3OP(name, min_in, max_in, n_out, n_aux, save, flags) Z3OP_##name,
#include "op.def"
#undef Z3OP
  Z3OP_COUNT
};
enum { Z3CMP_EQ, Z3CMP_NE, Z3CMP_LT, Z3CMP_LE, Z3CMP_GT, Z3CMP_GE };
enum { Z3RED_SUM, Z3RED_MEAN, Z3RED_NONE };
enum { Z3_ATTR_F = 4, Z3_ATTR_I = 10 };

typedef struct z3_attr {
  double f[4];
  int64_t i[10];
} z3_attr;

/* Runs one operation.
 * op    [in]  Z3OP_...
 * in    [in]  n_in tensors; optional ones may be NULL
 * attr  [in]  attributes (op.def); NULL means all zero
 * out   [out] room for the operation's n_out results; each is a new reference, NULL on failure
 * Errors: Z3E_ARG, Z3E_SHAPE, Z3E_DTYPE name the operation, the argument and what it was; Z3E_OOM; Z3E_STALE. */
int z3_apply(int op, z3_tensor *const *in, int n_in, const z3_attr *attr, z3_tensor **out);

const char *z3_op_name(int op);
#endif
