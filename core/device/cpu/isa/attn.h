/* attn.h -- what attention is made of at the level being compiled: vectors, products of tiles, exponentials, rows.
 * Legend: W = floats in a vector; a tile is a small block of f32 in cache, its lines a multiple of W long. */
#ifndef Z3I_ATTN_H
#define Z3I_ATTN_H
#include <math.h>
#include <omp.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#include "device/cpu/isa/rows.h"

enum {
  Z3I_TQ = 64, Z3I_TK = 64,                     /* queries and keys of a tile */
#if defined(__AVX512F__)
  W = 16, NV = 4, MR = 6                        /* the product keeps MR lines of NV vectors in registers */
#elif defined(__AVX__)
  W = 8, NV = 2, MR = 6
#else
  W = 4, NV = 2, MR = 6
#endif
};
typedef float vec __attribute__((vector_size(W * 4), aligned(4)));   /* aligned(4): loads from anywhere */
typedef int32_t ivec __attribute__((vector_size(W * 4), aligned(4)));

static inline vec splat(float x) { return x - (vec){ 0 }; }
static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec x) { *(vec *)p = x; }
static inline vec fma_vec(vec a, vec b, vec c)
{
#if defined(__AVX512F__)
  return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
/* mask lanes are all ones or zero */
static inline vec choose(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }
/* The larger; b where one is NaN. */
static inline vec max_vec(vec a, vec b)
{
#if defined(__AVX512F__)
  return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return choose(a > b, a, b);
#endif
}
static inline float sum_vec(vec x)
{
  float lane[W];
  memcpy(lane, &x, sizeof lane);
  for (int n = W / 2; n > 0; n /= 2)
    for (int i = 0; i < n; i++) lane[i] += lane[i + n];
  return lane[0];
}

/* 2^x: 1.3 ulp; exactly 0 below -126, so that a masked score weighs nothing; NaN stays. Wants x <= 127. */
static inline vec exp2_vec(vec x)
{
  vec y = choose(x < -126.0f, splat(-126.0f), x);
  vec t = y + Z3I_ROUND, r = y - (t - Z3I_ROUND);
  vec p = splat(1.5353362e-4f);
  p = fma_vec(p, r, splat(1.3398874e-3f));
  p = fma_vec(p, r, splat(9.6184373e-3f));
  p = fma_vec(p, r, splat(5.5503324e-2f));
  p = fma_vec(p, r, splat(2.4022648e-1f));
  p = fma_vec(p, r, splat(6.9314720e-1f));
  p = fma_vec(p, r, splat(1.0f));
  vec power = (vec)(((ivec)t << 23) + 0x3F800000);   /* the integer sits in the low bits of t */
  return (vec)((ivec)(p * power) & ~(x < -126.0f));
}

/* ---- product of tiles --------------------------------------------------------------------------------- */
/* Written out instead of looped over, so that every compiler keeps the sums in registers; m and nv are constants. */
#define EACH_VEC(X, i) X(i, 0) X(i, 1) X(i, 2) X(i, 3)
#define EACH_LINE(X) EACH_VEC(X, 0) EACH_VEC(X, 1) EACH_VEC(X, 2) EACH_VEC(X, 3) EACH_VEC(X, 4) EACH_VEC(X, 5)
#define START(i, v) if (i < m && v < nv) acc[i][v] = add ? load(c + i * ldc + v * W) : splat(0);
#define STEP(i, v) if (i < m && v < nv) acc[i][v] = fma_vec(splat(a[i * a_line]), load(b + v * W), acc[i][v]);
#define FINISH(i, v) if (i < m && v < nv) store(c + i * ldc + v * W, acc[i][v]);

__attribute__((always_inline)) static inline void lines(const int m, const int nv, int64_t k, const float *a,
                                                        int64_t a_line, int64_t a_step, const float *b, int64_t ldb,
                                                        float *c, int64_t ldc, bool add)
{
  vec acc[6][4];
  EACH_LINE(START)
  for (int64_t s = 0; s < k; s++, a += a_step, b += ldb) {
    EACH_LINE(STEP)
  }
  EACH_LINE(FINISH)
}

#define LINES(m, nv) lines(m, nv, k, a, a_line, a_step, b, ldb, c, ldc, add)
#define COLUMN(nv)                                                                                  \
  static inline void column_##nv(int64_t m, int64_t k, const float *a, int64_t a_line, int64_t a_step,                \
                                 const float *b, int64_t ldb, float *c, int64_t ldc, bool add)      \
  {                                                                                                 \
    for (; m >= MR; m -= MR, a += MR * a_line, c += MR * ldc) LINES(MR, nv);                        \
    switch (m) {                                                                                    \
    case 5: LINES(5, nv); break;                                                                    \
    case 4: LINES(4, nv); break;                                                                    \
    case 3: LINES(3, nv); break;                                                                    \
    case 2: LINES(2, nv); break;                                                                    \
    case 1: LINES(1, nv); break;                                                                    \
    default: break;                                                                                 \
    }                                                                                               \
  }
