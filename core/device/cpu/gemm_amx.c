/* gemm_amx.c -- bf16 products on AMX tiles: packed panels, 32 x 32 of C at a time in four tiles.
 * Each thread computes a rectangle of C alone. It packs a block of B that stays in the L2 cache and takes the rows of A
 * past it, panel by panel. What a panel of rows needs besides (packing the next one, storing results) goes between the
 * tile instructions, and memory is asked for well before it is used: lines far apart come slowly from where they are.
 * Where K is long it is cut, and sums wait in f32; reloading a tile changes no bit.
 * Legend: gemm_amx.h; mp, np: panels of rows, of columns. Blocking after Goto and van de Geijn (2008). */
#include "device/cpu/gemm_amx.h"
#include "device/cpu/gemm_amx_block.h"

#if defined(__x86_64__) && defined(__linux__)
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device/cpu/isa_pick.h"

enum {
  P = Z3I_AMX_PANEL, STEP = Z3I_AMX_STEP, BLOCK = Z3I_AMX_BLOCK,
  K_MAX = 1024,                                   /* K at once */
  B_MAX = 448 * 1024,                             /* elements of a block of B: 7/16 of a 2 MiB L2 cache */
  M_MAX = 2048, N_MAX = 2048,                     /* of C at once: bounds of a thread's scratch */
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

/* Measured beside oneDNN 2.6 with GPT-2's products at 1 and 2 threads: weight gradients are faster here at any size.
 * Else all of B is packed for each product, which many rows must pay for. */
static bool pays(const z3i_gemm_args *g)
{
  if (g->batch != 1 || g->m < 64 || g->n < 64 || g->k < 64) return false;
  return g->a_t || (g->m >= 768 && g->k >= 256 && (g->n * g->k >= 1 << 20 || g->m >= 2048));
}

bool z3i_amx_usable(void)
{
  pthread_once(&once, find_out);
  return usable && mode != Z3I_AMX_NEVER;
}

bool z3i_amx_takes(const z3i_gemm_args *g)
{
  if (g->in_dtype != Z3T_BF16 || !z3i_amx_usable()) return false;
  return mode == Z3I_AMX_ALWAYS || pays(g);
}

/* ---- one rectangle of C ------------------------------------------------------------------------------ */
typedef struct work {
  z3i_amx_target to;
  z3i_amx_source a, b;                            /* at the rectangle's first row, first column */
  int64_t m, n, k;                                /* of the rectangle */
  int64_t kc, nc;                                 /* K and columns at once; multiples of 32 */
  uint16_t *a_room, *b_room;                      /* packed: (M_MAX x kc), (kc x nc) */
  float *sums;                                    /* blocks of C between parts of K; NULL where K is whole */
  float *blocks[2];                               /* finished in turn: one is stored while the next is made */
  int64_t m0, mp, n0, np, k0, k1, steps;          /* rows, panels of columns and part of K in hand */
  float *sums0;                                   /* of the columns in hand */
  bool a_packed;
  z3i_amx_done pending;
  int turn;
} work;

static z3i_amx_source line_of(z3i_amx_source s, int64_t line, int64_t k)
{
  s.data += s.k_major ? k * s.ld + line : line * s.ld + k;
  return s;
}

/* Whether tiles are loaded from A as it lies. */
static bool lies_ready(const work *w, int64_t i)
{
  return !w->a.k_major && w->m - w->m0 - i * P >= P && (w->k1 - w->k0) % STEP == 0;
}

/* Part n of `of` of panel i of A. */
static z3i_amx_packing packing_a(const work *w, int64_t i, int64_t n, int64_t of)
{
  int64_t row = w->m0 + i * P;
  if (i >= w->mp || w->a_packed || lies_ready(w, i)) return (z3i_amx_packing){ .dst = NULL };
  return (z3i_amx_packing){ .dst = w->a_room + i * P * w->kc, .src = line_of(w->a, row, w->k0), .k = w->k1 - w->k0,
                    .lines = Z3I_MIN(w->m - row, (int64_t)P), .first = w->steps * n / of,
                    .end = w->steps * (n + 1) / of };
}

/* Part n of `of` of what panel i of A lies in: packed already, or the matrix. */
static z3i_amx_fetching fetching_a(const work *w, int64_t i, int64_t n, int64_t of)
{
  int64_t row = w->m0 + i * P, k = w->k1 - w->k0;
  if (i >= w->mp) return (z3i_amx_fetching){ .at = NULL };
  if (w->a_packed && !lies_ready(w, i)) {
    int64_t first = w->steps * n / of, end = w->steps * (n + 1) / of;
    return (z3i_amx_fetching){ .at = (const char *)(w->a_room + i * P * w->kc + first * BLOCK), .rows = 1,
                       .row_bytes = (end - first) * BLOCK * 2 };
  }
  z3i_amx_source s = line_of(w->a, row, w->k0);
  int64_t lines = s.k_major ? k : Z3I_MIN(w->m - row, (int64_t)P), first = lines * n / of;
  return (z3i_amx_fetching){ .at = (const char *)(s.data + first * s.ld), .rows = lines * (n + 1) / of - first,
                     .row_bytes = s.k_major ? P * 2 : k * 2, .stride = s.ld * 2 };
}

/* Sets what goes beside block (i,j) of C: panels. */
static z3i_amx_aside aside_of(const work *w, int64_t i, int64_t j, const z3i_amx_done *f, bool last)
{
  int64_t bytes = z3i_dtype_bytes(w->to.g->out_dtype);
  z3i_amx_aside o = { .to = &w->to, .store = w->pending, .a = packing_a(w, i + 1, j, w->np),
              .next_a = fetching_a(w, i + (w->a.k_major && !w->a_packed ? 2 : 1), j, w->np) };
  if (last) o.c = (z3i_amx_fetching){ .at = w->to.c + (f->i * w->to.g->ldc + f->j) * bytes, .rows = f->rows,
                                      .row_bytes = f->cols * bytes,
                              .stride = w->to.g->ldc * bytes };
  else o.c = (z3i_amx_fetching){ .at = (const char *)(w->sums0 + (i * w->np + j + 1) * C_BLOCK), .rows = 1,
                                 .row_bytes = C_BLOCK * 4 };
  o.rows_each = parts(P, w->steps);
  o.a_each = parts(o.a.end - o.a.first, w->steps);
  o.next_each = parts(o.next_a.rows * parts(o.next_a.row_bytes, 64), w->steps);
  o.c_each = parts(o.c.rows * parts(o.c.row_bytes, 64), w->steps);
  return o;
}

/* Block (i,j) of C, for the part of K in hand: on to the next part, or finished. */
static void block_of_c(work *w, int64_t i, int64_t j)
{
  const z3i_gemm_args *g = w->to.g;
  const uint16_t *b = w->b_room + j * P * w->kc;
  int64_t row = w->m0 + i * P, column = w->n0 + j * P;
  z3i_amx_tiles a = { (const char *)(w->a_room + i * P * w->kc), 64, BLOCK * 2, BLOCK };
  if (lies_ready(w, i))
    a = (z3i_amx_tiles){ (const char *)(w->a.data + row * w->a.ld + w->k0), w->a.ld * 2, STEP * 2, w->a.ld * 32 };
  z3i_amx_done f = { .block = w->blocks[w->turn], .i = row, .j = column, .rows = Z3I_MIN(w->m - row, (int64_t)P),
                     .cols = Z3I_MIN(w->n - column, (int64_t)P) };
  float *sums = w->sums != NULL ? w->sums0 + (i * w->np + j) * C_BLOCK : NULL;
  const float *from = w->k0 > 0 ? sums : NULL;
  bool last = w->k1 == w->k, whole = f.rows == P && f.cols == P;
  bool direct = whole && g->out_dtype == Z3T_F32 && !g->add && w->to.bias == NULL;
  z3i_amx_aside other = aside_of(w, i, j, &f, last);
  w->pending.rows = 0;
  if (!last) z3i_amx_block(a, b, w->steps, from, sums, P, &other);
  else if (direct)
    z3i_amx_block(a, b, w->steps, from, (float *)(void *)w->to.c + row * g->ldc + column, g->ldc, &other);
  else {
    z3i_amx_block(a, b, w->steps, from, w->blocks[w->turn], P, &other);
    w->pending = f;
    w->turn ^= 1;
  }
  z3i_amx_aside_rest(&other);
}

/* The columns in hand of B, along its lines: all panels of a step, or all steps of a panel. The processor sees that
 * order and reads ahead by itself; asking for memory slowed it down. */
static void pack_b(const work *w)
{
  int64_t count = w->np * w->steps;
  for (int64_t u = 0; u < count; u++) {
    int64_t j = w->b.k_major ? u % w->np : u / w->steps, step = w->b.k_major ? u / w->np : u % w->steps;
    int64_t column = w->n0 + j * P;
    z3i_amx_source s = line_of(w->b, column, w->k0);
    int64_t lines = Z3I_MIN(w->n - column, (int64_t)P);
    z3i_amx_pack(w->b_room + j * P * w->kc, &s, true, lines, w->k1 - w->k0, step, step + 1);
  }
}

/* All rows in hand by n columns from n0. */
static void columns(work *w, int64_t n)
{
  w->np = parts(n, P);
  pack_b(w);
  z3i_amx_packing first = packing_a(w, 0, 0, 1);
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
  z3i_amx_store(&w->to, &w->pending, 0, w->pending.rows);
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
  const z3i_gemm_args *g = w->to.g;
  int64_t mp = parts(g->m, P), np = parts(g->n, P), r = cell / grid->cols, c = cell % grid->cols;
  int64_t i = mp * r / grid->rows * P, j = np * c / grid->cols * P;
  w->m = Z3I_MIN(mp * (r + 1) / grid->rows * P, g->m) - i;
  w->n = Z3I_MIN(np * (c + 1) / grid->cols * P, g->n) - j;
  w->a = (z3i_amx_source){ (const uint16_t *)g->a + b * g->a_batch_stride, g->lda, g->a_t };
  w->b = (z3i_amx_source){ (const uint16_t *)g->b + b * g->b_batch_stride, g->ldb, !g->b_t };
  w->a = line_of(w->a, i, 0);
  w->b = line_of(w->b, j, 0);
  w->to.bias = g->bias != NULL ? (const uint16_t *)g->bias + j : NULL;
  w->to.c = (char *)g->c + (b * g->c_batch_stride + i * g->ldc + j) * z3i_dtype_bytes(g->out_dtype);
}

int z3i_amx_gemm(const z3i_gemm_args *g)
{
  grid_size grid = grid_of(parts(g->m, P), parts(g->n, P), omp_in_parallel() ? 1 : omp_get_max_threads());
  int64_t cells = grid.rows * grid.cols;
  work all = { .to = { .g = g }, .m = parts(parts(g->m, P), grid.rows) * P, .n = parts(parts(g->n, P), grid.cols) * P,
               .k = g->k };
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
    z3i_amx_open();
    for (int64_t b = 0; b < g->batch; b++) {
      work_place(&w, &grid, cell, b);
      rectangle(&w);
    }
    z3i_amx_close();
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

bool z3i_amx_usable(void) { return false; }

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
