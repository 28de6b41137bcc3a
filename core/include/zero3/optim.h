/* optim.h -- updates of a parameter from its gradient, and the global norm.
 * Legend: S = elements of the span updated (a whole parameter, or this rank's shard).
 * Sources: Kingma & Ba 2015 (Adam), Loshchilov & Hutter 2019 (AdamW), Chen et al. 2023 (Lion), PyTorch's SGD. */
#ifndef ZERO3_OPTIM_H
#define ZERO3_OPTIM_H
#ifndef Z3_CDEF
#include "zero3/tensor.h"
#endif

enum { Z3_ADAMW = 0, Z3_ADAM = 1, Z3_SGD = 2, Z3_LION = 3 };

typedef struct z3_update_args {
  int kind;                                     /* Z3_ADAMW: decoupled decay; Z3_ADAM: L2 added to the gradient */
  int nesterov;
  double lr, beta1, beta2, eps, weight_decay, momentum;
  double grad_scale;                            /* multiplies the gradient first: 1/(loss scale * count), clip */
  int64_t step;                                 /* 1-based */
} z3_update_args;

/* Updates in place.
 * master [in,out] (S) f32    m, v [in,out] (S) f32 or NULL where kind has none (sgd without momentum: m NULL)
 * grad   [in]     (S) f32    weight16 [out] (S) bf16/f16 or NULL: the new master rounded, same pass
 * adamw: p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps)
 * Errors: Z3E_ARG (step < 1, NULL), Z3E_SHAPE, Z3E_DTYPE. On error nothing is changed. */
int z3_update(z3_tensor *master, z3_tensor *m, z3_tensor *v, z3_tensor *grad, z3_tensor *weight16,
              const z3_update_args *args);

/* sum of squares in double (fixed order) and how many elements are nan or inf. */
int z3_sumsq(z3_tensor *t, double *sum, int64_t *nonfinite);
#endif
