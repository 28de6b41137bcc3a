/* gemm_amx.c -- bf16 products on AMX tiles: packed panels, 32 x 32 of C at a time in four tiles.
 * Each thread computes a rectangle of C alone. It packs a block of B that stays in the L2 cache and takes the rows of A
 * past it, panel by panel. What a panel of rows needs besides (packing the next one, storing results) goes between the
 * tile instructions, and memory is asked for well before it is used: lines far apart come slowly from where they are.
 * Where K is long it is cut, and sums wait in f32; reloading a tile changes no bit.
 * Legend: gemm_amx.h; mp, np: panels of rows, of columns. Blocking after Goto and van de Geijn (2008). */
#include "device/cpu/gemm_amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <immintrin.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device/cpu/isa_pick.h"

#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl")))
#define BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

enum {
  P = Z3I_AMX_PANEL, STEP = Z3I_AMX_STEP, BLOCK = Z3I_AMX_BLOCK,
  K_MAX = 1024,                                   /* K at once */
  B_MAX = 448 * 1024,                             /* elements of a block of B: 7/16 of a 2 MiB L2 cache */
  M_MAX = 1024, N_MAX = 2048,                     /* of C at once: bounds of a thread's scratch */
  RUN = 4,                                        /* steps of A packed together, along its lines */
  C_BLOCK = P * P                                 /* f32 of a block of C */
};

static int64_t parts(int64_t n, int64_t each) { return (n + each - 1) / each; }

/* ---- whether ----------------------------------------------------------------------------------------- */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool usable;
static int mode = Z3I_AMX_AUTO;

/* Linux gives a process the tiles only when it asks: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA). */
static void find_out(void)
{
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  usable = z3i_isa_amx() && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
  const char *asked = getenv("Z3_GEMM");
  if (asked != NULL && strcmp(asked, "onednn") == 0) mode = Z3I_AMX_NEVER;
  if (asked != NULL && strcmp(asked, "own") == 0) mode = Z3I_AMX_ALWAYS;
}

int z3i_amx_mode(int wanted)
{
  pthread_once(&once, find_out);
  int before = mode;
  mode = wanted;
  return before;
}

bool z3i_amx_takes(const z3i_gemm_args *g)
{
  if (g->in_dtype != Z3T_BF16) return false;
  pthread_once(&once, find_out);
  if (!usable || mode == Z3I_AMX_NEVER) return false;
  return mode == Z3I_AMX_ALWAYS || (g->batch == 1 && g->m >= 64 && g->n >= 64 && g->k >= 64);
}

/* ---- rows of C ---------------------------------------------------------------------------------------- */

/* A finished block and where it goes: its place in the rectangle and the part of it that exists. */
typedef struct finished {
  const float *block;                             /* NULL: none */
  int64_t i, j, rows, cols;
} finished;

typedef struct work {
  const z3i_gemm_args *g;
  z3i_amx_source a, b;                            /* at the rectangle's first row, first column */
  const uint16_t *bias;
  char *c;
  int64_t m, n, k;                                /* of the rectangle */
  int64_t kc, nc;                                 /* K and columns at once; multiples of 32 */
  uint16_t *a_room, *b_room;                      /* packed: (M_MAX x kc), (kc x nc) */
  float *sums;                                    /* blocks of C between parts of K; NULL where K is whole */
  float *blocks[2];                               /* finished in turn: one is stored while the next is made */
  int64_t m0, mp, n0, np, k0, k1, steps;          /* rows, panels of columns and part of K in hand */
  float *sums0;                                   /* of the columns in hand */
  bool a_packed;
  finished pending;
  int turn;
} work;

/* All eight tiles have 16 rows of 64 bytes. */
AMX static void tiles_open(void)
{
  struct { uint8_t palette, start, zero[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } config;
  memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int i = 0; i < 8; i++) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  __asm__ volatile("" ::"r"(&config) : "memory"); /* gcc 12 says that the instruction reads 8 bytes */
  _tile_loadconfig(&config);
}

AMX static void tiles_close(void) { _tile_release(); }