COLUMN(1)
COLUMN(2)
#if defined(__AVX512F__)
COLUMN(3)
COLUMN(4)
#endif

/* c (m,n) = or += a (m,k) b (k,n); n a multiple of W. Element (i,s) of a lies at a[i * a_line + s * a_step].
 * Each element's sum runs over k in order, from what c holds when adding. This is where matrix units would come in. */
static inline void tile_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_line, int64_t a_step,
                                const float *b, int64_t ldb, float *c, int64_t ldc, bool add)
{
  for (; n >= NV * W; n -= NV * W, b += NV * W, c += NV * W) {
#if defined(__AVX512F__)
    column_4(m, k, a, a_line, a_step, b, ldb, c, ldc, add);
  }
  if (n == 3 * W) column_3(m, k, a, a_line, a_step, b, ldb, c, ldc, add);
  if (n == 2 * W) column_2(m, k, a, a_line, a_step, b, ldb, c, ldc, add);
#else
    column_2(m, k, a, a_line, a_step, b, ldb, c, ldc, add);
  }
#endif
  if (n == W) column_1(m, k, a, a_line, a_step, b, ldb, c, ldc, add);
}

/* ---- the problem and its rows ------------------------------------------------------------------------- */
/* Legend: B batch, H query heads, K key heads (query head h sees key head h / (H / K)), T queries, S keys, D elements
 * of a head, P = D rounded up to W: the length of a tile's line. */
typedef struct z3i_attn {
  const z3i_call *call;
  int64_t B, H, K, T, S, D, P, group;
  float scale;
  bool causal;
  int64_t mask_stride[4];                       /* of (B,H,T,S); 0 where the mask is repeated */
  float *room;                                  /* scratch of all workers */
  size_t room_each;                             /* floats a worker has */
} z3i_attn;

static inline void attn_describe(const z3i_call *c, z3i_attn *f)
{
  const z3i_view *q = &c->in[0], *k = &c->in[1], *mask = &c->in[3];
  *f = (z3i_attn){ .call = c, .B = q->shape[0], .H = q->shape[1], .T = q->shape[2], .D = q->shape[3], .K = k->shape[1],
                   .S = k->shape[2], .scale = (float)c->attr->f[0], .causal = c->attr->i[0] != 0 };
  f->P = (f->D + W - 1) / W * W;
  f->group = f->K > 0 ? f->H / f->K : 0;
  for (int i = 0; mask->data != NULL && i < mask->ndim; i++)
    f->mask_stride[4 - mask->ndim + i] = mask->shape[i] == 1 ? 0 : mask->stride[i];
}

/* Row t of head h. */
static inline char *attn_row(const z3i_view *v, int64_t b, int64_t h, int64_t t)
{
  return (char *)v->data + (b * v->stride[0] + h * v->stride[1] + t * v->stride[2]) * z3i_dtype_bytes(v->dtype);
}
/* Rows of a head lie far apart, beyond what the hardware foresees: row t + AHEAD is asked for while row t is read. */
enum { AHEAD = 12 };
static inline void attn_ask(const z3i_view *v, const char *row, int64_t n)
{
  int64_t each = z3i_dtype_bytes(v->dtype);
  uintptr_t later = (uintptr_t)row + (uintptr_t)(AHEAD * v->stride[2] * each);
  for (int64_t at = 0; at < n * each; at += 64) __builtin_prefetch((const void *)(later + (uintptr_t)at));
}
static inline void attn_load_row(float *dst, const z3i_view *v, const char *src, int64_t n)
{
  int64_t step = v->stride[3] * z3i_dtype_bytes(v->dtype);
  if (v->stride[3] == 1 || n <= 1) z3i_load_f32(dst, src, v->dtype, n);
  else for (int64_t d = 0; d < n; d++) z3i_load_f32(dst + d, src + d * step, v->dtype, 1);
}
static inline void attn_store_row(const z3i_view *v, char *dst, const float *src, int64_t n, bool add)
{
  int64_t step = v->stride[3] * z3i_dtype_bytes(v->dtype);
  if (v->stride[3] == 1 || n <= 1) z3i_grad_f32(dst, v->dtype, src, n, add);
  else for (int64_t d = 0; d < n; d++) z3i_grad_f32(dst + d * step, v->dtype, src + d, 1, add);
}

