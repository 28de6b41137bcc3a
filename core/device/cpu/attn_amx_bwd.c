/* attn_amx_bwd.c -- gradients of bf16 attention on AMX tiles; weights are computed again from q, k and the saved lse.
 *   p = exp(scale q k^T - lse)   dv = p^T do   ds = p (do v^T - sum(do o))   dq = scale ds k   dk = scale ds^T q
 * Panels hold 32 keys by 128 queries, so that p^T and ds^T are panels of A as they lie (FlashAttention-2: Dao 2023).
 * Who owns what, and so the order of every sum, is as in isa/attn_bwd.c. Letters: attn_amx.h. */
#include "device/cpu/attn_amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <math.h>
#include <omp.h>

#define LOG2E 1.4426950408889634

enum {
  P = Z3I_AMX_PANEL, N = Z3I_ATTN_AMX_BLOCK, STEP = Z3I_AMX_STEP,
  CHUNK = 2 * N,                                  /* keys of an item where a head is shared out */
  ALL_MAX = 2 << 20,                              /* values of a head up to which its keys are packed once */
  DQ = 1, DK = 2, DV = 4                          /* which gradients: bits by position of the input */
};

/* Keys and values packed as A, and keys as B by columns: for dq. */
typedef struct keys {
  uint16_t *k, *v, *columns;
  int64_t apart;                                  /* of columns: from panel to panel */
} keys;

typedef struct block {
  uint16_t *q, *o;                                /* queries and do as B by lines (N x D) */
  uint16_t *q_columns, *o_columns;                /* and by columns */
  float *lse, *delta;                             /* (N); lse in units of log 2, inf for a query that sees nothing */
  float *s, *dp;                                  /* (P,N) */
  uint16_t *p, *ds;                               /* (P,N) */
  uint16_t *turned;                               /* ds of all keys of the block, packed as A: (N x N) */
  float *dq;                                      /* (N,D) */
  float *dk, *dv;                                 /* (keys owned, D) */
  keys keys;
} block;

/* Queries q0.. of head h, nq of them, by keys k0..; query i sees key j when j <= i + lead. */
typedef struct place {
  int64_t b, h, q0, nq, k0, nk, lead;
} place;

static int64_t whole(int64_t n) { return z3i_attn_amx_panels(n) * P; }

/* held: keys that a worker holds packed; owned: keys whose gradients it sums. */
static size_t block_bytes(const z3i_attn_amx *f, int64_t held, int64_t owned)
{
  return (size_t)(f->D * (12 * N + 6 * whole(held) + 8 * whole(owned)) + 8 * N + 12 * P * N + 2 * N * N);
}
static block block_in(const z3i_attn_amx *f, char *room, int64_t held, int64_t owned)
{
  int64_t queries = N * f->D, own = whole(owned) * f->D, hold = whole(held) * f->D;
  block w = { .q = (uint16_t *)(void *)room, .keys.apart = whole(held) * P };
  w.o = w.q + queries;
  w.q_columns = w.o + queries;
  w.o_columns = w.q_columns + queries;
  w.dq = (float *)(void *)(w.o_columns + queries);
  w.dk = w.dq + queries;
  w.dv = w.dk + own;
  w.lse = w.dv + own;
  w.delta = w.lse + N;
  w.s = w.delta + N;
  w.dp = w.s + P * N;
  w.p = (uint16_t *)(void *)(w.dp + P * N);
  w.ds = w.p + P * N;
  w.turned = w.ds + P * N;
  w.keys.k = w.turned + N * N;
  w.keys.v = w.keys.k + hold;
  w.keys.columns = w.keys.v + hold;
  return w;
}

static void load_keys(const z3i_attn_amx *f, const keys *k, int64_t b, int64_t g, int64_t k0, int64_t count, int which)
{
  const z3i_view *in = f->call->in;
  z3i_attn_amx_pack_lines(k->k, z3i_attn_amx_rows(&in[1], b, g, k0, false), false, count, f->D);
  if (which & (DQ | DK))
    z3i_attn_amx_pack_lines(k->v, z3i_attn_amx_rows(&in[2], b, g, k0, false), false, count, f->D);
  if (which & DQ)
    z3i_attn_amx_pack_columns(k->columns, z3i_attn_amx_rows(&in[1], b, g, k0, true), count, f->D, k->apart);
}
/* The keys from the j-th on; j a multiple of 32. */
static keys keys_from(const z3i_attn_amx *f, const keys *k, int64_t j)
{
  return (keys){ k->k + j * f->D, k->v + j * f->D, k->columns + j * P, k->apart };
}

