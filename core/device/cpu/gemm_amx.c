/* gemm_amx.c -- bf16 products on AMX tiles: panels packed block by block, 32 x 32 of C at a time in four tiles.
 * Each thread computes a rectangle of C alone, packing what it needs: a block of A that stays in the L2 cache, and its
 * columns of B, one panel ahead of the products so that the shuffles run beside the tile unit. Where K is long it is cut,
 * and sums wait in f32; reloading a tile changes no bit.
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
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

enum {
  P = Z3I_AMX_PANEL, STEP = Z3I_AMX_STEP, BLOCK = Z3I_AMX_BLOCK,
  K_MAX = 1024,                                   /* K at once: a panel of A and one of B take 128 KiB */
  A_MAX = 512 * 1024,                             /* elements of the block of A: half of a 2 MiB L2 cache */
  N_MAX = 2048, M_MAX = 2048,                     /* columns and rows of C at once: bound a thread's scratch */
  C_BLOCK = P * P                                 /* f32 of a block of C */
};

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

/* ---- one rectangle of C ------------------------------------------------------------------------------ */
typedef struct work {
  const z3i_gemm_args *g;
  z3i_amx_source a, b;                            /* at the rectangle's first row, first column */
  const uint16_t *bias;
  char *c;
  int64_t m, n, k;                                /* of the rectangle */
  int64_t kc, mc;                                 /* K and rows at once; multiples of 32 */
  uint16_t *a_room, *b_room;                      /* packed: (mc x kc), (N_MAX x kc) */
  float *sums;                                    /* blocks of C between parts of K; NULL where K is whole */
  int64_t m0, mp, n0, np;                         /* rows and panels of columns being worked on */
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

/* The block of C in from (NULL: 0) plus a panel of A by a panel of B, to `to` whose rows are ld floats apart. */
AMX static void product_block(const uint16_t *a, const uint16_t *b, int64_t steps, const float *from, float *to, int64_t ld)
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
  for (int64_t s = 0; s < steps; s++, a += BLOCK, b += BLOCK) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + BLOCK / 2, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + BLOCK / 2, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, to, ld * 4);
  _tile_stored(1, to + 16, ld * 4);
  _tile_stored(2, to + 16 * ld, ld * 4);
  _tile_stored(3, to + 16 * ld + 16, ld * 4);
}

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

