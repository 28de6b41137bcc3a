/* update_kernels.c -- one optimizer update of a flat span: AdamW, Adam with L2, SGD, Lion.
 * Each reads and writes every array once (AdamW: 28 bytes a parameter plus 2 for the 16-bit weight).
 * Letters: p master weight, g gradient, m and v moments. Formulas and their order: PyTorch's single-tensor versions;
 * Chen et al. 2023 (Lion). The scalars are worked out in double, once per call. */
#include <math.h>

#include "device/cpu/isa/isa_kernels.h"
#include "device/cpu/isa/vec.h"
#include "zero3/optim.h"

/* Scalars of a call, as the loops use them. */
typedef struct scalars {
  float scale, decay, l2;                       /* of the gradient; 1 - lr wd; weight decay added to the gradient */
  float b1, one_b1, b2, one_b2;                 /* beta and 1 - beta */
  float step, unbias, eps;                      /* lr / bias1; 1 / sqrt bias2 */
  float lr, momentum;
} scalars;

static scalars scalars_of(const z3i_update *u)
{
  return (scalars){
    .scale = u->grad_scale,
    .decay = (float)(1.0 - u->lr * u->weight_decay),
    .l2 = (float)u->weight_decay,
    .b1 = (float)u->beta1,
    .one_b1 = (float)(1.0 - u->beta1),
    .b2 = (float)u->beta2,
    .one_b2 = (float)(1.0 - u->beta2),
    .step = u->bias1 != 0 ? (float)(u->lr / u->bias1) : 0.0f,
    .unbias = u->bias2 > 0 ? (float)(1 / sqrt(u->bias2)) : 0.0f,
    .eps = (float)u->eps,
    .lr = (float)u->lr,
    .momentum = (float)u->momentum,
  };
}

/* ---- loops ------------------------------------------------------------------------------------------------ */
static void adamw(float *restrict p, float *restrict m, float *restrict v, const float *restrict g, int64_t n,
                  scalars s)
{
  for (int64_t i = 0; i < n; i++) {
    float d = g[i] * s.scale, w = p[i] * s.decay;
    float a = m[i] + (d - m[i]) * s.one_b1, b = v[i] * s.b2 + d * d * s.one_b2;
    m[i] = a;
    v[i] = b;
    p[i] = w - s.step * a / (sqrtf(b) * s.unbias + s.eps);
  }
}

static void adam_l2(float *restrict p, float *restrict m, float *restrict v, const float *restrict g, int64_t n,
                    scalars s)
{
  for (int64_t i = 0; i < n; i++) {
    float d = g[i] * s.scale + s.l2 * p[i];
    float a = m[i] + (d - m[i]) * s.one_b1, b = v[i] * s.b2 + d * d * s.one_b2;
    m[i] = a;
    v[i] = b;
    p[i] = p[i] - s.step * a / (sqrtf(b) * s.unbias + s.eps);
  }
}

static void lion(float *restrict p, float *restrict m, const float *restrict g, int64_t n, scalars s)
{
  for (int64_t i = 0; i < n; i++) {
    float d = g[i] * s.scale, c = s.b1 * m[i] + s.one_b1 * d;
    float sign = c > 0.0f ? 1.0f : (c < 0.0f ? -1.0f : 0.0f);
    p[i] = p[i] * s.decay - s.lr * (c != c ? c : sign);
    m[i] = s.b2 * m[i] + s.one_b2 * d;
  }
}

static void sgd(float *restrict p, const float *restrict g, int64_t n, scalars s)
{
  for (int64_t i = 0; i < n; i++) p[i] = p[i] - s.lr * (g[i] * s.scale + s.l2 * p[i]);
}

static void sgd_momentum(float *restrict p, float *restrict m, const float *restrict g, int64_t n, scalars s,
                         bool first, bool nesterov)
{
  const float keep = first ? 0.0f : s.momentum, ahead = nesterov ? s.momentum : 1.0f, own = nesterov ? 1.0f : 0.0f;
  for (int64_t i = 0; i < n; i++) {
    float d = g[i] * s.scale + s.l2 * p[i], old = first ? 0.0f : m[i];
    float b = keep * old + d;
    m[i] = b;
    p[i] = p[i] - s.lr * (own * d + ahead * b);
  }
}

/* ---- blocks ----------------------------------------------------------------------------------------------- */
typedef struct update_task {
  const z3i_update *u;
  scalars s;
} update_task;

/* The 16-bit weight is rounded while its block of masters is still in the cache. */
static void update_block(void *ctx, int64_t lo, int64_t hi)
{
  const update_task *t = ctx;
  const z3i_update *u = t->u;
  int64_t n = hi - lo;
  float *p = u->master + lo, *m = u->m == NULL ? NULL : u->m + lo, *v = u->v == NULL ? NULL : u->v + lo;
  const float *g = u->grad + lo;
  if (u->kind == Z3_ADAMW) adamw(p, m, v, g, n, t->s);
  else if (u->kind == Z3_ADAM) adam_l2(p, m, v, g, n, t->s);
  else if (u->kind == Z3_LION) lion(p, m, g, n, t->s);
  else if (m == NULL) sgd(p, g, n, t->s);
  else sgd_momentum(p, m, g, n, t->s, u->first != 0, u->nesterov != 0);
  if (u->weight16 == NULL) return;
  z3i_store_f32((char *)u->weight16 + lo * z3i_dtype_bytes(u->weight16_dtype), u->weight16_dtype, p, n);
}

int Z3I_SYM(update)(const z3i_update *u)
{
  Z3I_REQUIRE(u->kind >= Z3_ADAMW && u->kind <= Z3_LION, "update: kind is %d, wants 0 to 3", u->kind);
  bool adam = u->kind == Z3_ADAMW || u->kind == Z3_ADAM;
  Z3I_REQUIRE(u->n == 0 || (u->master != NULL && u->grad != NULL), "update: %s is NULL",
              u->master == NULL ? "master" : "grad");
  Z3I_REQUIRE(u->n == 0 || u->m != NULL || u->kind == Z3_SGD, "update: m is NULL");
  Z3I_REQUIRE(u->n == 0 || u->v != NULL || !adam, "update: v is NULL");
  update_task t = { u, scalars_of(u) };
  z3i_for_blocks(u->n, Z3I_BLOCK, u->n, update_block, &t);
  return Z3E_OK;
}
