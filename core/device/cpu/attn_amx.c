/* attn_amx.c -- bf16 attention forward on AMX tiles, with a running maximum and sum (FlashAttention: Dao et al. 2022,
 * 2023). Keys and values of some heads are packed first; then a worker takes 128 queries past the keys that they see,
 * 128 at a time. A query that sees no key gives zeros and lse = -inf. Letters: attn_amx.h. */
#include "device/cpu/attn_amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <math.h>
#include <omp.h>

#include "device/cpu/isa/attn_levels.h"

#define LOG2E 1.4426950408889634
#define LN2 0.69314718055994531
#define AMX __attribute__((target("amx-tile,amx-bf16")))

enum { P = Z3I_AMX_PANEL, N = Z3I_ATTN_AMX_BLOCK };

/* ---- shared with backward ----------------------------------------------------------------------------- */
z3i_attn_amx z3i_attn_amx_describe(const z3i_call *c)
{
  const z3i_view *q = &c->in[0], *k = &c->in[1], *mask = &c->in[3];
  z3i_attn_amx f = { .call = c, .B = q->shape[0], .H = q->shape[1], .K = k->shape[1], .T = q->shape[2],
                     .S = k->shape[2], .D = q->shape[3], .scale = (float)c->attr->f[0] };
  f.group = f.H / f.K;
  f.lead = c->attr->i[0] != 0 ? 0 : f.S;
  f.to_log2 = (float)((double)f.scale * LOG2E);
  for (int i = 0; mask->data != NULL && i < mask->ndim; i++)
    f.mask_stride[4 - mask->ndim + i] = mask->shape[i] == 1 ? 0 : mask->stride[i];
  return f;
}

static bool plain(const z3i_view *v) { return v->dtype == Z3T_BF16 && v->stride[3] == 1; }

bool z3i_attn_amx_takes(const z3i_call *c, bool backward)
{
  const z3i_view *q = &c->in[0], *k = &c->in[1];
  int64_t D = q->shape[3];
  /* A scale above 0 lets the largest product be the largest score. */
  if (!plain(q) || D % P != 0 || D > 256 || q->shape[2] <= ATTN_DECODE_MAX || !(c->attr->f[0] > 0)) return false;
  if (!plain(k) || !plain(&c->in[2]) || !plain(&c->out[0]) || !z3i_amx_usable()) return false;
  if (q->shape[0] == 0 || q->shape[1] == 0 || D == 0 || k->shape[1] == 0 || k->shape[2] == 0) return false;
  if (!backward) return true;
  for (int i = 0; i < 3; i++) {
    const z3i_view *g = &c->gin[i];
    if (g->data != NULL && (g->stride[3] != 1 || (g->dtype != Z3T_F32 && g->dtype != Z3T_BF16))) return false;
  }
  return plain(&c->gout[0]);
}

int z3i_attn_amx_threads(const z3i_attn_amx *f)
{
  return f->B * f->H * f->T * f->S * f->D < 500000 || omp_in_parallel() ? 1 : omp_get_max_threads();
}

z3i_amx_source z3i_attn_amx_rows(const z3i_view *v, int64_t b, int64_t h, int64_t t, bool k_major)
{
  return (z3i_amx_source){ (const uint16_t *)(const void *)z3i_attn_amx_row(v, b, h, t), v->stride[2], k_major };
}

/* Each panel's rows are asked for while those before are packed. */
static void ask(const z3i_amx_source *rows, int64_t from, int64_t count, int64_t D)
{
  for (int64_t i = from; i < Z3I_MIN(from + P, count); i++)
    for (int64_t d = 0; d < D; d += 32) __builtin_prefetch(rows->data + i * rows->ld + d);
}

void z3i_attn_amx_pack_lines(uint16_t *dst, z3i_amx_source rows, bool pairs, int64_t count, int64_t D)
{
  for (int64_t i = 0; i < count; i += P, dst += P * D) {
    z3i_amx_source panel = { rows.data + i * rows.ld, rows.ld, false };
    ask(&rows, i + P, count, D);
    z3i_amx_pack(dst, &panel, pairs, Z3I_MIN(count - i, (int64_t)P), D, 0, D / Z3I_AMX_STEP);
  }
}

