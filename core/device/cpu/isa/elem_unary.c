/* elem_unary.c -- elementwise operations of one input, forward.
 * Letters: x input, y result, p = f0, q = f1 of the attributes as floats. Formulas and NaN rules are PyTorch's. */
#include <math.h>

#include "device/cpu/isa/elem.h"
#include "device/cpu/isa/isa_kernels.h"

#define F(name, expr)                                                                               \
  static void name(float *restrict y, const float *const *in, const z3_attr *attr, int64_t n)      \
  {                                                                                                 \
    const float *restrict xs = in[0];                                                               \
    const float p = (float)attr->f[0], q = (float)attr->f[1];                                      \
    (void)p, (void)q;                                                                               \
    for (int64_t i = 0; i < n; i++) {                                                               \
      const float x = xs[i];                                                                        \
      y[i] = (expr);                                                                                \
    }                                                                                               \
  }

/* gelu_tanh: 0.5 (1 + tanh u) is sigmoid(2 u); 2 u = x (1.5957691 + 0.071354816 x^2) */
static inline float gelu_tanh_of(float x)
{
  return x / (1.0f + z3i_expf(-(x * z3i_fmaf(0.0713548163f * x, x, 1.59576912f))));
}

F(f_neg, -x)
F(f_abs, z3i_absf(x))
F(f_exp, z3i_expf(x))
F(f_log, z3i_logf(x))
F(f_sqrt, sqrtf(x))
F(f_rsqrt, 1.0f / sqrtf(x))
F(f_tanh, z3i_tanhf(x))
F(f_sigmoid, z3i_sigmoidf(x))
F(f_relu, x <= 0.0f ? 0.0f : x)
F(f_silu, x / (1.0f + z3i_expf(-x)))
F(f_gelu_tanh, gelu_tanh_of(x))
F(f_gelu_erf, 0.5f * x * (1.0f + z3i_erff(x * 0.707106781f)))
F(f_isfinite, x - x == 0.0f ? 1.0f : 0.0f)
F(f_add_scalar, x + p)
F(f_mul_scalar, x * p)
F(f_rsub_scalar, p - x)
F(f_div_scalar, x / p)
F(f_rdiv_scalar, p / x)
/* min(max(x, low), high): NaN stays, high wins where low > high */
F(f_clamp, (x < p ? p : x) > q ? q : (x < p ? p : x))

/* Angles beyond the reduction's range are rare: found in a second pass, left to libm. */
#define TRIG(name, mine, libm)                                                                      \
  static void name(float *restrict y, const float *const *in, const z3_attr *attr, int64_t n)      \
  {                                                                                                 \
    const float *restrict x = in[0];                                                                \
    int32_t far = 0;                                                                                \
    (void)attr;                                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                               \
      y[i] = mine(x[i]);                                                                            \
      far |= z3i_absf(x[i]) > Z3I_SINCOS_MAX;                                                       \
    }                                                                                               \
    for (int64_t i = 0; far && i < n; i++)                                                          \
      if (z3i_absf(x[i]) > Z3I_SINCOS_MAX) y[i] = libm(x[i]);                                       \
  }
TRIG(f_sin, z3i_sinf, sinf)
TRIG(f_cos, z3i_cosf, cosf)

F(pow_2, x * x)
F(pow_3, x * x * x)
F(pow_minus_1, 1.0f / x)
F(pow_minus_2, 1.0f / (x * x))
F(pow_any, powf(x, p))

static z3i_elem_f32 pow_of(double p)
{
  if (p == 2.0) return pow_2;
  if (p == 3.0) return pow_3;
  if (p == 0.5) return f_sqrt;
  if (p == -0.5) return f_rsqrt;
  if (p == -1.0) return pow_minus_1;
  return p == -2.0 ? pow_minus_2 : pow_any;
}

F(cmp_eq, x == p ? 1.0f : 0.0f)
F(cmp_ne, x != p ? 1.0f : 0.0f)
F(cmp_lt, x < p ? 1.0f : 0.0f)
F(cmp_le, x <= p ? 1.0f : 0.0f)
F(cmp_gt, x > p ? 1.0f : 0.0f)
F(cmp_ge, x >= p ? 1.0f : 0.0f)
static const z3i_elem_f32 cmp_f32[] = { cmp_eq, cmp_ne, cmp_lt, cmp_le, cmp_gt, cmp_ge };

/* ---- integers: 64-bit, wrapping ----------------------------------------------------------------------- */
#define G(name, expr)                                                                               \
  static void name(int64_t *restrict y, const int64_t *const *in, const z3_attr *attr, int64_t n)  \
  {                                                                                                 \
    const int64_t *restrict xs = in[0];                                                             \
    const int64_t p = z3i_whole(attr->f[0]), q = z3i_whole(attr->f[1]);                                     \
    const double fp = attr->f[0];                                                                   \
    (void)p, (void)q, (void)fp;                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                               \
      const int64_t x = xs[i];                                                                      \
      (void)x;                                                                                      \
      y[i] = (int64_t)(expr);                                                                       \
    }                                                                                               \
  }
