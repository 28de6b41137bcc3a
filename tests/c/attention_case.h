/* attention_case.h -- one problem of attention with its data, and what plain double loops make of it. */
#ifndef TEST_ATTENTION_CASE_H
#define TEST_ATTENTION_CASE_H
#include "device/cpu/isa/attn_levels.h"
#include "products.h"

typedef struct problem {
  int64_t B, H, K, T, S, D;
  bool causal;
  const char *mask;                               /* dims that it has: "bhts", "--ts", "b--s", "---s", or NULL */
  int dtype, grad_dtype;
  uint32_t add;
  const char *order;                              /* of q, k, v in memory */
  float spread;                                   /* size of q and k */
} problem;

typedef struct level {
  const char *name;
  z3i_kernel forward, backward;
} level;

static inline int find_levels(level out[3])
{
  int n = 0;
#ifdef __x86_64__
  if (__builtin_cpu_supports("sse4.2")) out[n++] = (level){ "v2", z3i_attention_v2, z3i_attention_grad_v2 };
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    out[n++] = (level){ "v3", z3i_attention_v3, z3i_attention_grad_v3 };
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    out[n++] = (level){ "v4", z3i_attention_v4, z3i_attention_grad_v4 };
#else
  out[n++] = (level){ "base", z3i_attention_base, z3i_attention_grad_base };
#endif
  return n;
}

typedef struct data {
  block q, k, v, mask, out, lse, dout, grad[3], before[3];
  z3_attr attr;
  z3i_call forward, backward;
} data;

static void stretch(block *b, float by)
{
  for (int64_t i = 0; i < b->count; i++)
    number_set(b->memory, b->v.dtype, i, by * number_get(b->memory, b->v.dtype, i));
}

static data data_new(const problem *p)
{
  data d = { 0 };
  const char *order = p->order ? p->order : "0213";
  d.q = block_new(p->dtype, order, p->order ? 3 : 0, true, SHAPE(p->B, p->H, p->T, p->D));
  d.k = block_new(p->dtype, order, p->order ? 3 : 0, true, SHAPE(p->B, p->K, p->S, p->D));
  d.v = block_new(p->dtype, order, p->order ? 3 : 0, true, SHAPE(p->B, p->K, p->S, p->D));
  float spread = p->spread > 0 ? p->spread : 1;
  stretch(&d.q, spread);
  stretch(&d.k, spread);
  d.out = block_new(p->dtype, "0213", 0, true, SHAPE(p->B, p->H, p->T, p->D));
  d.lse = block_new(Z3T_F32, NULL, 0, true, SHAPE(p->B, p->H, p->T));
  d.dout = block_new(p->dtype, "0213", 0, true, SHAPE(p->B, p->H, p->T, p->D));
  if (p->mask != NULL) {
    d.mask = block_new(Z3T_U8, NULL, 0, false,
                       SHAPE(p->mask[0] == 'b' ? p->B : 1, p->mask[1] == 'h' ? p->H : 1, p->mask[2] == 't' ? p->T : 1,
                             p->S));
    for (int64_t i = 0; i < d.mask.count; i++) ((uint8_t *)d.mask.memory)[i] = random_float() > -0.3f;
    if (p->mask[2] == 't') memset(d.mask.memory, 0, (size_t)p->S);   /* query 0 sees nothing */
  }
  const z3i_view *shape[3] = { &d.q.v, &d.k.v, &d.v.v };
  for (int i = 0; i < 3; i++) {
    d.grad[i] = block_new(p->grad_dtype, i == 0 ? "0213" : NULL, 0, true, 4, shape[i]->shape);
    d.before[i] = block_new(p->grad_dtype, i == 0 ? "0213" : NULL, 0, false, 4, shape[i]->shape);
    memcpy(d.before[i].memory, d.grad[i].memory, (size_t)(d.grad[i].count * z3i_dtype_bytes(p->grad_dtype)));
  }
  d.attr = (z3_attr){ .f = { 0.9 / sqrt((double)Z3I_MAX(p->D, 1)) }, .i = { p->causal } };
  d.forward = (z3i_call){ .op = Z3OP_attention, .dev = &dev, .in = { d.q.v, d.k.v, d.v.v, d.mask.v },
                          .out = { d.out.v }, .aux = { d.lse.v } };
  d.backward = d.forward;
  d.backward.gout[0] = d.dout.v;
  for (int i = 0; i < 3; i++) d.backward.gin[i] = d.grad[i].v;
  d.backward.gin_add = p->add;
  return d;
}
/* attr lies in d, which moves when returned: point at it where it came to rest. */
static void data_settle(data *d) { d->forward.attr = d->backward.attr = &d->attr; }
static void data_free(data *d)
{
  block *all[] = { &d->q, &d->k, &d->v, &d->mask, &d->out, &d->lse, &d->dout };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) block_free(all[i]);
  for (int i = 0; i < 3; i++) {
    block_free(&d->grad[i]);
    block_free(&d->before[i]);
  }
}