void z3i_attn_amx_pack_columns(uint16_t *dst, z3i_amx_source rows, int64_t count, int64_t D, int64_t apart)
{
  for (int64_t i = 0; i < count; i += P) {
    ask(&rows, i + P, count, D);
    for (int64_t d = 0; d < D; d += P) {
      z3i_amx_source panel = { rows.data + d, rows.ld, true };
      z3i_amx_pack(dst + d / P * apart, &panel, true, P, count, i / P, i / P + 1);
    }
  }
}

AMX __attribute__((noinline)) void z3i_attn_amx_product(z3i_amx_tiles a, const uint16_t *b, int64_t steps, float *c,
                                                        int64_t ldc, bool add)
{
  __asm__ volatile("" ::: "memory");              /* gcc 12 says that tile loads read no memory */
  if (add) {
    _tile_loadd(0, c, ldc * 4);
    _tile_loadd(1, c + 16, ldc * 4);
    _tile_loadd(2, c + 16 * ldc, ldc * 4);
    _tile_loadd(3, c + 16 * ldc + 16, ldc * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t s = 0; s < steps; s++, a.at += a.step, b += Z3I_AMX_BLOCK) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a.at, a.row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + Z3I_AMX_BLOCK / 2, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a.at + a.second, a.row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, ldc * 4);
  _tile_stored(1, c + 16, ldc * 4);
  _tile_stored(2, c + 16 * ldc, ldc * 4);
  _tile_stored(3, c + 16 * ldc + 16, ldc * 4);
}

/* ---- a block of queries ------------------------------------------------------------------------------- */
/* What a worker holds: queries packed as A, a panel's products, its weights, and of each query the result so far, the
 * largest product and 16 parts of the sum of weights. */
typedef struct block {
  uint16_t *q, *p;                                /* (N x D), (P,N) */
  float *s, *o, *max, *sum;                       /* (P,N), (N,D), (N), (N,16) */
} block;

static size_t block_bytes(const z3i_attn_amx *f) { return (size_t)(N * f->D * 6 + P * N * 6 + N * 17 * 4); }
static block block_in(const z3i_attn_amx *f, char *room)
{
  block w = { .q = (uint16_t *)(void *)room };
  w.p = w.q + N * f->D;
  w.s = (float *)(void *)(w.p + P * N);
  w.o = w.s + P * N;
  w.max = w.o + N * f->D;
  w.sum = w.max + N;
  return w;
}

/* One query's products with `count` keys, of which it sees the first n: the new maximum, weights, sums; what was there
 * before shrinks. count is a multiple of 32. */
Z3I_ATTN_INLINE void weigh(float *s, int64_t n, int64_t count, float to_log2, float *max, float *sum, uint16_t *p,
                           float *o, int64_t D)
{
  for (int64_t j = n; j < count; j++) s[j] = -INFINITY;
  __m512 top = _mm512_set1_ps(*max), top2 = top, c = _mm512_set1_ps(to_log2), total = _mm512_load_ps(sum);
  for (int64_t j = 0; j < count; j += 32) {
    top = _mm512_max_ps(_mm512_load_ps(s + j), top);      /* the second where one is NaN */
    top2 = _mm512_max_ps(_mm512_load_ps(s + j + 16), top2);
  }
  float new = _mm512_reduce_max_ps(_mm512_max_ps(top, top2));
  /* -inf as long as a query has seen nothing: -inf minus -inf would give NaN. */
  __m512 shift = _mm512_set1_ps(new == -INFINITY ? 0 : new * to_log2);
  if (new != *max) {
    __m512 shrink = z3i_attn_exp2(_mm512_fmsub_ps(_mm512_set1_ps(*max), c, shift));
    total = _mm512_mul_ps(total, shrink);
    for (int64_t d = 0; d < D; d += 16) _mm512_store_ps(o + d, _mm512_mul_ps(_mm512_load_ps(o + d), shrink));
    *max = new;
  }
  __m512 total2 = _mm512_setzero_ps();
  for (int64_t j = 0; j < count; j += 32) {
    __m512 x = z3i_attn_exp2(_mm512_fmsub_ps(_mm512_load_ps(s + j), c, shift));
    __m512 y = z3i_attn_exp2(_mm512_fmsub_ps(_mm512_load_ps(s + j + 16), c, shift));
    total = _mm512_add_ps(total, x);
    total2 = _mm512_add_ps(total2, y);
    _mm512_store_si512(p + j, (__m512i)_mm512_cvtne2ps_pbh(y, x));
  }
  _mm512_store_ps(sum, _mm512_add_ps(total, total2));
}

