/* attn_bwd.c -- gradients of attention by tiles; scores are computed again from q, k and the saved log-sum-exp.
 *   p = exp(scale q k^T - lse)   dv = p^T do   ds = p (do v^T - sum(do o))   dq = scale ds k   dk = scale ds^T q
 * One worker owns a key head: it walks the query heads that share it, their queries, their keys, so that every sum has
 * one order. With fewer key heads than threads, keys and queries are walked apart: more work, the same sums in the same
 * order. Letters: attn.h. */
#include "device/cpu/isa/attn.h"
#include "device/cpu/isa/attn_levels.h"

#define LOG2E 1.4426950408889634

enum { DQ = 1, DK = 2, DV = 4 };                /* which gradients: bits by position of the input */

typedef struct tiles {
  float *q, *qt;                                /* queries by scale (TQ, P), and turned, by scale / log 2 */
  float *o, *ot;                                /* do, and turned */
  float *delta, *lse;                           /* (TQ); lse in units of log 2, inf for a query that sees nothing */
  float *s, *ds;                                /* (TK, TQ) */
  attn_keys keys;
  float *dq;                                    /* (TQ, P) */
  float *dk, *dv;                               /* (keys of the worker, P) */
} tiles;

/* held: keys that a worker holds at once; owned: keys whose gradients it sums. */
static size_t tiles_floats(const z3i_attn *f, int64_t held, int64_t owned)
{
  return (size_t)(f->P * (5 * Z3I_TQ + 2 * held + 2 * owned) + 2 * Z3I_TK * Z3I_TQ + 2 * Z3I_TQ);
}

static tiles tiles_in(const z3i_attn *f, float *room, int64_t held, int64_t owned)
{
  tiles t = { .q = room };
  int64_t queries = Z3I_TQ * f->P;
  t.qt = t.q + queries;
  t.o = t.qt + queries;
  t.ot = t.o + queries;
  t.dq = t.ot + queries;
  t.s = t.dq + queries;
  t.ds = t.s + Z3I_TK * Z3I_TQ;
  t.delta = t.ds + Z3I_TK * Z3I_TQ;
  t.lse = t.delta + Z3I_TQ;
  t.dk = t.lse + Z3I_TQ;
  t.dv = t.dk + owned * f->P;
  t.keys.k = t.dv + owned * f->P;
  t.keys.v = t.keys.k + held * f->P;
  return t;
}

/* Rows of a view into a tile, with zero lines up to nqw. */
static void load_rows(const z3i_attn *f, const attn_tile *a, const z3i_view *v, float *dst)
{
  memset(dst, 0, (size_t)(a->nqw * f->P) * sizeof *dst);
  for (int64_t i = 0; i < a->nq; i++) attn_load_row(dst + i * f->P, v, attn_row(v, a->b, a->h, a->q0 + i), f->D);
}

static void load_queries(const z3i_attn *f, const attn_tile *a, const tiles *t)
{
  const z3i_call *c = f->call;
  const float *lse = (const float *)c->aux[0].data + (a->b * f->H + a->h) * f->T + a->q0;
  load_rows(f, a, &c->gout[0], t->o);
  load_rows(f, a, &c->out[0], t->q);
  for (int64_t i = 0; i < a->nqw; i++) {
    bool sees = i < a->nq && lse[i] != -INFINITY;
    t->delta[i] = z3i_vdot(t->o + i * f->P, t->q + i * f->P, f->D);
    t->lse[i] = sees ? (float)((double)lse[i] * LOG2E) : INFINITY;
  }
  load_rows(f, a, &c->in[0], t->q);
  attn_turn(t->qt, t->q, f->P, a->nqw, f->P, (float)((double)f->scale * LOG2E));
  attn_turn(t->ot, t->o, f->P, a->nqw, f->P, 1);
  for (int64_t i = 0; i < a->nq * f->P; i += W) store(t->q + i, load(t->q + i) * splat(f->scale));
}