/* 16 results in the low halves, as z3i_f32_to_bf16 rounds. */
AVX512 static inline __m256i to_bf16(__m512 x)
{
  __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

AVX512 static inline __m512 of_bf16(__m256i h)
{
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Row r of a finished block to C: plus the bias, added to C or not, rounded. */
AVX512 static void store_row(const work *w, const finished *f, int64_t r)
{
  const z3i_gemm_args *g = w->g;
  for (int64_t half = 0; half < f->cols; half += 16) {
    __mmask16 mask = (__mmask16)(f->cols - half >= 16 ? 0xFFFFu : (1u << (f->cols - half)) - 1u);
    __m512 x = _mm512_load_ps(f->block + r * P + half);
    int64_t column = f->j + half, at = (f->i + r) * g->ldc + column;
    if (w->bias != NULL) x = _mm512_add_ps(x, of_bf16(_mm256_maskz_loadu_epi16(mask, w->bias + column)));
    if (g->out_dtype == Z3T_F32) {
      float *c = (float *)w->c + at;
      if (g->add) x = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), x);
      _mm512_mask_storeu_ps(c, mask, x);
    } else {
      uint16_t *c = (uint16_t *)w->c + at;
      if (g->add) x = _mm512_add_ps(of_bf16(_mm256_maskz_loadu_epi16(mask, c)), x);
      _mm256_mask_storeu_epi16(c, mask, to_bf16(x));
    }
  }
}

/* Rows first..end-1. Whole rows of bf16 are rounded by the instruction for it, which differs from to_bf16 only in that it
 * takes denormal results as 0: products have none, and those that the bias makes go the other way. */
BF16 static void store_rows(const work *w, const finished *f, int64_t first, int64_t end)
{
  const z3i_gemm_args *g = w->g;
  enum { DENORMAL = 0x20 };
  bool plain = g->out_dtype == Z3T_BF16 && !g->add && f->cols == P;
  __m512 bias0 = _mm512_setzero_ps(), bias1 = bias0;
  if (plain && w->bias != NULL) {
    bias0 = of_bf16(_mm256_loadu_si256((const __m256i *)(const void *)(w->bias + f->j)));
    bias1 = of_bf16(_mm256_loadu_si256((const __m256i *)(const void *)(w->bias + f->j + 16)));
  }
  for (int64_t r = first; r < end; r++) {
    __m512 x = _mm512_load_ps(f->block + r * P), y = _mm512_load_ps(f->block + r * P + 16);
    if (w->bias != NULL) {
      x = _mm512_add_ps(x, bias0);
      y = _mm512_add_ps(y, bias1);
    }
    if (plain && _mm512_kortestz(_mm512_fpclass_ps_mask(x, DENORMAL), _mm512_fpclass_ps_mask(y, DENORMAL)))
      _mm512_storeu_si512((uint16_t *)w->c + (f->i + r) * g->ldc + f->j, (__m512i)_mm512_cvtne2ps_pbh(y, x));
    else store_row(w, f, r);
  }
}

/* ---- what is done beside a block of C ---------------------------------------------------------------- */
static z3i_amx_source line_of(z3i_amx_source s, int64_t line, int64_t k)
{
  s.data += s.k_major ? k * s.ld + line : line * s.ld + k;
  return s;
}

/* A panel to be packed bit by bit. */
typedef struct packing {
  uint16_t *dst;
  z3i_amx_source src;
  int64_t lines, k, first, end;                   /* steps first..end-1 are still to be done */
} packing;

/* Lines of memory to be asked for, in rows. */
typedef struct fetching {
  const char *at;
  int64_t rows, row_bytes, stride;
  int64_t row, byte;                              /* how far it is */
} fetching;

typedef struct aside {
  const work *w;
  finished store;
  packing a;
  fetching next_a, c;
  int64_t row;                                    /* how far storing is */
  int64_t rows_each, a_each, next_each, c_each;   /* in one turn: rows, steps, lines, rows */
  int64_t turn, turns;
} aside;

static void fetch_lines(fetching *f, int64_t lines, bool to_write)
{
  for (; lines > 0 && f->row < f->rows; lines--) {
    const char *at = f->at + f->row * f->stride + f->byte;
    if (to_write) __builtin_prefetch(at, 1);
    else __builtin_prefetch(at);
    f->byte += 64;
    if (f->byte < f->row_bytes) continue;
    f->byte = 0;
    f->row++;
  }
}

static void aside_some(aside *o)
{
  fetch_lines(&o->c, o->c_each, true);
  fetch_lines(&o->next_a, o->next_each, false);
  if (o->row < o->store.rows) {
    int64_t end = Z3I_MIN(o->row + o->rows_each, o->store.rows);
    store_rows(o->w, &o->store, o->row, end);
    o->row = end;
  }
  if (o->a.first < o->a.end && o->turn % RUN == 0) {
    int64_t end = Z3I_MIN(o->a.first + RUN * o->a_each, o->a.end);
    z3i_amx_pack(o->a.dst, &o->a.src, false, o->a.lines, o->a.k, o->a.first, end);
    o->a.first = end;
  }
  o->turn++;
}

