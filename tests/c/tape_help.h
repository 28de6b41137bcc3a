/* tape_help.h -- short ways to make tensors and run operations in tests of the tape. */
#ifndef TAPE_HELP_H
#define TAPE_HELP_H
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "zero3/device.h"
#include "zero3/tape.h"

#define OK(call)                                                                        \
  do {                                                                                  \
    int ok_rc_ = (call);                                                                \
    if (ok_rc_ != Z3E_OK) fail_msg("%s: %s\n%s", #call, z3_last_error(), z3_error_chain()); \
  } while (0)

/* A (rows, cols) f32 tensor of varied numbers; seed chooses them. */
static inline z3_tensor *matrix(int64_t rows, int64_t cols, unsigned seed, bool leaf)
{
  z3_tensor *t;
  int64_t shape[2] = { rows, cols };
  OK(z3_tensor_new(Z3D_CPU, Z3T_F32, 2, shape, Z3M_OTHER, &t));
  void *p;
  OK(z3_tensor_data(t, &p));
  for (int64_t i = 0; i < rows * cols; i++) ((float *)p)[i] = (float)sin(1.7 * (double)i + 3.1 * seed) * 0.8f + 0.1f;
  if (leaf) OK(z3_requires_grad_set(t, true));
  return t;
}

static inline z3_tensor *op3(int op, z3_tensor *a, z3_tensor *b, z3_tensor *c, z3_attr attr)
{
  z3_tensor *in[3] = { a, b, c }, *out[2] = { NULL, NULL };
  OK(z3_apply(op, in, c ? 3 : b ? 2 : 1, &attr, out));
  z3_tensor_release(out[1]);
  return out[0];
}
static inline z3_tensor *op1(int op, z3_tensor *a) { return op3(op, a, NULL, NULL, (z3_attr){ 0 }); }
static inline z3_tensor *op2(int op, z3_tensor *a, z3_tensor *b) { return op3(op, a, b, NULL, (z3_attr){ 0 }); }

static inline float *values(z3_tensor *t)
{
  void *p;
  OK(z3_tensor_data(t, &p));
  return p;
}

static inline double item(z3_tensor *t)
{
  double v;
  OK(z3_tensor_item(t, &v));
  return v;
}
#endif