Z3I_ATTN_AVX512 static void weigh_panel(const z3i_attn_amx *f, const block *w, int64_t i, int64_t nk, int64_t lead)
{
  int64_t count = z3i_attn_amx_panels(nk) * P;
  for (int64_t r = 0; r < P; r++)
    weigh(w->s + r * N, Z3I_MAX(Z3I_MIN(r + lead + 1, nk), 0), count, f->to_log2, w->max + i + r,
          w->sum + (i + r) * 16, w->p + r * N, w->o + (i + r) * f->D, f->D);
}

static void hide(const z3i_attn_amx *f, float *s, const uint8_t *mask, int64_t lines, int64_t nk)
{
  for (int64_t i = 0; i < lines; i++)
    for (int64_t j = 0; j < nk; j++)
      if (mask[i * f->mask_stride[2] + j * f->mask_stride[3]] == 0) s[i * N + j] = -INFINITY;
}

Z3I_ATTN_AVX512 static void finish(const z3i_attn_amx *f, const block *w, int64_t b, int64_t h, int64_t q0, int64_t nq)
{
  const z3i_view *out = &f->call->out[0];
  float *lse = (float *)f->call->aux[0].data + (b * f->H + h) * f->T + q0;
  for (int64_t i = 0; i < nq; i++) {
    float sum = _mm512_reduce_add_ps(_mm512_load_ps(w->sum + i * 16));
    char *row = z3i_attn_amx_row(out, b, h, q0 + i);
    z3i_attn_amx_ask_ahead(row, out->stride[2] * 2, f->D * 2, true);
    z3i_attn_store_row(row, Z3T_BF16, w->o + i * f->D, f->D, sum == 0 ? 0 : 1 / sum, false);
    lse[i] = sum == 0 ? -INFINITY : (float)((double)(w->max[i] * f->to_log2) * LN2 + log((double)sum));
  }
}

/* k, v: the head's keys packed as B by lines, its values by columns. */
static void query_block(const z3i_attn_amx *f, int64_t b, int64_t h, int64_t q0, const uint16_t *k, const uint16_t *v,
                        const block *w)
{
  int64_t D = f->D, nq = Z3I_MIN(f->T - q0, (int64_t)N), apart = z3i_attn_amx_panels(f->S) * P * P;
  int64_t rows = z3i_attn_amx_panels(nq) * P;
  z3i_attn_amx_pack_lines(w->q, z3i_attn_amx_rows(&f->call->in[0], b, h, q0, false), false, nq, D);
  memset(w->o, 0, (size_t)(rows * D) * sizeof *w->o);
  memset(w->sum, 0, (size_t)rows * 16 * sizeof *w->sum);
  for (int64_t i = 0; i < rows; i++) w->max[i] = -INFINITY;
  for (int64_t k0 = 0; k0 < Z3I_MIN(f->S, q0 + nq + f->lead); k0 += N)
    for (int64_t i = 0; i < nq; i += P) {
      int64_t lines = Z3I_MIN(nq - i, (int64_t)P), lead = q0 + i + f->lead - k0;
      int64_t nk = Z3I_MIN(Z3I_MIN(f->S - k0, (int64_t)N), lines + lead);
      if (nk <= 0) continue;
      for (int64_t j = 0; j < nk; j += P)
        z3i_attn_amx_product(z3i_attn_amx_packed(w->q + i * D), k + (k0 + j) * D, D / Z3I_AMX_STEP, w->s + j, N, false);
      const uint8_t *mask = z3i_attn_amx_mask(f, b, h, q0 + i, k0);
      if (mask != NULL) hide(f, w->s, mask, lines, nk);
      weigh_panel(f, w, i, nk, lead);
      for (int64_t d = 0; d < D; d += P)
        z3i_attn_amx_product(z3i_attn_amx_block_rows(w->p), v + d / P * apart + k0 * P, z3i_attn_amx_panels(nk),
                             w->o + i * D + d, D, true);
    }
  finish(f, w, b, h, q0, nq);
}

