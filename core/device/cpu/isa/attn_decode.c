/* attn_decode.c -- attention of few queries against many keys, as in writing text token by token. Nothing but the
 * reading of keys and values matters here, so each is read once for all query heads that share it, by chunks of keys
 * that threads take in any order; a second step joins the chunks of a query in order. Letters: attn.h; R = rows that
 * share keys. */
#include "device/cpu/isa/attn.h"
#include "device/cpu/isa/attn_levels.h"

#define LOG2E 1.4426950408889634
#define LN2 0.69314718055994531

enum { CHUNK = 512 };                           /* keys; fixed, so that bits don't depend on the threads */

/* Of one row and chunk: maximum, sum, then P floats of the result so far. */
static int64_t part_floats(const z3i_attn *f) { return f->P + W; }

typedef struct decode {
  z3i_attn f;                                   /* first: items get a pointer to it */
  int64_t rows, chunks;
  float *parts;
} decode;

static size_t room_floats(const decode *d)
{
  return (size_t)(d->rows * d->f.P + d->rows * Z3I_TK + 2 * Z3I_TK * d->f.P);
}

/* s[j] = q . k[j] */
static void dots(const z3i_attn *f, const float *q, const float *k, int64_t nk, float *s)
{
  const int64_t ld = f->P;
  int64_t j = 0;
  for (; j + 4 <= nk; j += 4) {
    const float *p = k + j * ld;
    vec a = splat(0), b = a, c = a, e = a;
    for (int64_t d = 0; d < f->P; d += W) {
      vec x = load(q + d);
      a = fma_vec(x, load(p + d), a);
      b = fma_vec(x, load(p + ld + d), b);
      c = fma_vec(x, load(p + 2 * ld + d), c);
      e = fma_vec(x, load(p + 3 * ld + d), e);
    }
    s[j] = sum_vec(a);
    s[j + 1] = sum_vec(b);
    s[j + 2] = sum_vec(c);
    s[j + 3] = sum_vec(e);
  }
  for (; j < nk; j++) {
    vec a = splat(0);
    for (int64_t d = 0; d < f->P; d += W) a = fma_vec(load(q + d), load(k + j * ld + d), a);
    s[j] = sum_vec(a);
  }
}

static void hide(const z3i_attn *f, int64_t b, int64_t h, int64_t t, int64_t k0, int64_t nk, float *s)
{
  if (f->causal)
    for (int64_t j = Z3I_MAX(t + 1 - k0, 0); j < nk; j++) s[j] = -INFINITY;
  const uint8_t *mask = f->call->in[3].data;
  if (mask == NULL) return;
  mask += b * f->mask_stride[0] + h * f->mask_stride[1] + t * f->mask_stride[2] + k0 * f->mask_stride[3];
  for (int64_t j = 0; j < nk; j++)
    if (mask[j * f->mask_stride[3]] == 0) s[j] = -INFINITY;
}

/* Scores to weights; shrinks what the row has so far. Columns from nk to TK weigh nothing. */
static void weigh(const z3i_attn *f, float *part, float *s, int64_t nk)
{
  float *o = part + W;
  vec top = splat(part[0]);
  for (int64_t j = nk; j < Z3I_TK; j++) s[j] = -INFINITY;
  for (int64_t j = 0; j < Z3I_TK; j += W) top = max_vec(load(s + j), top);
  float max = part[0];
  for (int i = 0; i < W; i++) max = top[i] > max ? top[i] : max;
  float shift = max == -INFINITY ? 0 : max;
  vec shrink = exp2_vec(splat(part[0] - shift)), sum = splat(0);
  for (int64_t j = 0; j < Z3I_TK; j += W) {
    vec p = exp2_vec(load(s + j) - splat(shift));
    store(s + j, p);
    sum += p;
  }
  for (int64_t d = 0; d < f->P; d += W) store(o + d, load(o + d) * shrink);
  part[0] = max;
  part[1] = part[1] * shrink[0] + sum_vec(sum);
}

