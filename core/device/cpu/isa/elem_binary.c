/* elem_binary.c -- elementwise operations of two or three inputs, forward and backward.
 * Letters: a, b, c inputs; g gradient of the result; y result. Formulas and NaN rules are PyTorch's. The gradients
 * have the result's broadcast shape; ops/ sums them down. */
#include <math.h>

#include "device/cpu/isa/elem.h"
#include "device/cpu/isa/isa_kernels.h"

/* ---- forward ------------------------------------------------------------------------------------------ */
#define F(name, expr)                                                                               \
  static void name(float *restrict y, const float *const *in, const z3_attr *attr, int64_t n)      \
  {                                                                                                 \
    const float *restrict as = in[0], *restrict bs = in[1];                                         \
    const float p = (float)attr->f[0];                                                              \
    (void)p;                                                                                        \
    for (int64_t i = 0; i < n; i++) {                                                               \
      const float a = as[i], b = bs[i];                                                             \
      y[i] = (expr);                                                                                \
    }                                                                                               \
  }
F(f_add, a + b)
F(f_sub, a - b)
F(f_mul, a * b)
F(f_div, a / b)
F(f_pow, powf(a, b))
F(f_maximum, a > b || a != a ? a : b)           /* a NaN on either side wins */
F(f_minimum, a < b || a != a ? a : b)
F(f_masked_fill, b != 0.0f ? p : a)
F(f_swiglu, a / (1.0f + z3i_expf(-a)) * b)
F(cmp_eq, a == b ? 1.0f : 0.0f)
F(cmp_ne, a != b ? 1.0f : 0.0f)
F(cmp_lt, a < b ? 1.0f : 0.0f)
F(cmp_le, a <= b ? 1.0f : 0.0f)
F(cmp_gt, a > b ? 1.0f : 0.0f)
F(cmp_ge, a >= b ? 1.0f : 0.0f)
static const z3i_elem_f32 cmp_f32[] = { cmp_eq, cmp_ne, cmp_lt, cmp_le, cmp_gt, cmp_ge };

static void f_where(float *restrict y, const float *const *in, const z3_attr *attr, int64_t n)
{
  const float *restrict c = in[0], *restrict a = in[1], *restrict b = in[2];
  (void)attr;
  for (int64_t i = 0; i < n; i++) {
    const float yes = a[i], no = b[i];
    y[i] = c[i] != 0.0f ? yes : no;
  }
}

#define G(name, expr)                                                                               \
  static void name(int64_t *restrict y, const int64_t *const *in, const z3_attr *attr, int64_t n)  \
  {                                                                                                 \
    const int64_t *restrict as = in[0], *restrict bs = in[1];                                       \
    const int64_t p = z3i_whole(attr->f[0]);                                                       \
    (void)p;                                                                                        \
    for (int64_t i = 0; i < n; i++) {                                                               \
      const int64_t a = as[i], b = bs[i];                                                           \
      y[i] = (int64_t)(expr);                                                                       \
    }                                                                                               \
  }
G(g_add, (uint64_t)a + (uint64_t)b)
G(g_sub, (uint64_t)a - (uint64_t)b)
G(g_mul, (uint64_t)a * (uint64_t)b)
G(g_pow, z3i_whole_pow(a, b))
G(g_maximum, a > b ? a : b)
G(g_minimum, a < b ? a : b)
G(g_masked_fill, b != 0 ? p : a)
G(g_eq, a == b)
G(g_ne, a != b)
G(g_lt, a < b)
G(g_le, a <= b)
G(g_gt, a > b)
G(g_ge, a >= b)
static const z3i_elem_i64 cmp_i64[] = { g_eq, g_ne, g_lt, g_le, g_gt, g_ge };

static void g_where(int64_t *restrict y, const int64_t *const *in, const z3_attr *attr, int64_t n)
{
  const int64_t *restrict c = in[0], *restrict a = in[1], *restrict b = in[2];
  (void)attr;
  for (int64_t i = 0; i < n; i++) {
    const int64_t yes = a[i], no = b[i];
    y[i] = c[i] != 0 ? yes : no;
  }
}