/* Scores to weights p. */
static void weigh(const attn_tile *a, const tiles *t)
{
  for (int64_t j = 0; j < a->nk; j++)
    for (int64_t i = 0; i < a->nqw; i += W) {
      float *s = t->s + j * Z3I_TQ + i;
      store(s, exp2_vec(load(s) - load(t->lse + i)));
    }
}

/* ds = p (dp - delta), and exactly 0 where the weight is 0: dp may not have been computed there. */
static void slope(const attn_tile *a, const tiles *t)
{
  for (int64_t j = 0; j < a->nk; j++)
    for (int64_t i = 0; i < a->nqw; i += W) {
      vec p = load(t->s + j * Z3I_TQ + i), dp = load(t->ds + j * Z3I_TQ + i);
      store(t->ds + j * Z3I_TQ + i, choose(p == 0, splat(0), p * (dp - load(t->delta + i))));
    }
}

/* out[j][d] += sum over the queries i that see j of s[j][i] x[i][d]. */
static void keys_add(const z3i_attn *f, const attn_tile *a, const float *s, const float *x, float *out)
{
  if (a->lead >= a->nk - 1) {
    tile_product(a->nk, f->P, a->nq, s, Z3I_TQ, 1, x, f->P, out, f->P, true);
    return;
  }
  for (int64_t j = 0; j < a->nk; j += STRIP) {
    int64_t i = Z3I_MAX(j - a->lead, 0);
    if (i < a->nq)
      tile_product(Z3I_MIN(a->nk - j, (int64_t)STRIP), f->P, a->nq - i, s + j * Z3I_TQ + i, Z3I_TQ, 1, x + i * f->P,
                   f->P, out + j * f->P, f->P, true);
  }
}

/* What one tile adds to the gradients asked for; dk and dv point at its first key. */
static void tile_grads(const z3i_attn *f, const attn_tile *a, const tiles *t, int which, float *dk, float *dv)
{
  int64_t g = a->h / f->group;
  const float *k = attn_k(f, &t->keys, a->b, g, a->k0, a->nk);
  attn_keys_by_queries(f, a, k, t->qt, t->s);
  attn_hide(f, a, t->s);
  weigh(a, t);
  if (which & DV) keys_add(f, a, t->s, t->o, dv);
  if (!(which & (DQ | DK))) return;
  attn_keys_by_queries(f, a, attn_v(f, &t->keys, a->b, g, a->k0, a->nk), t->ot, t->ds);
  slope(a, t);
  if (which & DK) keys_add(f, a, t->ds, t->q, dk);
  if (which & DQ) attn_queries_add(f, a, t->ds, k, t->dq);
}

static bool adds(const z3i_attn *f, int i) { return (f->call->gin_add >> i) & 1u; }

static void store_dq(const z3i_attn *f, const attn_tile *a, const tiles *t)
{
  const z3i_view *gq = &f->call->gin[0];
  for (int64_t i = 0; i < a->nq; i++) {
    float *row = t->dq + i * f->P;
    for (int64_t d = 0; d < f->P; d += W) store(row + d, load(row + d) * splat(f->scale));
    attn_store_row(gq, attn_row(gq, a->b, a->h, a->q0 + i), row, f->D, adds(f, 0));
  }
}

static void store_keys(const z3i_attn *f, const float *rows, int input, int64_t b, int64_t g, int64_t k0, int64_t count)
{
  const z3i_view *v = &f->call->gin[input];
  if (v->data == NULL) return;
  bool add = adds(f, input);
  for (int64_t j = 0; j < count; j++) attn_store_row(v, attn_row(v, b, g, k0 + j), rows + j * f->P, f->D, add);
}

static int wanted(const z3i_attn *f)
{
  const z3i_view *g = f->call->gin;
  return (g[0].data != NULL ? DQ : 0) | (g[1].data != NULL ? DK : 0) | (g[2].data != NULL ? DV : 0);
}