Z3I_ATTN_AVX512 static float dot(const uint16_t *x, const uint16_t *y, int64_t n)
{
  __m512 sum = _mm512_setzero_ps();
  for (int64_t d = 0; d < n; d += 16)
    sum = _mm512_fmadd_ps(z3i_attn_load_bf16(x + d), z3i_attn_load_bf16(y + d), sum);
  return _mm512_reduce_add_ps(sum);
}

static void load_queries(const z3i_attn_amx *f, const place *t, const block *w, int which)
{
  const z3i_call *c = f->call;
  const float *lse = (const float *)c->aux[0].data + (t->b * f->H + t->h) * f->T + t->q0;
  z3i_amx_source q = z3i_attn_amx_rows(&c->in[0], t->b, t->h, t->q0, false);
  z3i_amx_source o = z3i_attn_amx_rows(&c->gout[0], t->b, t->h, t->q0, false);
  z3i_amx_source out = z3i_attn_amx_rows(&c->out[0], t->b, t->h, t->q0, false);
  z3i_attn_amx_pack_lines(w->q, q, true, t->nq, f->D);
  if (which & (DQ | DK)) z3i_attn_amx_pack_lines(w->o, o, true, t->nq, f->D);
  for (int64_t i = 0; i < whole(t->nq); i++) {
    bool sees = i < t->nq && lse[i] != -INFINITY;
    z3i_attn_amx_ask_ahead(out.data + i * out.ld, out.ld * 2, f->D * 2, false);
    w->delta[i] = i < t->nq ? dot(o.data + i * o.ld, out.data + i * out.ld, f->D) : 0;
    w->lse[i] = sees ? (float)((double)lse[i] * LOG2E) : INFINITY;
  }
  q.k_major = o.k_major = true;
  if (which & DK) z3i_attn_amx_pack_columns(w->q_columns, q, t->nq, f->D, N * P);
  if (which & DV) z3i_attn_amx_pack_columns(w->o_columns, o, t->nq, f->D, N * P);
}

static place place_at(const z3i_attn_amx *f, int64_t b, int64_t h, int64_t q0, int64_t k0)
{
  place t = { .b = b, .h = h, .q0 = q0, .k0 = k0, .nq = Z3I_MIN(f->T - q0, (int64_t)N), .lead = q0 + f->lead - k0 };
  t.nk = Z3I_MIN(Z3I_MIN(f->S - k0, (int64_t)N), t.nq + t.lead);
  return t;
}