/* Heads in turn over the same tokens: their keys may share memory pages. */
static void chunk_item(const z3i_attn *f, int64_t item, float *room)
{
  const decode *d = (const decode *)(const void *)f;
  int64_t g = item % f->K, chunk = item / f->K % d->chunks, b = item / f->K / d->chunks, first = chunk * CHUNK;
  float *q = room, *s = q + d->rows * f->P, *k_room = s + d->rows * Z3I_TK, *v_room = k_room + Z3I_TK * f->P;
  float *parts = d->parts + ((b * f->K + g) * d->chunks + chunk) * d->rows * part_floats(f);
  for (int64_t r = 0; r < d->rows; r++) {
    float *row = q + r * f->P, *part = parts + r * part_floats(f);
    attn_load_row(row, &f->call->in[0], attn_row(&f->call->in[0], b, g * f->group + r / f->T, r % f->T), f->D);
    for (int64_t i = 0; i < f->D; i++) row[i] *= (float)((double)f->scale * LOG2E);
    for (int64_t i = f->D; i < f->P; i++) row[i] = 0;
    memset(part, 0, (size_t)part_floats(f) * sizeof *part);
    part[0] = -INFINITY;
  }
  for (int64_t k0 = first; k0 < Z3I_MIN(first + CHUNK, f->S); k0 += Z3I_TK) {
    int64_t nk = Z3I_MIN(f->S - k0, (int64_t)Z3I_TK);
    const float *k = attn_lines(f, &f->call->in[1], b, g, k0, nk, k_room);
    for (int64_t r = 0; r < d->rows; r++) {
      dots(f, q + r * f->P, k, nk, s + r * Z3I_TK);
      hide(f, b, g * f->group + r / f->T, r % f->T, k0, nk, s + r * Z3I_TK);
      weigh(f, parts + r * part_floats(f), s + r * Z3I_TK, nk);
    }
    const float *v = attn_lines(f, &f->call->in[2], b, g, k0, nk, v_room);
    tile_product(d->rows, f->P, nk, s, Z3I_TK, 1, v, f->P, parts + W, part_floats(f), true);
  }
}

/* One row: its chunks in order. */
static void join_item(const z3i_attn *f, int64_t item, float *o)
{
  const decode *d = (const decode *)(const void *)f;
  int64_t bg = item / d->rows, r = item % d->rows, b = bg / f->K, h = bg % f->K * f->group + r / f->T, t = r % f->T;
  const float *parts = d->parts + (bg * d->chunks * d->rows + r) * part_floats(f);
  int64_t step = d->rows * part_floats(f);
  float max = -INFINITY, sum = 0;
  for (int64_t c = 0; c < d->chunks; c++) max = parts[c * step] > max ? parts[c * step] : max;
  memset(o, 0, (size_t)f->P * sizeof *o);
  for (int64_t c = 0; c < d->chunks; c++) {
    const float *part = parts + c * step;
    vec by = exp2_vec(splat(part[0] - (max == -INFINITY ? 0 : max)));
    sum += part[1] * by[0];
    for (int64_t i = 0; i < f->P; i += W) store(o + i, fma_vec(load(part + W + i), by, load(o + i)));
  }
  float by = sum == 0 ? 0 : 1 / sum;
  for (int64_t i = 0; i < f->P; i += W) store(o + i, load(o + i) * splat(by));
  const z3i_view *out = &f->call->out[0];
  attn_store_row(out, attn_row(out, b, h, t), o, f->D, false);
  float *lse = (float *)f->call->aux[0].data + (b * f->H + h) * f->T + t;
  *lse = sum == 0 ? -INFINITY : (float)((double)max * LN2 + log((double)sum));
}

int Z3I_SYM(attention_decode)(const struct z3i_attn *problem)
{
  decode d = { .f = *problem, .rows = problem->group * problem->T, .chunks = (problem->S + CHUNK - 1) / CHUNK };
  int64_t items = d.f.B * d.f.K * d.chunks;
  Z3I_TRY(z3i_scratch(d.f.call->dev, (size_t)(items * d.rows * part_floats(&d.f)) * sizeof(float), (void **)&d.parts));
  int rc = attn_workers(&d.f, items, room_floats(&d), attn_threads(&d.f), chunk_item);
  int threads = d.chunks > 8 ? attn_threads(&d.f) : 1;
  if (rc == Z3E_OK) rc = attn_workers(&d.f, d.f.B * d.f.K * d.rows, (size_t)d.f.P, threads, join_item);
  z3i_pool_free(d.f.call->dev, d.parts);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}