/* A panel of A as tiles are loaded from it, in bytes: from row to row, from step to step, to the second tile. */
typedef struct tiles_a {
  const char *at;
  int64_t row, step, second;
} tiles_a;

/* The block of C in from (NULL: 0) plus a panel of A by a panel of B, to `to` whose rows are ld floats apart. What else is
 * to be done goes between the steps: the tile unit is busy for 64 cycles a step, and little else of the core is. */
AMX static void product_block(tiles_a a, const uint16_t *b, int64_t steps, const float *from, float *to, int64_t ld,
                              aside *other)
{
  __asm__ volatile("" ::: "memory");              /* gcc 12 says that tile loads read no memory */
  if (from == NULL) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, from, P * 4);
    _tile_loadd(1, from + 16, P * 4);
    _tile_loadd(2, from + 16 * P, P * 4);
    _tile_loadd(3, from + 16 * P + 16, P * 4);
  }
  for (int64_t s = 0; s < steps; s++, a.at += a.step, b += BLOCK) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a.at, a.row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + BLOCK / 2, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a.at + a.second, a.row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    if (s < other->turns) aside_some(other);
  }
  _tile_stored(0, to, ld * 4);
  _tile_stored(1, to + 16, ld * 4);
  _tile_stored(2, to + 16 * ld, ld * 4);
  _tile_stored(3, to + 16 * ld + 16, ld * 4);
}

/* ---- one rectangle of C ------------------------------------------------------------------------------ */
/* Whether tiles are loaded from A as it lies. */
static bool lies_ready(const work *w, int64_t i)
{
  return !w->a.k_major && w->m - w->m0 - i * P >= P && (w->k1 - w->k0) % STEP == 0;
}

/* Part n of `of` of panel i of A. */
static packing packing_a(const work *w, int64_t i, int64_t n, int64_t of)
{
  int64_t row = w->m0 + i * P;
  if (i >= w->mp || w->a_packed || lies_ready(w, i)) return (packing){ .dst = NULL };
  return (packing){ .dst = w->a_room + i * P * w->kc, .src = line_of(w->a, row, w->k0), .k = w->k1 - w->k0,
                    .lines = Z3I_MIN(w->m - row, (int64_t)P), .first = w->steps * n / of, .end = w->steps * (n + 1) / of };
}

/* Part n of `of` of what panel i of A lies in: packed already, or the matrix. */
static fetching fetching_a(const work *w, int64_t i, int64_t n, int64_t of)
{
  int64_t row = w->m0 + i * P, k = w->k1 - w->k0;
  if (i >= w->mp) return (fetching){ .at = NULL };
  if (w->a_packed && !lies_ready(w, i)) {
    int64_t first = w->steps * n / of, end = w->steps * (n + 1) / of;
    return (fetching){ .at = (const char *)(w->a_room + i * P * w->kc + first * BLOCK), .rows = 1,
                       .row_bytes = (end - first) * BLOCK * 2 };
  }
  z3i_amx_source s = line_of(w->a, row, w->k0);
  int64_t lines = s.k_major ? k : Z3I_MIN(w->m - row, (int64_t)P), first = lines * n / of;
  return (fetching){ .at = (const char *)(s.data + first * s.ld), .rows = lines * (n + 1) / of - first,
                     .row_bytes = s.k_major ? P * 2 : k * 2, .stride = s.ld * 2 };
}

/* Sets what goes beside block (i,j) of C: panels. */
static aside aside_of(const work *w, int64_t i, int64_t j, const finished *f, bool last)
{
  int64_t bytes = z3i_dtype_bytes(w->g->out_dtype);
  aside o = { .w = w, .store = w->pending, .turns = w->steps, .a = packing_a(w, i + 1, j, w->np),
              .next_a = fetching_a(w, i + (w->a.k_major && !w->a_packed ? 2 : 1), j, w->np) };
  if (last) o.c = (fetching){ .at = w->c + (f->i * w->g->ldc + f->j) * bytes, .rows = f->rows, .row_bytes = f->cols * bytes,
                              .stride = w->g->ldc * bytes };
  else o.c = (fetching){ .at = (const char *)(w->sums0 + (i * w->np + j + 1) * C_BLOCK), .rows = 1, .row_bytes = C_BLOCK * 4 };
  o.rows_each = parts(P, w->steps);
  o.a_each = parts(o.a.end - o.a.first, w->steps);
  o.next_each = parts(o.next_a.rows * parts(o.next_a.row_bytes, 64), w->steps);
  o.c_each = parts(o.c.rows * parts(o.c.row_bytes, 64), w->steps);
  return o;
}