/* ---- the reference: one head at a time with its whole matrix ------------------------------------------ */
typedef struct expected {
  double *out, *lse, *grad[3];                    /* contiguous (B,H,T,D), (B,H,T), ... */
} expected;

static bool sees(const problem *p, const data *d, int64_t b, int64_t h, int64_t t, int64_t s)
{
  if (p->causal && s > t) return false;
  if (p->mask == NULL) return true;
  const z3i_view *m = &d->mask.v;
  return at4(m, m->shape[0] > 1 ? b : 0, m->shape[1] > 1 ? h : 0, m->shape[2] > 1 ? t : 0, s) != 0;
}

static void reference_query(const problem *p, const data *d, expected *e, int64_t b, int64_t h, int64_t t, double *w)
{
  int64_t g = h / (p->H / p->K), row = (b * p->H + h) * p->T + t;
  double scale = (double)(float)d->attr.f[0], max = -INFINITY, sum = 0, delta = 0;
  for (int64_t s = 0; s < p->S; s++) {
    double dot = 0;
    for (int64_t i = 0; i < p->D; i++) dot += (double)at4(&d->q.v, b, h, t, i) * (double)at4(&d->k.v, b, g, s, i);
    w[s] = sees(p, d, b, h, t, s) ? scale * dot : -INFINITY;
    max = fmax(max, w[s]);
  }
  for (int64_t s = 0; s < p->S; s++) sum += max == -INFINITY ? 0 : exp(w[s] - max);
  e->lse[row] = sum > 0 ? max + log(sum) : -INFINITY;
  for (int64_t s = 0; s < p->S; s++) w[s] = sum > 0 ? exp(w[s] - max) / sum : 0;
  for (int64_t s = 0; s < p->S; s++)
    for (int64_t i = 0; i < p->D; i++) e->out[row * p->D + i] += w[s] * (double)at4(&d->v.v, b, g, s, i);
  for (int64_t i = 0; i < p->D; i++) delta += e->out[row * p->D + i] * (double)at4(&d->dout.v, b, h, t, i);
  for (int64_t s = 0; s < p->S; s++) {
    int64_t key = ((b * p->K + g) * p->S + s) * p->D;
    double dp = 0;
    for (int64_t i = 0; i < p->D; i++) {
      double o = (double)at4(&d->dout.v, b, h, t, i);
      dp += o * (double)at4(&d->v.v, b, g, s, i);
      e->grad[2][key + i] += w[s] * o;
    }
    double ds = scale * w[s] * (dp - delta);
    for (int64_t i = 0; i < p->D; i++) {
      e->grad[0][row * p->D + i] += ds * (double)at4(&d->k.v, b, g, s, i);
      e->grad[1][key + i] += ds * (double)at4(&d->q.v, b, h, t, i);
    }
  }
}

static expected reference(const problem *p, const data *d)
{
  size_t queries = (size_t)(p->B * p->H * p->T), keys = (size_t)(p->B * p->K * p->S), D = (size_t)p->D;
  expected e = { calloc(queries * D + 1, 8), calloc(queries + 1, 8),
                 { calloc(queries * D + 1, 8), calloc(keys * D + 1, 8), calloc(keys * D + 1, 8) } };
  double *w = calloc((size_t)p->S + 1, 8);
  for (int64_t b = 0; b < p->B; b++)
    for (int64_t h = 0; h < p->H; h++)
      for (int64_t t = 0; t < p->T; t++) reference_query(p, d, &e, b, h, t, w);
  free(w);
  return e;
}
static void expected_free(expected *e)
{
  free(e->out); free(e->lse);
  for (int i = 0; i < 3; i++) free(e->grad[i]);
}
#endif
