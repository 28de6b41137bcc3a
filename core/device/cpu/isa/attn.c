/* attn.c -- attention forward by tiles, with a running maximum and sum (FlashAttention: Dao et al. 2022, 2023).
 * Z3I_TQ queries of one head go against all keys that they see, tile by tile. Scores are in units of log 2. A query
 * that sees no key gives zeros and lse = -inf. An item of work is a key head with all its queries, or one block of
 * queries where there are too few heads to share out. Letters: attn.h. */
#include "device/cpu/isa/attn.h"
#include "device/cpu/isa/attn_levels.h"

#define LOG2E 1.4426950408889634
#define LN2 0.69314718055994531

typedef struct tiles {
  float *qt;                                    /* (D, TQ) queries, turned and scaled */
  float *s;                                     /* (TK, TQ) scores, then weights */
  float *o;                                     /* (TQ, P) result so far, not yet divided by sum */
  attn_keys keys;
  float *max, *sum, *shrink;                    /* (TQ); shrink: what the newest tile does to the result so far */
} tiles;

/* keys: those that a worker holds at once. */
static size_t tiles_floats(const z3i_attn *f, int64_t keys)
{
  return (size_t)((2 * Z3I_TQ + 2 * keys) * f->P + Z3I_TQ * Z3I_TK + 3 * Z3I_TQ);
}

static tiles tiles_in(const z3i_attn *f, float *room, int64_t keys)
{
  tiles t = { .qt = room };
  t.s = t.qt + f->P * Z3I_TQ;
  t.o = t.s + Z3I_TK * Z3I_TQ;
  t.max = t.o + Z3I_TQ * f->P;
  t.sum = t.max + Z3I_TQ;
  t.shrink = t.sum + Z3I_TQ;
  t.keys.k = t.shrink + Z3I_TQ;
  t.keys.v = t.keys.k + keys * f->P;
  return t;
}

static void load_queries(const z3i_attn *f, const attn_tile *a, const tiles *t)
{
  const float *lines = attn_lines(f, &f->call->in[0], a->b, a->h, a->q0, a->nq, t->o);
  if (lines != t->o) memcpy(t->o, lines, (size_t)(a->nq * f->P) * sizeof *t->o);
  memset(t->o + a->nq * f->P, 0, (size_t)((a->nqw - a->nq) * f->P) * sizeof *t->o);
  attn_turn(t->qt, t->o, f->P, a->nqw, f->P, (float)((double)f->scale * LOG2E));
}

/* W columns of scores: the new maximum, weights in place of scores, sums. */
static void weigh(const attn_tile *a, const tiles *t, int64_t i)
{
  float *s = t->s + i;
  vec old = load(t->max + i), top[4] = { old, old, old, old };
  int64_t j = 0;
  for (; j + 4 <= a->nk; j += 4)
    for (int r = 0; r < 4; r++) top[r] = max_vec(load(s + (j + r) * Z3I_TQ), top[r]);
  for (; j < a->nk; j++) top[0] = max_vec(load(s + j * Z3I_TQ), top[0]);
  vec max = max_vec(max_vec(top[0], top[1]), max_vec(top[2], top[3]));
  /* -inf as long as a query has seen nothing: -inf minus -inf would give NaN. */
  vec shift = choose(max == -INFINITY, splat(0), max), shrink = exp2_vec(old - shift), sum = load(t->sum + i) * shrink;
  for (j = 0; j < a->nk; j++) {
    vec p = exp2_vec(load(s + j * Z3I_TQ) - shift);
    store(s + j * Z3I_TQ, p);
    sum += p;
  }
  store(t->max + i, max);
  store(t->sum + i, sum);
  store(t->shrink + i, shrink);
}

static void shrink_result(const z3i_attn *f, const attn_tile *a, const tiles *t)
{
  for (int64_t i = 0; i < a->nq; i++) {
    if (t->shrink[i] == 1.0f) continue;
    for (int64_t d = 0; d < f->P; d += W) store(t->o + i * f->P + d, load(t->o + i * f->P + d) * splat(t->shrink[i]));
  }
}

static void finish(const z3i_attn *f, const attn_tile *a, const tiles *t)
{
  const z3i_view *out = &f->call->out[0];
  float *lse = (float *)f->call->aux[0].data + (a->b * f->H + a->h) * f->T + a->q0;
  for (int64_t i = 0; i < a->nq; i++) {
    float *o = t->o + i * f->P, sum = t->sum[i], by = sum == 0 ? 0 : 1 / sum;
    for (int64_t d = 0; d < f->P; d += W) store(o + d, load(o + d) * splat(by));
    attn_store_row(out, attn_row(out, a->b, a->h, a->q0 + i), o, f->D, false);
    lse[i] = sum == 0 ? -INFINITY : (float)((double)t->max[i] * LN2 + log((double)sum));
  }
}

static void query_block(const z3i_attn *f, int64_t b, int64_t h, int64_t q0, const tiles *t)
{
  attn_tile a = attn_tile_at(f, b, h, q0, 0);
  load_queries(f, &a, t);
  memset(t->o, 0, (size_t)(a.nq * f->P) * sizeof *t->o);
  for (int64_t i = 0; i < Z3I_TQ; i++) t->max[i] = -INFINITY;
  memset(t->sum, 0, Z3I_TQ * sizeof *t->sum);
  int64_t end = attn_keys_end(f, q0, a.nq), g = h / f->group;
  for (int64_t k0 = 0; k0 < end; k0 += Z3I_TK) {
    a = attn_tile_at(f, b, h, q0, k0);
    attn_keys_by_queries(f, &a, attn_k(f, &t->keys, b, g, k0, a.nk), t->qt, t->s);
    attn_hide(f, &a, t->s);
    for (int64_t i = 0; i < a.nqw; i += W) weigh(&a, t, i);
    shrink_result(f, &a, t);
    attn_queries_add(f, &a, t->s, attn_v(f, &t->keys, b, g, k0, a.nk), t->o);
  }
  finish(f, &a, t);
}

static void head_item(const z3i_attn *f, int64_t bg, float *room)
{
  int64_t b = bg / f->K, g = bg % f->K;
  tiles t = tiles_in(f, room, f->S);
  attn_load_all(f, b, g, &t.keys);
  for (int64_t h = g * f->group; h < (g + 1) * f->group; h++)
    for (int64_t q0 = 0; q0 < f->T; q0 += Z3I_TQ) query_block(f, b, h, q0, &t);
}

/* Late queries see most when causal: they come first, so that the threads end together. */
static void block_item(const z3i_attn *f, int64_t item, float *room)
{
  int64_t blocks = (f->T + Z3I_TQ - 1) / Z3I_TQ, bh = item / blocks;
  tiles t = tiles_in(f, room, Z3I_TK);
  query_block(f, bh / f->H, bh % f->H, (blocks - 1 - item % blocks) * Z3I_TQ, &t);
}

int Z3I_SYM(attention)(const z3i_call *c)
{
  z3i_attn f;
  attn_describe(c, &f);
  if (f.B * f.H * f.T == 0) return Z3E_OK;
  if (f.T <= ATTN_DECODE_MAX && f.S > 0) return Z3I_SYM(attention_decode)(&f);
  int64_t heads = f.B * f.K;
  int threads = attn_threads(&f);
  if ((heads % threads == 0 || heads >= 4 * threads) && attn_fits_all(&f))
    return attn_workers(&f, heads, tiles_floats(&f, f.S), threads, head_item);
  return attn_workers(&f, f.B * f.H * ((f.T + Z3I_TQ - 1) / Z3I_TQ), tiles_floats(&f, Z3I_TK), threads, block_item);
}
