/* elem_refs.h -- elementwise operations in double, one line each, and calls of their kernels: what the tests of the
 * elementwise kernels compare with. Gradients are checked against differences of these, so there is one formula only.
 */
#ifndef TEST_ELEM_REFS_H
#define TEST_ELEM_REFS_H
#include "model_kernels.h"

typedef struct elem_case {
  int op, n_in;
  double f0, f1;
  int64_t i0;
  double scale, offset;                         /* inputs: offset + scale * normal */
  bool positive;                                /* inputs: |value| + 0.1 */
  int saved;                                    /* backward reads: 1 inputs, 2 the result */
} elem_case;

/* Every operation at points where it is smooth; kinks and special values have tests of their own. */
static const elem_case elem_cases[] = {
  { Z3OP_neg, 1, .scale = 3 },
  { Z3OP_abs, 1, .scale = 3, .offset = 0, .saved = 1 },
  { Z3OP_exp, 1, .scale = 2, .saved = 2 },
  { Z3OP_log, 1, .scale = 3, .positive = true, .saved = 1 },
  { Z3OP_sqrt, 1, .scale = 3, .positive = true, .saved = 2 },
  { Z3OP_rsqrt, 1, .scale = 3, .positive = true, .saved = 2 },
  { Z3OP_sin, 1, .scale = 9, .saved = 1 },
  { Z3OP_cos, 1, .scale = 9, .saved = 1 },
  { Z3OP_tanh, 1, .scale = 1, .saved = 2 },
  { Z3OP_sigmoid, 1, .scale = 3, .saved = 2 },
  { Z3OP_relu, 1, .scale = 3, .saved = 2 },
  { Z3OP_silu, 1, .scale = 3, .saved = 1 },
  { Z3OP_gelu_tanh, 1, .scale = 2, .saved = 1 },
  { Z3OP_gelu_erf, 1, .scale = 2, .saved = 1 },
  { Z3OP_clamp, 1, .f0 = -1.01, .f1 = 2.02, .scale = 3, .saved = 1 },
  { Z3OP_add_scalar, 1, .f0 = 0.7, .scale = 3 },
  { Z3OP_mul_scalar, 1, .f0 = -1.3, .scale = 3 },
  { Z3OP_rsub_scalar, 1, .f0 = 0.7, .scale = 3 },
  { Z3OP_div_scalar, 1, .f0 = 3, .scale = 3 },
  { Z3OP_rdiv_scalar, 1, .f0 = 2, .scale = 3, .positive = true, .saved = 3 },
  { Z3OP_pow_scalar, 1, .f0 = 2, .scale = 2, .saved = 1 },
  { Z3OP_pow_scalar, 1, .f0 = 3, .scale = 1, .saved = 1 },
  { Z3OP_pow_scalar, 1, .f0 = 0.5, .scale = 2, .positive = true, .saved = 1 },
  { Z3OP_pow_scalar, 1, .f0 = -0.5, .scale = 2, .positive = true, .saved = 1 },
  { Z3OP_pow_scalar, 1, .f0 = -1, .scale = 2, .positive = true, .saved = 1 },
  { Z3OP_pow_scalar, 1, .f0 = -2, .scale = 2, .positive = true, .saved = 1 },
  { Z3OP_pow_scalar, 1, .f0 = 1, .scale = 2, .saved = 1 },
  { Z3OP_pow_scalar, 1, .f0 = 0, .scale = 2, .saved = 1 },
  { Z3OP_pow_scalar, 1, .f0 = 1.7, .scale = 2, .positive = true, .saved = 1 },
  { Z3OP_add, 2, .scale = 3 },
  { Z3OP_sub, 2, .scale = 3 },
  { Z3OP_mul, 2, .scale = 2, .saved = 1 },
  { Z3OP_div, 2, .scale = 2, .positive = true, .saved = 1 },
  { Z3OP_pow, 2, .scale = 1, .positive = true, .saved = 3 },
  { Z3OP_maximum, 2, .scale = 3, .saved = 1 },
  { Z3OP_minimum, 2, .scale = 3, .saved = 1 },
  { Z3OP_swiglu, 2, .scale = 2, .saved = 1 },
};

static inline double elem_ref(int op, const double *x, double f0, double f1)
{
  double a = x[0], b = x[1], c = x[2], u;
  switch (op) {
  case Z3OP_copy: return a;
  case Z3OP_neg: return -a;
  case Z3OP_abs: return fabs(a);
  case Z3OP_exp: return exp(a);
  case Z3OP_log: return log(a);
  case Z3OP_sqrt: return sqrt(a);
  case Z3OP_rsqrt: return 1 / sqrt(a);
  case Z3OP_sin: return sin(a);
  case Z3OP_cos: return cos(a);
  case Z3OP_tanh: return tanh(a);
  case Z3OP_sigmoid: return 1 / (1 + exp(-a));
  case Z3OP_relu: return a < 0 ? 0 : a;
  case Z3OP_silu: return a / (1 + exp(-a));
  case Z3OP_gelu_tanh:
    u = sqrt(2 / 3.14159265358979323846) * (a + 0.044715 * a * a * a);
    return 0.5 * a * (1 + tanh(u));
  case Z3OP_gelu_erf: return 0.5 * a * (1 + erf(a / sqrt(2)));
  case Z3OP_clamp: return a < f0 ? f0 : a > f1 ? f1 : a;
  case Z3OP_add_scalar: return a + f0;
  case Z3OP_mul_scalar: return a * f0;
  case Z3OP_rsub_scalar: return f0 - a;
  case Z3OP_div_scalar: return a / f0;
  case Z3OP_rdiv_scalar: return f0 / a;
  case Z3OP_pow_scalar: return pow(a, f0);
  case Z3OP_add: return a + b;
  case Z3OP_sub: return a - b;
  case Z3OP_mul: return a * b;
  case Z3OP_div: return a / b;
  case Z3OP_pow: return pow(a, b);
  case Z3OP_maximum: return a > b ? a : b;
  case Z3OP_minimum: return a < b ? a : b;
  case Z3OP_swiglu: return a / (1 + exp(-a)) * b;
  case Z3OP_where: return a != 0 ? b : c;
  case Z3OP_masked_fill: return b != 0 ? f0 : a;
  default: fail_msg("no reference for operation %d", op); return 0;
  }
}

static inline buf elem_input(const elem_case *e, int dtype, int64_t n, uint64_t seed)
{
  buf b = buf_rnd(dtype, n, seed, e->scale, e->offset);
  for (int64_t i = 0; e->positive && i < n; i++) set(&b, i, fabs(get(&b, i)) + 0.1);
  return b;
}
static inline z3_attr elem_attr(const elem_case *e) { return (z3_attr){ .f = { e->f0, e->f1 }, .i = { e->i0 } }; }

/* Element i of a view, row-major. */
static inline double at(const z3i_view *v, int64_t i)
{
  int64_t offset = 0;
  for (int d = v->ndim - 1; d >= 0; d--) {
    offset += i % v->shape[d] * v->stride[d];
    i /= v->shape[d];
  }
  buf b = { (char *)v->data + offset * z3i_dtype_bytes(v->dtype), v->dtype, 1 };
  return get(&b, 0);
}
#endif