int Z3I_SYM(binary)(const z3i_call *c)
{
  static const z3i_elem_f32 f32[Z3OP_COUNT] = {
    [Z3OP_add] = f_add, [Z3OP_sub] = f_sub, [Z3OP_mul] = f_mul, [Z3OP_div] = f_div, [Z3OP_pow] = f_pow,
    [Z3OP_maximum] = f_maximum, [Z3OP_minimum] = f_minimum, [Z3OP_where] = f_where,
    [Z3OP_masked_fill] = f_masked_fill, [Z3OP_swiglu] = f_swiglu,
  };
  static const z3i_elem_i64 i64[Z3OP_COUNT] = {
    [Z3OP_add] = g_add, [Z3OP_sub] = g_sub, [Z3OP_mul] = g_mul, [Z3OP_pow] = g_pow,
    [Z3OP_maximum] = g_maximum, [Z3OP_minimum] = g_minimum, [Z3OP_where] = g_where,
    [Z3OP_masked_fill] = g_masked_fill,
  };
  int64_t cmp = c->attr->i[0];
  bool compare = c->op == Z3OP_compare;
  Z3I_REQUIRE(!compare || (cmp >= Z3CMP_EQ && cmp <= Z3CMP_GE),
              "compare: comparison is number %" PRId64 ", wants 0 to 5", cmp);
  int n_in = c->op == Z3OP_where ? 3 : 2;
  const z3i_view *in[3] = { &c->in[0], &c->in[1], &c->in[2] };
  bool whole = !z3i_dtype_float(c->out[0].dtype);
  for (int i = 0; i < n_in; i++) whole = whole && !z3i_dtype_float(in[i]->dtype);
  z3i_elem_i64 g = compare ? cmp_i64[cmp] : i64[c->op];
  if (whole && g != NULL) {
    z3i_elem_run_i64(g, c->attr, &c->out[0], n_in, in);
    return Z3E_OK;
  }
  z3i_elem_f32 f = compare ? cmp_f32[cmp] : f32[c->op];
  Z3I_ASSERT(f != NULL);
  z3i_elem_run(f, c->attr, &c->out[0], false, n_in, in);
  return Z3E_OK;
}

/* ---- backward: g, then a, b and for pow y -------------------------------------------------------------- */
#define D(name, expr)                                                                               \
  static void name(float *restrict d, const float *const *in, const z3_attr *attr, int64_t n)      \
  {                                                                                                 \
    const float *restrict gs = in[0], *restrict as = in[1], *restrict bs = in[2];                   \
    (void)attr;                                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                               \
      const float g = gs[i], a = as[i], b = bs[i];                                                  \
      (void)a, (void)b;                                                                             \
      d[i] = (expr);                                                                                \
    }                                                                                               \
  }
D(mul_a, g * b)
D(mul_b, g * a)
D(div_a, g / b)
D(div_b, -g * ((a / b) / b))
D(pow_a, b == 0.0f ? 0.0f : g * (b * powf(a, b - 1.0f)))
/* 0 where a is 0 and b isn't negative: log 0 would make it NaN */
D(pow_b, a == 0.0f && b >= 0.0f ? 0.0f : g * (powf(a, b) * z3i_logf(a)))
/* A tie gives half to each; with a NaN both get all, as in PyTorch. */
D(maximum_a, a == b ? 0.5f * g : (a < b ? 0.0f : g))
D(maximum_b, a == b ? 0.5f * g : (a > b ? 0.0f : g))
D(minimum_a, a == b ? 0.5f * g : (a > b ? 0.0f : g))
D(minimum_b, a == b ? 0.5f * g : (a < b ? 0.0f : g))