G(g_neg, 0u - (uint64_t)x)
G(g_abs, x < 0 ? 0u - (uint64_t)x : (uint64_t)x)
G(g_relu, x < 0 ? 0 : x)
G(g_clamp, (x < p ? p : x) > q ? q : (x < p ? p : x))
G(g_one, 1)
G(g_add, (uint64_t)x + (uint64_t)p)
G(g_mul, (uint64_t)x * (uint64_t)p)
G(g_rsub, (uint64_t)p - (uint64_t)x)
G(g_pow, z3i_whole_pow(x, p))
G(g_eq, (double)p == fp && x == p)
G(g_ne, (double)p != fp || x != p)
G(g_lt, (double)x < fp || ((double)p == fp && x < p))
G(g_le, (double)p == fp ? x <= p : (double)x <= fp)
G(g_gt, (double)x > fp || ((double)p == fp && x > p))
G(g_ge, (double)p == fp ? x >= p : (double)x >= fp)
static const z3i_elem_i64 cmp_i64[] = { g_eq, g_ne, g_lt, g_le, g_gt, g_ge };

/* ---- kernels ------------------------------------------------------------------------------------------ */
static z3i_elem_f32 f32_of(const z3i_call *c)
{
  static const z3i_elem_f32 table[Z3OP_COUNT] = {
    [Z3OP_neg] = f_neg, [Z3OP_abs] = f_abs, [Z3OP_exp] = f_exp, [Z3OP_log] = f_log, [Z3OP_sqrt] = f_sqrt,
    [Z3OP_rsqrt] = f_rsqrt, [Z3OP_sin] = f_sin, [Z3OP_cos] = f_cos, [Z3OP_tanh] = f_tanh,
    [Z3OP_sigmoid] = f_sigmoid, [Z3OP_relu] = f_relu, [Z3OP_silu] = f_silu, [Z3OP_gelu_tanh] = f_gelu_tanh,
    [Z3OP_gelu_erf] = f_gelu_erf, [Z3OP_clamp] = f_clamp, [Z3OP_isfinite] = f_isfinite,
    [Z3OP_add_scalar] = f_add_scalar, [Z3OP_mul_scalar] = f_mul_scalar, [Z3OP_rsub_scalar] = f_rsub_scalar,
    [Z3OP_div_scalar] = f_div_scalar, [Z3OP_rdiv_scalar] = f_rdiv_scalar,
  };
  if (c->op == Z3OP_pow_scalar) return pow_of(c->attr->f[0]);
  if (c->op == Z3OP_cmp_scalar) return cmp_f32[c->attr->i[0]];
  return table[c->op];
}

static z3i_elem_i64 i64_of(const z3i_call *c)
{
  static const z3i_elem_i64 table[Z3OP_COUNT] = {
    [Z3OP_neg] = g_neg, [Z3OP_abs] = g_abs, [Z3OP_relu] = g_relu, [Z3OP_clamp] = g_clamp, [Z3OP_isfinite] = g_one,
    [Z3OP_add_scalar] = g_add, [Z3OP_mul_scalar] = g_mul, [Z3OP_rsub_scalar] = g_rsub,
    [Z3OP_pow_scalar] = g_pow,
  };
  return c->op == Z3OP_cmp_scalar ? cmp_i64[c->attr->i[0]] : table[c->op];
}

/* A scalar is compared as a value of x's own dtype: 0.1 equals the bf16 nearest to it. */
static z3_attr rounded_scalar(const z3i_call *c)
{
  z3_attr a = *c->attr;
  float p = (float)a.f[0];
  uint16_t half;
  if (c->in[0].dtype == Z3T_BF16 || c->in[0].dtype == Z3T_F16) {
    z3i_store_f32(&half, c->in[0].dtype, &p, 1);
    z3i_load_f32(&p, &half, c->in[0].dtype, 1);
  }
  a.f[0] = (double)p;
  return a;
}

int Z3I_SYM(unary)(const z3i_call *c)
{
  Z3I_REQUIRE(c->op != Z3OP_cmp_scalar || (c->attr->i[0] >= Z3CMP_EQ && c->attr->i[0] <= Z3CMP_GE),
              "cmp_scalar: comparison is number %" PRId64 ", wants 0 to 5", c->attr->i[0]);
  const z3i_view *in[1] = { &c->in[0] };
  bool whole_numbers = !z3i_dtype_float(c->in[0].dtype) && !z3i_dtype_float(c->out[0].dtype);
  bool scalar = c->op == Z3OP_add_scalar || c->op == Z3OP_mul_scalar || c->op == Z3OP_rsub_scalar;
  bool fraction = scalar && c->attr->f[0] != (double)z3i_whole(c->attr->f[0]);
  z3i_elem_i64 g = whole_numbers && !fraction ? i64_of(c) : NULL;
  if (g != NULL) {
    z3i_elem_run_i64(g, c->attr, &c->out[0], 1, in);
    return Z3E_OK;
  }
  z3i_elem_f32 f = f32_of(c);
  Z3I_ASSERT(f != NULL);
  z3_attr attr = c->op == Z3OP_cmp_scalar ? rounded_scalar(c) : *c->attr;
  z3i_elem_run(f, &attr, &c->out[0], false, 1, in);
  return Z3E_OK;
}