/* Block (i,j) of C, for the part of K in hand: on to the next part, or finished. */
static void block_of_c(work *w, int64_t i, int64_t j)
{
  const z3i_gemm_args *g = w->g;
  const uint16_t *b = w->b_room + j * P * w->kc;
  int64_t row = w->m0 + i * P, column = w->n0 + j * P;
  tiles_a a = { (const char *)(w->a_room + i * P * w->kc), 64, BLOCK * 2, BLOCK };
  if (lies_ready(w, i)) a = (tiles_a){ (const char *)(w->a.data + row * w->a.ld + w->k0), w->a.ld * 2, STEP * 2, w->a.ld * 32 };
  finished f = { w->blocks[w->turn], row, column, Z3I_MIN(w->m - row, (int64_t)P), Z3I_MIN(w->n - column, (int64_t)P) };
  float *sums = w->sums != NULL ? w->sums0 + (i * w->np + j) * C_BLOCK : NULL;
  const float *from = w->k0 > 0 ? sums : NULL;
  bool last = w->k1 == w->k, direct = g->out_dtype == Z3T_F32 && !g->add && w->bias == NULL && f.rows == P && f.cols == P;
  aside other = aside_of(w, i, j, &f, last);
  w->pending.rows = 0;
  if (!last) product_block(a, b, w->steps, from, sums, P, &other);
  else if (direct) product_block(a, b, w->steps, from, (float *)(void *)w->c + row * g->ldc + column, g->ldc, &other);
  else {
    product_block(a, b, w->steps, from, w->blocks[w->turn], P, &other);
    w->pending = f;
    w->turn ^= 1;
  }
  while (other.row < other.store.rows || other.a.first < other.a.end) aside_some(&other);
}

/* The columns in hand of B, along its lines: all panels of a step, or all steps of a panel. The processor sees that order
 * and reads ahead by itself; asking for memory slowed it down. */
static void pack_b(const work *w)
{
  int64_t count = w->np * w->steps;
  for (int64_t u = 0; u < count; u++) {
    int64_t j = w->b.k_major ? u % w->np : u / w->steps, step = w->b.k_major ? u / w->np : u % w->steps;
    int64_t column = w->n0 + j * P;
    z3i_amx_source s = line_of(w->b, column, w->k0);
    z3i_amx_pack(w->b_room + j * P * w->kc, &s, true, Z3I_MIN(w->n - column, (int64_t)P), w->k1 - w->k0, step, step + 1);
  }
}

/* All rows in hand by n columns from n0. */
static void columns(work *w, int64_t n)
{
  w->np = parts(n, P);
  pack_b(w);
  packing first = packing_a(w, 0, 0, 1);
  if (first.first < first.end) z3i_amx_pack(first.dst, &first.src, false, first.lines, first.k, first.first, first.end);
  for (int64_t i = 0; i < w->mp; i++)
    for (int64_t j = 0; j < w->np; j++) block_of_c(w, i, j);
  w->a_packed = true;
}

static void rectangle(work *w)
{
  for (w->m0 = 0; w->m0 < w->m; w->m0 += M_MAX) {
    w->mp = parts(Z3I_MIN(w->m - w->m0, (int64_t)M_MAX), P);
    for (int64_t n1 = 0; n1 < w->n; n1 += N_MAX) {
      int64_t end = Z3I_MIN(n1 + N_MAX, w->n);
      for (w->k0 = 0; w->k0 < w->k; w->k0 = w->k1) {
        w->k1 = Z3I_MIN(w->k0 + w->kc, w->k);
        w->steps = parts(w->k1 - w->k0, STEP);
        w->a_packed = n1 > 0 && w->kc >= w->k;
        for (w->n0 = n1; w->n0 < end; w->n0 += w->nc) {
          w->sums0 = w->sums + (w->sums != NULL ? w->mp * P * (w->n0 - n1) : 0);
          columns(w, Z3I_MIN(w->nc, end - w->n0));
        }
      }
    }
  }
  store_rows(w, &w->pending, 0, w->pending.rows);
  w->pending.rows = 0;
}

/* ---- threads ----------------------------------------------------------------------------------------- */
/* C is cut into rows x cols rectangles of whole panels: as many as there are threads, or fewer. */
typedef struct grid_size { int64_t rows, cols; } grid_size;

