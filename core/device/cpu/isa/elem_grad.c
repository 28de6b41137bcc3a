/* elem_grad.c -- elementwise operations of one input, backward.
 * Letters: g gradient of the result, s what op.def saves (the input or the result), p = f0, q = f1. */
#include <math.h>

#include "device/cpu/isa/elem.h"
#include "device/cpu/isa/isa_kernels.h"

#define F(name, expr)                                                                               \
  static void name(float *restrict y, const float *const *in, const z3_attr *attr, int64_t n)      \
  {                                                                                                 \
    const float *restrict gs = in[0], *restrict ss = in[1];                                         \
    const float p = (float)attr->f[0], q = (float)attr->f[1];                                      \
    (void)p, (void)q;                                                                               \
    for (int64_t i = 0; i < n; i++) {                                                               \
      const float g = gs[i], s = ss[i];                                                             \
      y[i] = (expr);                                                                                \
    }                                                                                               \
  }

static inline float silu_slope(float x)
{
  float s = z3i_sigmoidf(x);
  return s * (1.0f + x * (1.0f - s));
}
/* Beyond 50 both slopes are 0 or 1 exactly; held there, so that infinity times zero can't arise. */
static inline float within_50(float x)
{
  x = x > 50.0f ? 50.0f : x;
  return x < -50.0f ? -50.0f : x;
}
static inline float gelu_tanh_slope(float x)
{
  x = within_50(x);
  float s = z3i_sigmoidf(x * z3i_fmaf(0.0713548163f * x, x, 1.59576912f));
  float inner = z3i_fmaf(0.214064449f * x, x, 1.59576912f);
  return z3i_fmaf(s * (1.0f - s) * x, inner, s);
}
static inline float gelu_erf_slope(float x)
{
  x = within_50(x);
  float cdf = 0.5f * (1.0f + z3i_erff(x * 0.707106781f));
  return z3i_fmaf(x * 0.398942280f, z3i_expf(-0.5f * x * x), cdf);
}

F(d_abs, s > 0.0f ? g : (s < 0.0f ? -g : 0.0f * s))
F(d_exp, g * s)
F(d_log, g / s)
F(d_sqrt, g / (2.0f * s))
F(d_rsqrt, -0.5f * g * (s * s * s))
F(d_tanh, g * (1.0f - s * s))
F(d_sigmoid, g * (s * (1.0f - s)))
F(d_relu, s <= 0.0f ? 0.0f : g)
F(d_silu, g * silu_slope(s))
F(d_gelu_tanh, g * gelu_tanh_slope(s))
F(d_gelu_erf, g * gelu_erf_slope(s))
F(d_clamp, s >= p && s <= q ? g : 0.0f)
F(d_rdiv_scalar, -g * ((p / s) / s))
F(d_pow_2, g * (2.0f * s))
F(d_pow_3, g * (3.0f * (s * s)))
F(d_pow_half, g * (0.5f / sqrtf(s)))
F(d_pow_any, g * (p * powf(s, p - 1.0f)))

/* Without a saved value. */
#define F0(name, expr)                                                                              \
  static void name(float *restrict y, const float *const *in, const z3_attr *attr, int64_t n)      \
  {                                                                                                 \
    const float *restrict g = in[0];                                                                \
    const float p = (float)attr->f[0];                                                              \
    (void)p;                                                                                        \
    for (int64_t i = 0; i < n; i++) y[i] = (expr);                                                  \
  }
F0(d_neg, -g[i])
F0(d_add_scalar, g[i])
F0(d_mul_scalar, g[i] * p)
F0(d_div_scalar, g[i] / p)

/* d/dx x^0 is 0 at every x, even where x^-1 isn't finite. */
static void d_pow_0(float *restrict y, const float *const *in, const z3_attr *attr, int64_t n)
{
  (void)in, (void)attr;
  memset(y, 0, sizeof *y * (size_t)n);
}

static z3i_elem_f32 pow_grad_of(double p)
{
  if (p == 0.0) return d_pow_0;
  if (p == 1.0) return d_add_scalar;
  if (p == 2.0) return d_pow_2;
  if (p == 3.0) return d_pow_3;
  return p == 0.5 ? d_pow_half : d_pow_any;
}

/* Angles beyond the reduction's range: as in elem_unary.c. */
#define TRIG(name, sign, mine, libm)                                                                \
  static void name(float *restrict y, const float *const *in, const z3_attr *attr, int64_t n)      \
  {                                                                                                 \
    const float *restrict g = in[0], *restrict x = in[1];                                           \
    int32_t far = 0;                                                                                \
    (void)attr;                                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                               \
      y[i] = sign g[i] * mine(x[i]);                                                                \
      far |= z3i_absf(x[i]) > Z3I_SINCOS_MAX;                                                       \
    }                                                                                               \
    for (int64_t i = 0; far && i < n; i++)                                                          \
      if (z3i_absf(x[i]) > Z3I_SINCOS_MAX) y[i] = sign g[i] * libm(x[i]);                           \
  }
TRIG(d_sin, +, z3i_cosf, cosf)
TRIG(d_cos, -, z3i_sinf, sinf)

int Z3I_SYM(unary_grad)(const z3i_call *c)
{
  static const struct {
    z3i_elem_f32 f;
    char saved;                                 /* 'x': input, 'y': result, 0: none */
  } table[Z3OP_COUNT] = {
    [Z3OP_neg] = { d_neg, 0 }, [Z3OP_abs] = { d_abs, 'x' }, [Z3OP_exp] = { d_exp, 'y' },
    [Z3OP_log] = { d_log, 'x' }, [Z3OP_sqrt] = { d_sqrt, 'y' }, [Z3OP_rsqrt] = { d_rsqrt, 'y' },
    [Z3OP_sin] = { d_sin, 'x' }, [Z3OP_cos] = { d_cos, 'x' }, [Z3OP_tanh] = { d_tanh, 'y' },
    [Z3OP_sigmoid] = { d_sigmoid, 'y' }, [Z3OP_relu] = { d_relu, 'y' }, [Z3OP_silu] = { d_silu, 'x' },
    [Z3OP_gelu_tanh] = { d_gelu_tanh, 'x' }, [Z3OP_gelu_erf] = { d_gelu_erf, 'x' }, [Z3OP_clamp] = { d_clamp, 'x' },
    [Z3OP_add_scalar] = { d_add_scalar, 0 }, [Z3OP_mul_scalar] = { d_mul_scalar, 0 },
    [Z3OP_rsub_scalar] = { d_neg, 0 }, [Z3OP_div_scalar] = { d_div_scalar, 0 },
    [Z3OP_rdiv_scalar] = { d_rdiv_scalar, 'x' }, [Z3OP_pow_scalar] = { d_pow_any, 'x' },
  };
  z3i_elem_f32 f = c->op == Z3OP_pow_scalar ? pow_grad_of(c->attr->f[0]) : table[c->op].f;
  Z3I_ASSERT(f != NULL);
  if (c->gin[0].data == NULL) return Z3E_OK;
  char saved = table[c->op].saved;
  const z3i_view *in[2] = { &c->gout[0], saved == 'x' ? &c->in[0] : &c->out[0] };
  z3i_elem_run(f, c->attr, &c->gin[0], c->gin_add & 1u, saved != 0 ? 2 : 1, in);
  return Z3E_OK;
}