/* ---- a panel of keys by a block of queries ------------------------------------------------------------ */
/* Queries first..end-1; key j is seen by those from `seen` on. Products become weights, and slopes where wanted. */
Z3I_ATTN_INLINE void weigh(const block *w, int64_t row, int64_t first, int64_t end, int64_t seen, float to_log2,
                           bool slopes)
{
  const float *s = w->s + row, *dp = w->dp + row;
  __m512 c = _mm512_set1_ps(to_log2);
  for (int64_t i = first; i < end; i += 16) {
    __mmask16 mask = (__mmask16)(seen <= i ? 0xFFFFu : seen >= i + 16 ? 0 : 0xFFFFu << (seen - i));
    __m512 p = z3i_attn_exp2(_mm512_fmsub_ps(_mm512_load_ps(s + i), c, _mm512_load_ps(w->lse + i)));
    p = _mm512_maskz_mov_ps(mask, p);
    z3i_attn_store_bf16(w->p + row + i, p);
    if (!slopes) continue;
    mask = _mm512_cmp_ps_mask(p, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    __m512 slope = _mm512_sub_ps(_mm512_load_ps(dp + i), _mm512_load_ps(w->delta + i));
    z3i_attn_store_bf16(w->ds + row + i, _mm512_maskz_mul_ps(mask, p, slope));
  }
}

Z3I_ATTN_AVX512 static void weigh_panel(const z3i_attn_amx *f, const place *t, const block *w, int64_t j, int64_t first,
                                        bool slopes)
{
  int64_t end = whole(t->nq);
  for (int64_t r = 0; r < P; r++)
    weigh(w, r * N, first, end, j + r < t->nk ? j + r - t->lead : end, f->to_log2, slopes);
}

static void hide(const z3i_attn_amx *f, const place *t, float *s, int64_t j)
{
  const uint8_t *mask = z3i_attn_amx_mask(f, t->b, t->h, t->q0, t->k0 + j);
  if (mask == NULL) return;
  for (int64_t r = 0; r < Z3I_MIN(t->nk - j, (int64_t)P); r++)
    for (int64_t i = 0; i < t->nq; i++)
      if (mask[i * f->mask_stride[2] + r * f->mask_stride[3]] == 0) s[r * N + i] = -INFINITY;
}

/* out (P,D) += x^T (a panel of keys by queries from `first`) times what is packed by columns. */
static void keys_add(const z3i_attn_amx *f, const place *t, const uint16_t *x, int64_t first, const uint16_t *columns,
                     float *out)
{
  for (int64_t d = 0; d < f->D; d += P)
    z3i_attn_amx_product(z3i_attn_amx_block_rows(x + first), columns + d * N + first * P,
                         z3i_attn_amx_panels(t->nq - first), out + d, f->D, true);
}

static void queries_add(const z3i_attn_amx *f, const place *t, const block *w, const keys *k)
{
  for (int64_t i = 0; i < t->nq; i += P) {
    int64_t count = Z3I_MIN(t->nk, i + P + t->lead);
    for (int64_t d = 0; count > 0 && d < f->D; d += P)
      z3i_attn_amx_product(z3i_attn_amx_packed(w->turned + i * N), k->columns + d / P * k->apart,
                           z3i_attn_amx_panels(count), w->dq + i * f->D + d, f->D, true);
  }
}

/* What a block adds to the gradients asked for; k, dk and dv are at its first key. */
static void block_grads(const z3i_attn_amx *f, const place *t, const block *w, keys k, int which, float *dk, float *dv)
{
  int64_t D = f->D;
  bool slopes = (which & (DQ | DK)) != 0;
  for (int64_t j = 0; j < t->nk; j += P) {
    int64_t first = Z3I_MAX(j - t->lead, 0) / P * P;      /* the panel of the first query that sees key j */
    for (int64_t i = first; i < t->nq; i += P) {
      z3i_attn_amx_product(z3i_attn_amx_packed(k.k + j * D), w->q + i * D, D / STEP, w->s + i, N, false);
      if (slopes) z3i_attn_amx_product(z3i_attn_amx_packed(k.v + j * D), w->o + i * D, D / STEP, w->dp + i, N, false);
    }
    hide(f, t, w->s, j);
    weigh_panel(f, t, w, j, first, slopes);
    if (which & DV) keys_add(f, t, w->p, first, w->o_columns, dv + j * D);
    if (which & DK) keys_add(f, t, w->ds, first, w->q_columns, dk + j * D);
    z3i_amx_source ds = { .ld = N, .k_major = true };
    for (int64_t i = first; (which & DQ) && i < t->nq; i += P) {
      ds.data = w->ds + i;
      z3i_amx_pack(w->turned + i * N + j * P, &ds, false, P, P, 0, 1);
    }
  }
  if (which & DQ) queries_add(f, t, w, &k);
}

/* ---- results ------------------------------------------------------------------------------------------ */
Z3I_ATTN_AVX512 static void store_rows(const z3i_attn_amx *f, const float *rows, int input, int64_t b, int64_t h,
                                       int64_t first, int64_t count)
{
  const z3i_view *v = &f->call->gin[input];
  bool add = (f->call->gin_add >> input) & 1u;
  int64_t bytes = z3i_dtype_bytes(v->dtype);
  for (int64_t i = 0; v->data != NULL && i < count; i++) {
    char *row = z3i_attn_amx_row(v, b, h, first + i);
    z3i_attn_amx_ask_ahead(row, v->stride[2] * bytes, f->D * bytes, true);
    z3i_attn_store_row(row, v->dtype, rows + i * f->D, f->D, input < 2 ? f->scale : 1, add);
  }
}

static int wanted(const z3i_attn_amx *f)
{
  const z3i_view *g = f->call->gin;
  return (g[0].data != NULL ? DQ : 0) | (g[1].data != NULL ? DK : 0) | (g[2].data != NULL ? DV : 0);
}

/* The queries of one block against all their keys; dk and dv hold the head's keys from the first. Keys are packed
 * already, all of the head (all), or come block by block. */
static void query_block(const z3i_attn_amx *f, int64_t b, int64_t h, int64_t q0, const block *w, int which, bool all)
{
  place t = place_at(f, b, h, q0, 0);
  load_queries(f, &t, w, which);
  memset(w->dq, 0, (size_t)(whole(t.nq) * f->D) * sizeof *w->dq);
  for (int64_t k0 = 0; k0 < Z3I_MIN(f->S, q0 + t.nq + f->lead); k0 += N) {
    t = place_at(f, b, h, q0, k0);
    if (!all) load_keys(f, &w->keys, b, h / f->group, k0, t.nk, which);
    block_grads(f, &t, w, keys_from(f, &w->keys, all ? k0 : 0), which, w->dk + k0 * f->D, w->dv + k0 * f->D);
  }
  if (which & DQ) store_rows(f, w->dq, 0, b, h, q0, t.nq);
}

/* ---- items of work ------------------------------------------------------------------------------------ */
static int64_t blocks_of(int64_t n, int64_t each) { return (n + each - 1) / each; }
static bool fits(const z3i_attn_amx *f) { return f->S * f->D <= ALL_MAX; }
static int64_t held_of_head(const z3i_attn_amx *f) { return fits(f) ? f->S : N; }

/* A key head, everything. */
static void head_item(const z3i_attn_amx *f, int64_t bg, char *room)
{
  int64_t b = bg / f->K, g = bg % f->K;
  int which = wanted(f);
  block w = block_in(f, room, held_of_head(f), f->S);
  if (fits(f)) load_keys(f, &w.keys, b, g, 0, f->S, which);
  memset(w.dk, 0, (size_t)(2 * whole(f->S) * f->D) * sizeof *w.dk);
  for (int64_t h = g * f->group; h < (g + 1) * f->group; h++)
    for (int64_t q0 = 0; q0 < f->T; q0 += N) query_block(f, b, h, q0, &w, which, fits(f));
  store_rows(f, w.dk, 1, b, g, 0, f->S);
  store_rows(f, w.dv, 2, b, g, 0, f->S);
}

/* A chunk of keys: dk and dv. */
static void keys_item(const z3i_attn_amx *f, int64_t item, char *room)
{
  int64_t chunks = blocks_of(f->S, CHUNK), first = item % chunks * CHUNK, count = Z3I_MIN(f->S - first, (int64_t)CHUNK);
  int64_t b = item / chunks / f->K, g = item / chunks % f->K;
  int which = wanted(f) & (DK | DV);
  block w = block_in(f, room, CHUNK, CHUNK);
  load_keys(f, &w.keys, b, g, first, count, which);
  memset(w.dk, 0, (size_t)(2 * CHUNK * f->D) * sizeof *w.dk);
  for (int64_t h = g * f->group; h < (g + 1) * f->group; h++)
    for (int64_t q0 = 0; q0 < f->T; q0 += N) {
      place t = place_at(f, b, h, q0, first);
      if (t.nk <= 0) continue;                    /* none of these queries sees any of the keys */
      load_queries(f, &t, &w, which);
      for (int64_t j = 0; j < count; j += N) {
        t = place_at(f, b, h, q0, first + j);
        block_grads(f, &t, &w, keys_from(f, &w.keys, j), which, w.dk + j * f->D, w.dv + j * f->D);
      }
    }
  store_rows(f, w.dk, 1, b, g, first, count);
  store_rows(f, w.dv, 2, b, g, first, count);
}

/* A block of queries: dq. */
static void queries_item(const z3i_attn_amx *f, int64_t item, char *room)
{
  int64_t blocks = blocks_of(f->T, N), bh = item / blocks;
  block w = block_in(f, room, N, 0);
  query_block(f, bh / f->H, bh % f->H, (blocks - 1 - item % blocks) * N, &w, DQ, false);
}

/* Items write only what is theirs, so that neither the number of threads nor who takes which can change a bit. */
static int workers(const z3i_attn_amx *f, int64_t items, size_t each, int threads,
                   void (*work)(const z3i_attn_amx *f, int64_t item, char *room))
{
  threads = (int)Z3I_MIN((int64_t)threads, items);
  char *room;
  Z3I_TRY(z3i_scratch(f->call->dev, (size_t)threads * each, (void **)&room));
#pragma omp parallel num_threads(threads)
  {
    char *own = room + (size_t)omp_get_thread_num() * each;
    z3i_amx_open();
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < items; i++) work(f, i, own);
    z3i_amx_close();
  }
  z3i_pool_free(f->call->dev, room);
  return Z3E_OK;
}

int z3i_attn_amx_bwd(const z3i_call *c)
{
  z3i_attn_amx f = z3i_attn_amx_describe(c);
  int which = wanted(&f), threads = z3i_attn_amx_threads(&f);
  int64_t heads = f.B * f.K;
  if (which == 0) return Z3E_OK;
  if ((which & (DK | DV)) && heads >= threads)
    return workers(&f, heads, block_bytes(&f, held_of_head(&f), f.S), threads, head_item);
  if (which & (DK | DV))
    Z3I_TRY(workers(&f, heads * blocks_of(f.S, CHUNK), block_bytes(&f, CHUNK, CHUNK), threads, keys_item));
  if (which & DQ)
    Z3I_TRY(workers(&f, f.B * f.H * blocks_of(f.T, N), block_bytes(&f, N, 0), threads, queries_item));
  return Z3E_OK;
}

#else
int z3i_attn_amx_bwd(const z3i_call *c)
{
  (void)c;
  return Z3I_FAIL(Z3E_BUG, "attention: this machine has no AMX");
}
#endif