/* ---- workers ------------------------------------------------------------------------------------------ */
typedef struct work {
  z3i_attn_amx f;
  char *rooms;                                    /* a block for each thread */
  uint16_t *packed;                               /* heads: keys, then values, `each` elements each */
  int64_t each, heads, blocks;
} work;

static void pack_head(const work *all, int64_t head, uint16_t *k)
{
  const z3i_attn_amx *f = &all->f;
  int64_t b = head / f->K, g = head % f->K;
  z3i_attn_amx_pack_lines(k, z3i_attn_amx_rows(&f->call->in[1], b, g, 0, false), true, f->S, f->D);
  z3i_attn_amx_pack_columns(k + all->each, z3i_attn_amx_rows(&f->call->in[2], b, g, 0, true), f->S, f->D,
                            z3i_attn_amx_panels(f->S) * P * P);
}

/* Block number i of those of a head's queries. Late queries see most when causal: they come first, so that the threads
 * end together. */
static void head_block(const work *all, int64_t head, int64_t i, const uint16_t *k, const block *w)
{
  const z3i_attn_amx *f = &all->f;
  int64_t h = head % f->K * f->group + i / all->blocks;
  query_block(f, head / f->K, h, (all->blocks - 1 - i % all->blocks) * N, k, k + all->each, w);
}

/* A key head with all its queries is one thread's. */
static void by_heads(const work *all, const block *w)
{
  uint16_t *k = all->packed + 2 * omp_get_thread_num() * all->each;
#pragma omp for schedule(dynamic)
  for (int64_t head = 0; head < all->heads; head++) {
    pack_head(all, head, k);
    for (int64_t i = 0; i < all->f.group * all->blocks; i++) head_block(all, head, i, k, w);
  }
}

/* Threads share heads, `wave` of them at a time. */
static void by_blocks(const work *all, const block *w, int64_t wave)
{
  int64_t items = all->f.group * all->blocks;
  for (int64_t first = 0; first < all->heads; first += wave) {
    int64_t count = Z3I_MIN(wave, all->heads - first);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i++) pack_head(all, first + i, all->packed + 2 * i * all->each);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < count * items; i++)
      head_block(all, first + i / items, i % items, all->packed + 2 * (i / items) * all->each, w);
  }
}

int z3i_attn_amx_fwd(const z3i_call *c)
{
  enum { HEAD_MAX = 4 << 20 };                    /* elements packed of a head up to which each thread has its own */
  work all = { .f = z3i_attn_amx_describe(c) };
  const z3i_attn_amx *f = &all.f;
  int threads = z3i_attn_amx_threads(f);
  all.heads = f->B * f->K;
  all.blocks = (f->T + N - 1) / N;
  all.each = z3i_attn_amx_panels(f->S) * P * f->D;
  bool whole = (all.heads % threads == 0 || all.heads >= 4 * threads) && 2 * all.each <= HEAD_MAX;
  int64_t items = f->group * all.blocks, wave = Z3I_MIN((4 * threads + items - 1) / items, all.heads);
  size_t rooms = (size_t)threads * block_bytes(f), heads = (size_t)(whole ? threads : wave);
  Z3I_TRY(z3i_scratch(c->dev, rooms + heads * (size_t)all.each * 4, (void **)&all.rooms));
  all.packed = (uint16_t *)(void *)(all.rooms + rooms);
#pragma omp parallel num_threads(threads)
  {
    block w = block_in(f, all.rooms + (size_t)omp_get_thread_num() * block_bytes(f));
    z3i_amx_open();
    if (whole) by_heads(&all, &w);
    else by_blocks(&all, &w, wave);
    z3i_amx_close();
  }
  z3i_pool_free(c->dev, all.rooms);
  return Z3E_OK;
}

#else
bool z3i_attn_amx_takes(const z3i_call *c, bool backward)
{
  (void)c;
  (void)backward;
  return false;
}

int z3i_attn_amx_fwd(const z3i_call *c)
{
  (void)c;
  return Z3I_FAIL(Z3E_BUG, "attention: this machine has no AMX");
}
#endif