/* The queries of one tile against all their keys; dk and dv hold the head's keys from the first. */
static void query_block(const z3i_attn *f, int64_t b, int64_t h, int64_t q0, const tiles *t, int which)
{
  attn_tile a = attn_tile_at(f, b, h, q0, 0);
  load_queries(f, &a, t);
  memset(t->dq, 0, (size_t)(a.nq * f->P) * sizeof *t->dq);
  int64_t end = attn_keys_end(f, q0, a.nq);
  for (int64_t k0 = 0; k0 < end; k0 += Z3I_TK) {
    a = attn_tile_at(f, b, h, q0, k0);
    tile_grads(f, &a, t, which, t->dk + k0 * f->P, t->dv + k0 * f->P);
  }
  if (which & DQ) store_dq(f, &a, t);
}

/* ---- items of work ------------------------------------------------------------------------------------ */
/* A key head, everything. */
static void head_item(const z3i_attn *f, int64_t bg, float *room)
{
  int64_t b = bg / f->K, g = bg % f->K;
  tiles t = tiles_in(f, room, attn_fits_all(f) ? f->S : Z3I_TK, f->S);
  if (attn_fits_all(f)) attn_load_all(f, b, g, &t.keys);
  memset(t.dk, 0, (size_t)(2 * f->S * f->P) * sizeof *t.dk);
  for (int64_t h = g * f->group; h < (g + 1) * f->group; h++)
    for (int64_t q0 = 0; q0 < f->T; q0 += Z3I_TQ) query_block(f, b, h, q0, &t, wanted(f));
  store_keys(f, t.dk, 1, b, g, 0, f->S);
  store_keys(f, t.dv, 2, b, g, 0, f->S);
}

/* A tile of keys: dk and dv. */
static void keys_item(const z3i_attn *f, int64_t item, float *room)
{
  int64_t blocks = (f->S + Z3I_TK - 1) / Z3I_TK, k0 = item % blocks * Z3I_TK;
  int64_t b = item / blocks / f->K, g = item / blocks % f->K;
  tiles t = tiles_in(f, room, Z3I_TK, Z3I_TK);
  memset(t.dk, 0, (size_t)(2 * Z3I_TK * f->P) * sizeof *t.dk);
  for (int64_t h = g * f->group; h < (g + 1) * f->group; h++)
    for (int64_t q0 = 0; q0 < f->T; q0 += Z3I_TQ) {
      attn_tile a = attn_tile_at(f, b, h, q0, k0);
      if (a.nk <= 0) continue;                  /* none of these queries sees any of the keys */
      load_queries(f, &a, &t);
      tile_grads(f, &a, &t, wanted(f) & (DK | DV), t.dk, t.dv);
    }
  int64_t count = Z3I_MIN(f->S - k0, (int64_t)Z3I_TK);
  store_keys(f, t.dk, 1, b, g, k0, count);
  store_keys(f, t.dv, 2, b, g, k0, count);
}

/* A tile of queries: dq. */
static void queries_item(const z3i_attn *f, int64_t item, float *room)
{
  int64_t blocks = (f->T + Z3I_TQ - 1) / Z3I_TQ, bh = item / blocks;
  tiles t = tiles_in(f, room, Z3I_TK, 0);
  query_block(f, bh / f->H, bh % f->H, (blocks - 1 - item % blocks) * Z3I_TQ, &t, DQ);
}

int Z3I_SYM(attention_grad)(const z3i_call *c)
{
  z3i_attn f;
  attn_describe(c, &f);
  int which = wanted(&f), threads = attn_threads(&f);
  int64_t heads = f.B * f.K, key_blocks = (f.S + Z3I_TK - 1) / Z3I_TK, query_blocks = (f.T + Z3I_TQ - 1) / Z3I_TQ;
  if (f.B == 0 || which == 0) return Z3E_OK;
  if ((which & (DK | DV)) && heads >= threads)
    return attn_workers(&f, heads, tiles_floats(&f, attn_fits_all(&f) ? f.S : Z3I_TK, f.S), threads, head_item);
  if (which & (DK | DV))
    Z3I_TRY(attn_workers(&f, heads * key_blocks, tiles_floats(&f, Z3I_TK, Z3I_TK), threads, keys_item));
  if (which & DQ)
    Z3I_TRY(attn_workers(&f, f.B * f.H * query_blocks, tiles_floats(&f, Z3I_TK, 0), threads, queries_item));
  return Z3E_OK;
}