/* The least time of the slowest thread: its blocks of C, and its panels to pack, at about two blocks each. */
static grid_size grid_of(int64_t mp, int64_t np, int64_t threads)
{
  enum { PACK = 2 };
  grid_size best = { 1, 1 };
  int64_t least = INT64_MAX;
  for (int64_t rows = 1; rows <= Z3I_MIN(threads, mp); rows++) {
    int64_t cols = Z3I_MIN(threads / rows, np), m = parts(mp, rows), n = parts(np, cols);
    int64_t time = m * n + PACK * (m + n);
    if (time >= least) continue;
    least = time;
    best = (grid_size){ rows, cols };
  }
  return best;
}

/* n cut into equal parts of whole units, none above most. */
static int64_t even_part(int64_t n, int64_t most, int64_t unit)
{
  int64_t count = parts(n, most);
  return parts(parts(n, count), unit) * unit;
}

/* Sizes of a thread's scratch; fills in how its rectangle is cut. Counts bytes. */
typedef struct room_bytes { size_t a, b, sums; } room_bytes;

static room_bytes room_of(work *w)
{
  int64_t m = parts(Z3I_MIN(w->m, (int64_t)M_MAX), P) * P, n = parts(Z3I_MIN(w->n, (int64_t)N_MAX), P) * P;
  w->kc = even_part(w->k, K_MAX, STEP);
  w->nc = even_part(n, B_MAX / w->kc / P * P, P);
  return (room_bytes){ .a = (size_t)(m * w->kc) * 2, .b = (size_t)(w->nc * w->kc) * 2,
                       .sums = w->k > w->kc ? (size_t)(m * n) * sizeof(float) : 0 };
}

/* Rectangle (r,c) of the grid over matrix number b. */
static void work_place(work *w, const grid_size *grid, int64_t cell, int64_t b)
{
  const z3i_gemm_args *g = w->g;
  int64_t mp = parts(g->m, P), np = parts(g->n, P), r = cell / grid->cols, c = cell % grid->cols;
  int64_t i = mp * r / grid->rows * P, j = np * c / grid->cols * P;
  w->m = Z3I_MIN(mp * (r + 1) / grid->rows * P, g->m) - i;
  w->n = Z3I_MIN(np * (c + 1) / grid->cols * P, g->n) - j;
  w->a = (z3i_amx_source){ (const uint16_t *)g->a + b * g->a_batch_stride, g->lda, g->a_t };
  w->b = (z3i_amx_source){ (const uint16_t *)g->b + b * g->b_batch_stride, g->ldb, !g->b_t };
  w->a = line_of(w->a, i, 0);
  w->b = line_of(w->b, j, 0);
  w->bias = g->bias != NULL ? (const uint16_t *)g->bias + j : NULL;
  w->c = (char *)g->c + (b * g->c_batch_stride + i * g->ldc + j) * z3i_dtype_bytes(g->out_dtype);
}

int z3i_amx_gemm(const z3i_gemm_args *g)
{
  grid_size grid = grid_of(parts(g->m, P), parts(g->n, P), omp_in_parallel() ? 1 : omp_get_max_threads());
  int64_t cells = grid.rows * grid.cols;
  work all = { .g = g, .m = parts(parts(g->m, P), grid.rows) * P, .n = parts(parts(g->n, P), grid.cols) * P, .k = g->k };
  room_bytes room = room_of(&all);
  size_t each = room.a + room.b + room.sums + 2 * C_BLOCK * sizeof(float);
  char *scratch;
  Z3I_TRY(z3i_scratch(g->dev, (size_t)cells * each, (void **)&scratch));
#pragma omp parallel for schedule(static) num_threads((int)cells) if (cells > 1)
  for (int64_t cell = 0; cell < cells; cell++) {
    work w = all;
    w.a_room = (uint16_t *)(void *)(scratch + (size_t)cell * each);
    w.b_room = w.a_room + room.a / 2;
    w.blocks[0] = (float *)(void *)(w.b_room + room.b / 2);
    w.blocks[1] = w.blocks[0] + C_BLOCK;
    w.sums = room.sums > 0 ? w.blocks[1] + C_BLOCK : NULL;
    tiles_open();
    for (int64_t b = 0; b < g->batch; b++) {
      work_place(&w, &grid, cell, b);
      rectangle(&w);
    }
    tiles_close();
  }
  z3i_pool_free(g->dev, scratch);
  return Z3E_OK;
}

#else
int z3i_amx_mode(int mode)
{
  (void)mode;
  return Z3I_AMX_NEVER;
}

bool z3i_amx_takes(const z3i_gemm_args *g)
{
  (void)g;
  return false;
}

int z3i_amx_gemm(const z3i_gemm_args *g)
{
  (void)g;
  return Z3I_FAIL(Z3E_BUG, "gemm: this machine has no AMX");
}
#endif