/* rows x cols of a finished block to C at (i,j): plus the bias, added to C or not, rounded. */
AVX512 static void store_block(const work *w, const float *block, int64_t i, int64_t j, int64_t rows, int64_t cols)
{
  const z3i_gemm_args *g = w->g;
  for (int64_t half = 0; half < cols; half += 16) {
    __mmask16 mask = (__mmask16)(cols - half >= 16 ? 0xFFFFu : (1u << (cols - half)) - 1u);
    __m512 bias = _mm512_setzero_ps();
    if (w->bias != NULL) bias = of_bf16(_mm256_maskz_loadu_epi16(mask, w->bias + j + half));
    for (int64_t r = 0; r < rows; r++) {
      __m512 x = _mm512_load_ps(block + r * P + half);
      int64_t at = (i + r) * g->ldc + j + half;
      if (w->bias != NULL) x = _mm512_add_ps(x, bias);
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
}

static z3i_amx_source line_of(z3i_amx_source s, int64_t line, int64_t k)
{
  s.data += s.k_major ? k * s.ld + line : line * s.ld + k;
  return s;
}

/* Panel j of B, steps first..end-1 of the part of K that starts at k0. */
static void pack_b(const work *w, int64_t j, int64_t k0, int64_t kc, int64_t first, int64_t end)
{
  int64_t column = w->n0 + j * P;
  z3i_amx_source s = line_of(w->b, column, k0);
  z3i_amx_pack(w->b_room + j * P * w->kc, &s, true, Z3I_MIN(w->n - column, (int64_t)P), kc, first, end);
}

/* One block of C, for the part of K that starts at k0: on to the next part, or finished. i, j: panels. */
static void block_of_c(const work *w, const uint16_t *a, int64_t i, int64_t j, int64_t k0, int64_t kc)
{
  const z3i_gemm_args *g = w->g;
  const uint16_t *b = w->b_room + j * P * w->kc;
  int64_t steps = (kc + STEP - 1) / STEP, row = w->m0 + i * P, column = w->n0 + j * P;
  int64_t rows = Z3I_MIN(w->m - row, (int64_t)P), cols = Z3I_MIN(w->n - column, (int64_t)P);
  float *sums = w->sums != NULL ? w->sums + (i * w->np + j) * C_BLOCK : NULL;
  const float *from = k0 > 0 ? sums : NULL;
  if (k0 + kc < w->k) {
    product_block(a, b, steps, from, sums, P);
  } else if (g->out_dtype == Z3T_F32 && !g->add && w->bias == NULL && rows == P && cols == P) {
    product_block(a, b, steps, from, (float *)w->c + row * g->ldc + column, g->ldc);
  } else {
    float block[C_BLOCK] __attribute__((aligned(64)));
    product_block(a, b, steps, from, block, P);
    store_block(w, block, row, column, rows, cols);
  }
}

/* Panels lo..hi-1 of rows by all panels of columns. pack: B isn't there yet for this part of K. */
static void block_of_rows(const work *w, int64_t lo, int64_t hi, int64_t k0, int64_t kc, bool pack)
{
  int64_t steps = (kc + STEP - 1) / STEP, count = hi - lo;
  if (pack) pack_b(w, 0, k0, kc, 0, steps);
  for (int64_t j = 0; j < w->np; j++)
    for (int64_t i = lo; i < hi; i++) {
      uint16_t *a = w->a_room + (i - lo) * P * w->kc;
      int64_t row = w->m0 + i * P, done = i - lo;
      if (j == 0) {
        z3i_amx_source s = line_of(w->a, row, k0);
        z3i_amx_pack(a, &s, false, Z3I_MIN(w->m - row, (int64_t)P), kc, 0, steps);
      }
      block_of_c(w, a, i, j, k0, kc);
      if (pack && j + 1 < w->np) pack_b(w, j + 1, k0, kc, steps * done / count, steps * (done + 1) / count);
    }
}

static void rectangle(work *w)
{
  for (w->n0 = 0; w->n0 < w->n; w->n0 += N_MAX) {
    w->np = (Z3I_MIN(w->n - w->n0, (int64_t)N_MAX) + P - 1) / P;
    for (w->m0 = 0; w->m0 < w->m; w->m0 += M_MAX) {
      w->mp = (Z3I_MIN(w->m - w->m0, (int64_t)M_MAX) + P - 1) / P;
      for (int64_t k0 = 0; k0 < w->k; k0 += w->kc) {
        bool pack = w->m0 == 0 || w->k > w->kc;   /* whole K: what the first rows packed serves all */
        for (int64_t lo = 0; lo < w->mp; lo += w->mc / P, pack = false)
          block_of_rows(w, lo, Z3I_MIN(lo + w->mc / P, w->mp), k0, Z3I_MIN(w->k - k0, w->kc), pack);
      }
    }
  }
}

/* ---- threads ----------------------------------------------------------------------------------------- */
static int64_t parts(int64_t n, int64_t each) { return (n + each - 1) / each; }

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
  w->kc = even_part(w->k, K_MAX, STEP);
  w->mc = even_part(Z3I_MIN(w->m, (int64_t)M_MAX), A_MAX / w->kc / P * P, P);
  int64_t n = parts(Z3I_MIN(w->n, (int64_t)N_MAX), P) * P, m = parts(Z3I_MIN(w->m, (int64_t)M_MAX), P) * P;
  return (room_bytes){ .a = (size_t)(w->mc * w->kc) * 2, .b = (size_t)(n * w->kc) * 2,
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
  size_t each = room.a + room.b + room.sums;
  char *scratch;
  Z3I_TRY(z3i_scratch(g->dev, (size_t)cells * each, (void **)&scratch));
#pragma omp parallel for schedule(static) num_threads((int)cells) if (cells > 1)
  for (int64_t cell = 0; cell < cells; cell++) {
    work w = all;
    w.a_room = (uint16_t *)(void *)(scratch + (size_t)cell * each);
    w.b_room = w.a_room + room.a / 2;
    w.sums = room.sums > 0 ? (float *)(void *)(w.b_room + room.b / 2) : NULL;
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