/* One saved input, or none. */
#define E(name, expr)                                                                               \
  static void name(float *restrict d, const float *const *in, const z3_attr *attr, int64_t n)      \
  {                                                                                                 \
    const float *restrict g = in[0], *restrict m = in[1];                                           \
    (void)attr, (void)m;                                                                            \
    for (int64_t i = 0; i < n; i++) d[i] = (expr);                                                  \
  }
E(same, g[i])
E(negated, -g[i])
E(where_set, m[i] != 0.0f ? g[i] : 0.0f)
E(where_clear, m[i] != 0.0f ? 0.0f : g[i])

/* silu(a) b: both gradients share the sigmoid, which is most of the work. */
typedef struct swiglu_task {
  z3i_flat g, a, b, da, db;
  bool add_a, add_b;
} swiglu_task;

static void swiglu_slopes(float *restrict da, float *restrict db, const float *restrict g, const float *restrict a,
                          const float *restrict b, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    float s = z3i_sigmoidf(a[i]);
    da[i] = g[i] * b[i] * (s * (1.0f + a[i] * (1.0f - s)));
    db[i] = g[i] * (a[i] * s);
  }
}

static void swiglu_block(void *ctx, int64_t lo, int64_t hi)
{
  const swiglu_task *t = ctx;
  int64_t n = hi - lo;
  float buf[3][Z3I_BLOCK], da[Z3I_BLOCK], db[Z3I_BLOCK];
  swiglu_slopes(da, db, z3i_get_f32(buf[0], &t->g, lo, n), z3i_get_f32(buf[1], &t->a, lo, n),
                z3i_get_f32(buf[2], &t->b, lo, n), n);
  if (t->da.data != NULL) z3i_put_f32(&t->da, lo, n, da, t->add_a);
  if (t->db.data != NULL) z3i_put_f32(&t->db, lo, n, db, t->add_b);
}

static void swiglu_grad(const z3i_call *c)
{
  swiglu_task t = { .g = z3i_flatten(&c->gout[0]), .a = z3i_flatten(&c->in[0]), .b = z3i_flatten(&c->in[1]),
                    .add_a = c->gin_add & 1u, .add_b = c->gin_add & 2u };
  if (c->gin[0].data != NULL) t.da = z3i_flatten(&c->gin[0]);
  if (c->gin[1].data != NULL) t.db = z3i_flatten(&c->gin[1]);
  z3i_for_blocks(t.g.n, Z3I_BLOCK, t.g.n, swiglu_block, &t);
}

int Z3I_SYM(binary_grad)(const z3i_call *c)
{
  static const struct {
    z3i_elem_f32 f[3];
    int n_in;                                   /* 1: g alone, 2: g and the mask, 3: g, a, b */
  } table[Z3OP_COUNT] = {
    [Z3OP_add] = { { same, same }, 1 }, [Z3OP_sub] = { { same, negated }, 1 }, [Z3OP_mul] = { { mul_a, mul_b }, 3 },
    [Z3OP_div] = { { div_a, div_b }, 3 }, [Z3OP_pow] = { { pow_a, pow_b }, 3 },
    [Z3OP_maximum] = { { maximum_a, maximum_b }, 3 }, [Z3OP_minimum] = { { minimum_a, minimum_b }, 3 },
    [Z3OP_where] = { { NULL, where_set, where_clear }, 2 }, [Z3OP_masked_fill] = { { where_clear }, 2 },
  };
  if (c->op == Z3OP_swiglu) {
    swiglu_grad(c);
    return Z3E_OK;
  }
  bool masked = table[c->op].n_in == 2;
  const z3i_view *mask = c->op == Z3OP_where ? &c->in[0] : &c->in[1];
  const z3i_view *in[3] = { &c->gout[0], masked ? mask : &c->in[0], &c->in[1] };
  for (int i = 0; i < 3; i++) {
    if (c->gin[i].data == NULL) continue;
    Z3I_ASSERT(table[c->op].f[i] != NULL);
    z3i_elem_run(table[c->op].f[i], c->attr, &c->gin[i], (c->gin_add >> i) & 1u, table[c->op].n_in, in);
  }
  return Z3E_OK;
}