/* Rows t0.. of a head as lines of floats with zeros from D to P. Rows of floats that are lines already are used where
 * they lie; others are converted into tile. (Floats further apart are copied as well: distances of 2^n KiB fall on few
 * cache sets.) */
static inline const float *attn_lines(const z3i_attn *f, const z3i_view *v, int64_t b, int64_t h, int64_t t0,
                                      int64_t count, float *tile)
{
  if (v->dtype == Z3T_F32 && v->stride[3] == 1 && f->D == f->P && v->stride[2] == f->P)
    return (const float *)(const void *)attn_row(v, b, h, t0);
  for (int64_t i = 0; i < count; i++) {
    const char *row = attn_row(v, b, h, t0 + i);
    attn_ask(v, row, f->D);
    attn_load_row(tile + i * f->P, v, row, f->D);
    for (int64_t d = f->D; d < f->P; d++) tile[i * f->P + d] = 0;
  }
  return tile;
}

/* Keys and values as a worker sees them: all of a head converted once (all_k not NULL), or each tile when it comes. */
typedef struct attn_keys {
  float *k, *v;                                 /* room for a tile, or for all keys of a head */
  const float *all_k, *all_v;
} attn_keys;

/* Beyond this many floats, all keys of a head would cost more memory than time saved. */
enum { ATTN_ALL_MAX = 2 << 20 };
static inline bool attn_fits_all(const z3i_attn *f) { return f->S * f->P <= ATTN_ALL_MAX; }

static inline void attn_load_all(const z3i_attn *f, int64_t b, int64_t g, attn_keys *keys)
{
  keys->all_k = attn_lines(f, &f->call->in[1], b, g, 0, f->S, keys->k);
  keys->all_v = attn_lines(f, &f->call->in[2], b, g, 0, f->S, keys->v);
}
static inline const float *attn_k(const z3i_attn *f, const attn_keys *keys, int64_t b, int64_t g, int64_t k0,
                                  int64_t count)
{
  return keys->all_k ? keys->all_k + k0 * f->P : attn_lines(f, &f->call->in[1], b, g, k0, count, keys->k);
}
static inline const float *attn_v(const z3i_attn *f, const attn_keys *keys, int64_t b, int64_t g, int64_t k0,
                                  int64_t count)
{
  return keys->all_v ? keys->all_v + k0 * f->P : attn_lines(f, &f->call->in[2], b, g, k0, count, keys->v);
}

/* dst[d][i] = by * src[i][d]: columns of length TQ. Rows and lines are multiples of 4. */
static inline void attn_turn(float *dst, const float *src, int64_t ld, int64_t rows, int64_t cols, float by)
{
#ifdef __x86_64__
  __m128 s = _mm_set1_ps(by);
  for (int64_t i = 0; i < rows; i += 4)
    for (int64_t d = 0; d < cols; d += 4) {
      const float *p = src + i * ld + d;
      __m128 r0 = _mm_loadu_ps(p), r1 = _mm_loadu_ps(p + ld);
      __m128 r2 = _mm_loadu_ps(p + 2 * ld), r3 = _mm_loadu_ps(p + 3 * ld);
      _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
      float *o = dst + d * Z3I_TQ + i;
      _mm_storeu_ps(o, r0 * s);
      _mm_storeu_ps(o + Z3I_TQ, r1 * s);
      _mm_storeu_ps(o + 2 * Z3I_TQ, r2 * s);
      _mm_storeu_ps(o + 3 * Z3I_TQ, r3 * s);
    }
#else
  for (int64_t i = 0; i < rows; i++)
    for (int64_t d = 0; d < cols; d++) dst[d * Z3I_TQ + i] = src[i * ld + d] * by;
#endif
}

/* ---- one tile of scores ------------------------------------------------------------------------------- */
/* Queries q0.. (nq of them, nqw rounded up to W) against keys k0.. (nk). In memory keys are lines, queries columns:
 * s[j][i]. lead: query i sees key j when j <= i + lead; nk - 1 or more where all see all. */
typedef struct attn_tile {
  int64_t b, h, q0, nq, nqw, k0, nk, lead;
} attn_tile;

enum { STRIP = 16 };                            /* of a tile on the diagonal, strips that nobody sees are skipped */

