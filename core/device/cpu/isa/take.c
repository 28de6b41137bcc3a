/* take.c -- rows picked by id, and sums of rows that share an id (embedding, index_select). Legend in take.h. */
#include "device/cpu/isa/take.h"

/* ---- picking ---------------------------------------------------------------------------------------- */
typedef struct take {
  const z3i_view *ids;
  char *dst;
  const char *src;
  int64_t N, V, row_bytes;
} take;

/* Rows j .. j+n-1 of outer index o. */
#define TAKE(T)                                                                                     \
  for (int64_t i = 0; i < n; i++) ((T *)dst)[i] = ((const T *)src)[z3i_id(f->ids, j + i)]

static void take_run(const take *f, int64_t o, int64_t j, int64_t n)
{
  const size_t bytes = (size_t)f->row_bytes;
  char *dst = f->dst + (size_t)(o * f->N + j) * bytes;
  const char *src = f->src + (size_t)(o * f->V) * bytes;
  switch (bytes) {                              /* a row of one element needs no call of memcpy */
  case 1: TAKE(uint8_t); return;
  case 2: TAKE(uint16_t); return;
  case 4: TAKE(uint32_t); return;
  case 8: TAKE(uint64_t); return;
  }
  for (int64_t i = 0; i < n; i++) memcpy(dst + (size_t)i * bytes, src + (size_t)z3i_id(f->ids, j + i) * bytes, bytes);
}

static void take_rows(void *ctx, int64_t lo, int64_t hi)
{
  const take *f = ctx;
  for (int64_t i = lo, n; i < hi; i += n) {
    const int64_t o = i / f->N, j = i % f->N;
    n = Z3I_MIN(hi - i, f->N - j);
    take_run(f, o, j, n);
  }
}

void z3i_rows_take(const z3i_view *picked, const z3i_view *data, const z3i_view *ids, int64_t outer, int64_t V,
                   int64_t inner)
{
  take f = { .ids = ids, .dst = picked->data, .src = data->data, .N = z3i_view_numel(ids), .V = V };
  f.row_bytes = inner * z3i_dtype_bytes(data->dtype);
  if (inner > 0) z3i_for_blocks(outer * f.N, z3i_rows_block(inner), outer * f.N * inner, take_rows, &f);
}

/* ---- sums ------------------------------------------------------------------------------------------- */
enum {
  PIECE = 64,                                   /* sorted positions whose runs are one unit of work */
  CHUNK = 512,                                  /* columns of a unit: also splits a run that is very long */
  DIGIT = 11                                    /* bits sorted at a time */
};

/* Positions 0..N-1 ordered by id, equal ids by position: a stable radix sort. room holds 2 N. Returns the half used. */
static const int64_t *order_by_id(const z3i_view *ids, int64_t N, int64_t V, int64_t *room)
{
  int64_t *from = room, *to = room + N, start[1 << DIGIT];
  for (int64_t i = 0; i < N; i++) from[i] = i;
  for (int shift = 0; shift < 63 && (V - 1) >> shift > 0; shift += DIGIT) {
    memset(start, 0, sizeof start);
    for (int64_t i = 0; i < N; i++) start[(z3i_id(ids, i) >> shift) & ((1 << DIGIT) - 1)]++;
    int64_t sum = 0;
    for (int d = 0; d < 1 << DIGIT; d++) {
      int64_t count = start[d];
      start[d] = sum;
      sum += count;
    }
    for (int64_t i = 0; i < N; i++) to[start[(z3i_id(ids, from[i]) >> shift) & ((1 << DIGIT) - 1)]++] = from[i];
    int64_t *other = from;
    from = to;
    to = other;
  }
  return from;
}

typedef struct sum {
  const z3i_view *data, *picked, *ids;
  const int64_t *order;
  int64_t N, V, inner;
  bool add;
} sum;

static void add_to(float *restrict acc, const float *restrict p, int64_t n)
{
  for (int64_t i = 0; i < n; i++) acc[i] += p[i];
}

/* One run: positions order[k..end) share an id; columns [col, col + n) of outer index o. */
static void sum_run(const sum *f, int64_t o, int64_t k, int64_t end, int64_t col, int64_t n)
{
  const z3i_view *g = f->picked;
  float acc[CHUNK], buf[CHUNK];
  const float *total = z3i_block_f32(acc, z3i_at(g, (o * f->N + f->order[k]) * f->inner + col), g->dtype, n);
  if (end - k > 1 && total != acc) total = memcpy(acc, total, (size_t)n * sizeof *acc);
  for (k++; k < end; k++)
    add_to(acc, z3i_block_f32(buf, z3i_at(g, (o * f->N + f->order[k]) * f->inner + col), g->dtype, n), n);
  int64_t row = o * f->V + z3i_id(f->ids, f->order[end - 1]);
  z3i_grad_f32(z3i_at(f->data, row * f->inner + col), f->data->dtype, total, n, f->add);
}

/* The runs that begin in one piece of the order. */
static void sum_piece(const sum *f, int64_t o, int64_t piece, int64_t col)
{
  const int64_t n = Z3I_MIN(f->inner - col, (int64_t)CHUNK), last = Z3I_MIN(f->N, (piece + 1) * PIECE);
  for (int64_t k = piece * PIECE, end; k < last; k = end) {
    int64_t id = z3i_id(f->ids, f->order[k]);
    bool begins = k == 0 || z3i_id(f->ids, f->order[k - 1]) != id;
    for (end = k + 1; end < (begins ? f->N : last) && z3i_id(f->ids, f->order[end]) == id; end++) continue;
    if (begins) sum_run(f, o, k, end, col, n);
  }
}

static void zero(void *ctx, int64_t lo, int64_t hi) { memset((char *)ctx + lo, 0, (size_t)(hi - lo)); }

int z3i_rows_sum(z3i_device *dev, const z3i_view *data, const z3i_view *picked, const z3i_view *ids, int64_t outer,
                 int64_t V, int64_t inner, bool add)
{
  sum f = { .data = data, .picked = picked, .ids = ids, .N = z3i_view_numel(ids), .V = V, .inner = inner, .add = add };
  int64_t *room, bytes = outer * V * inner * z3i_dtype_bytes(data->dtype);
  Z3I_TRY(z3i_scratch(dev, 2 * (size_t)f.N * sizeof *room, (void **)&room));
  f.order = order_by_id(ids, f.N, V, room);
  if (!add) z3i_for_blocks(bytes, 1 << 18, bytes / 4, zero, data->data);
  const int64_t pieces = (f.N + PIECE - 1) / PIECE, chunks = (inner + CHUNK - 1) / CHUNK;
  const int64_t units = outer * pieces * chunks;
  /* Dealt out one by one: the chunks of a very long run lie side by side and must not all go to one thread. */
#pragma omp parallel for schedule(static, 1) if (outer * f.N * inner >= Z3I_PAR_MIN)
  for (int64_t u = 0; u < units; u++) sum_piece(&f, u / chunks / pieces, u / chunks % pieces, u % chunks * CHUNK);
  z3i_pool_free(dev, room);
  return Z3E_OK;
}