static inline int64_t attn_keys_end(const z3i_attn *f, int64_t q0, int64_t nq)
{
  return f->causal ? Z3I_MIN(f->S, q0 + nq) : f->S;
}
static inline attn_tile attn_tile_at(const z3i_attn *f, int64_t b, int64_t h, int64_t q0, int64_t k0)
{
  attn_tile t = { .b = b, .h = h, .q0 = q0, .k0 = k0, .nq = Z3I_MIN(f->T - q0, (int64_t)Z3I_TQ) };
  t.nqw = (t.nq + W - 1) / W * W;
  t.nk = Z3I_MIN(attn_keys_end(f, q0, t.nq) - k0, (int64_t)Z3I_TK);
  t.lead = f->causal ? q0 - k0 : t.nk - 1;
  return t;
}

/* s[j][i] = keys j . queries i (qt: queries turned), where somebody sees j. */
static inline void attn_keys_by_queries(const z3i_attn *f, const attn_tile *t, const float *k, const float *qt,
                                        float *s)
{
  if (t->lead >= t->nk - 1) {
    tile_product(t->nk, t->nqw, f->D, k, f->P, 1, qt, Z3I_TQ, s, Z3I_TQ, false);
    return;
  }
  for (int64_t j = 0; j < t->nk; j += STRIP) {
    int64_t i = Z3I_MAX(j - t->lead, 0) / W * W;
    if (i < t->nqw)
      tile_product(Z3I_MIN(t->nk - j, (int64_t)STRIP), t->nqw - i, f->D, k + j * f->P, f->P, 1, qt + i, Z3I_TQ,
                   s + j * Z3I_TQ + i, Z3I_TQ, false);
  }
}

/* out[i][d] += sum over the keys j that i may see of s[j][i] v[j][d]. */
static inline void attn_queries_add(const z3i_attn *f, const attn_tile *t, const float *s, const float *v, float *out)
{
  if (t->lead >= t->nk - 1) {
    tile_product(t->nq, f->P, t->nk, s, 1, Z3I_TQ, v, f->P, out, f->P, true);
    return;
  }
  for (int64_t i = 0; i < t->nq; i += STRIP) {
    int64_t rows = Z3I_MIN(t->nq - i, (int64_t)STRIP), keys = Z3I_MIN(t->nk, i + rows + t->lead);
    if (keys > 0) tile_product(rows, f->P, keys, s + i, 1, Z3I_TQ, v, f->P, out + i * f->P, f->P, true);
  }
}

/* Scores of what a query must not see become -inf. */
static inline void attn_hide(const z3i_attn *f, const attn_tile *t, float *s)
{
  for (int64_t j = Z3I_MAX(t->lead + 1, 0); j < t->nk; j++)
    for (int64_t i = 0; i < Z3I_MIN(j - t->lead, t->nqw); i++) s[j * Z3I_TQ + i] = -INFINITY;
  const uint8_t *mask = f->call->in[3].data;
  if (mask == NULL) return;
  const int64_t *stride = f->mask_stride;
  mask += t->b * stride[0] + t->h * stride[1] + t->q0 * stride[2] + t->k0 * stride[3];
  for (int64_t j = 0; j < t->nk; j++)
    for (int64_t i = 0; i < t->nq; i++)
      if (mask[i * stride[2] + j * stride[3]] == 0) s[j * Z3I_TQ + i] = -INFINITY;
}

/* ---- workers ------------------------------------------------------------------------------------------ */
/* Calls work(f, item, room) for each item on as many threads as there are. Items write only what is theirs, so that
 * neither the number of threads nor who takes which item can change a bit. They differ in size: hence the order. */
static inline int attn_workers(z3i_attn *f, int64_t items, size_t room_each, int threads,
                               void (*work)(const z3i_attn *f, int64_t item, float *room))
{
  threads = (int)Z3I_MAX(Z3I_MIN((int64_t)threads, items), 1);
  f->room_each = (room_each + 15) & ~(size_t)15;
  Z3I_TRY(z3i_scratch(f->call->dev, (size_t)threads * f->room_each * sizeof(float), (void **)&f->room));
#pragma omp parallel num_threads(threads)
  {
    float *room = f->room + (size_t)omp_get_thread_num() * f->room_each;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < items; i++) work(f, i, room);
  }
  z3i_pool_free(f->call->dev, f->room);
  return Z3E_OK;
}
/* Small problems stay on one thread. */
static inline int attn_threads(const z3i_attn *f)
{
  return f->B * f->H * f->T * f->S * f->D < 100000 || omp_in_parallel() ? 1 : omp_get_max_threads();
}
#endif
