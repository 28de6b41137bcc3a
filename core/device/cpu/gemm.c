/* gemm.c -- products of any strides and float types, from the library's products of the types that it has.
 * Legend: C (M,N) = A (M,K) B (K,N), batch times; a tile is a block of C in f32.
 *
 * Three ways. Straight: the library writes C. Add: it writes a tile, which is then added to C; large C go in tiles of
 * fixed size, with and without add, so that both give the same bits. Widened: a 16-bit type that the library lacks on
 * this machine is converted to f32 block by block. */
#include <omp.h>

#include "device/cpu/gemm.h"
#include "device/cpu/gemm_amx.h"
#include "device/cpu/gemm_onednn.h"
#include "device/cpu/isa/isa.h"

enum {
  TILE_MAX = 64 << 20,                          /* elements of C at once: 256 MiB of f32 */
  WIDE_MAX = 4 << 20,                           /* elements of a widened block: 16 MiB */
  PAR_MIN = 16384                               /* elements from which a copy is spread over threads */
};

static const char *at(const void *p, int dtype, int64_t i) { return (const char *)p + i * z3i_dtype_bytes(dtype); }
static char *at_mut(void *p, int dtype, int64_t i) { return (char *)p + i * z3i_dtype_bytes(dtype); }

/* ---- moving rows between f32 tiles and matrices ------------------------------------------------------ */
static void widen(float *dst, const void *src, int dtype, int64_t rows, int64_t cols, int64_t ld)
{
  const z3i_isa_table *isa = z3i_isa();
#pragma omp parallel for schedule(static) if (rows * cols >= PAR_MIN)
  for (int64_t i = 0; i < rows; i++) isa->to_f32(dst + i * cols, at(src, dtype, i * ld), dtype, cols);
}

void z3i_store_row(void *dst, int dtype, const float *src, int64_t n, bool add)
{
  const z3i_isa_table *isa = z3i_isa();
  if (!add) {
    isa->from_f32(dst, dtype, src, n);
    return;
  }
  if (dtype == Z3T_F32) {
    float *f = dst;
    for (int64_t j = 0; j < n; j++) f[j] += src[j];
    return;
  }
  enum { PART = 512 };
  float sum[PART];
  for (int64_t lo = 0; lo < n; lo += PART) {
    int64_t len = Z3I_MIN(n - lo, (int64_t)PART);
    isa->to_f32(sum, at(dst, dtype, lo), dtype, len);
    for (int64_t j = 0; j < len; j++) sum[j] += src[lo + j];
    isa->from_f32(at_mut(dst, dtype, lo), dtype, sum, len);
  }
}

/* The tile (m,n), dense, to C. */
static void store_tile(const z3i_gemm_args *g, void *c, const float *tile, int64_t m, int64_t n)
{
  int dtype = g->out_dtype;
#pragma omp parallel for schedule(static) if (m * n >= PAR_MIN)
  for (int64_t i = 0; i < m; i++) z3i_store_row(at_mut(c, dtype, i * g->ldc), dtype, tile + i * n, n, g->add);
}

/* K is 0: the product is 0 and C becomes, or gets, the bias. */
static int bias_only(const z3i_gemm_args *g)
{
  float *row;
  Z3I_TRY(z3i_scratch(g->dev, (size_t)g->n * sizeof *row, (void **)&row));
  if (g->bias != NULL) z3i_isa()->to_f32(row, g->bias, g->in_dtype, g->n);
  else memset(row, 0, (size_t)g->n * sizeof *row);
  for (int64_t b = 0; b < g->batch; b++)
    for (int64_t i = 0; i < g->m; i++)
      z3i_store_row(at_mut(g->c, g->out_dtype, b * g->c_batch_stride + i * g->ldc), g->out_dtype, row, g->n, g->add);
  z3i_pool_free(g->dev, row);
  return Z3E_OK;
}

/* ---- one product of the library ---------------------------------------------------------------------- */
/* Whether to bring B into the library's layout first. Measured on AMX and AVX-512 with oneDNN 2.6 and 3.2: it never
 * pays where B lies transposed (y = x W^T); else it does when many rows use it (weight gradients: 10 to 20 %), or B is
 * wide (f32 products with N = 3072 take half the time: plain rows that far apart fall on the same cache sets). */
static bool pays_to_pack(const z3i_gemm_args *g)
{
  return !g->b_t && g->batch == 1 && g->m >= 256 && g->k >= 64 && g->n >= 64 && (g->m >= 1536 || g->n >= 2048);
}

static z3i_mm_key key_of(const z3i_gemm_args *g)
{
  z3i_mm_key k;
  memset(&k, 0, sizeof k);
  k.m = g->m; k.n = g->n; k.k = g->k; k.batch = g->batch;
  k.lda = g->lda; k.ldb = g->ldb; k.ldc = g->ldc;
  if (g->batch > 1) {
    k.a_batch_stride = g->a_batch_stride;
    k.b_batch_stride = g->b_batch_stride;
    k.c_batch_stride = g->c_batch_stride;
  }
  k.threads = omp_in_parallel() ? -1 : omp_get_max_threads();
  k.in_dtype = (uint8_t)g->in_dtype;
  k.out_dtype = (uint8_t)g->out_dtype;
  k.a_t = g->a_t;
  k.b_t = g->b_t;
  k.bias = g->bias != NULL;
  k.pack_b = pays_to_pack(g);
  return k;
}

static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

static int run_plan(const z3i_gemm_args *g, const z3i_mm_plan *plan)
{
  size_t packed_bytes = round_up(plan->packed_bytes), bytes = packed_bytes + plan->scratch_bytes;
  char *scratch = NULL;
  if (bytes > 0) Z3I_TRY(z3i_scratch(g->dev, bytes, (void **)&scratch));
  const void *b = g->b;
  int rc = Z3E_OK;
  if (plan->packed_bytes > 0) {
    rc = z3i_mm_pack(plan, g->b, scratch, scratch + packed_bytes);
    b = scratch;
  }
  if (rc == Z3E_OK) rc = z3i_mm_run(plan, g->a, b, g->bias, g->c, bytes > 0 ? scratch + packed_bytes : NULL);
  if (bytes > 0) z3i_pool_free(g->dev, scratch);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

/* C = A B straight from the library, or through a tile that is then added. *lacking: nothing done, as it has no code
 * for the type. */
static int by_library(const z3i_gemm_args *g, bool *lacking)
{
  z3i_gemm_args t = *g;
  if (g->add) {
    t.out_dtype = Z3T_F32;
    t.ldc = g->n;
    t.c_batch_stride = g->m * g->n;
  }
  z3i_mm_key key = key_of(&t);
  z3i_mm_plan room, *plan;
  Z3I_TRY(z3i_mm_plan_get(&key, &room, &plan));
  *lacking = plan->lacking;
  int rc = Z3E_OK;
  if (!*lacking && g->add) rc = z3i_scratch(g->dev, (size_t)(g->batch * g->m * g->n) * sizeof(float), &t.c);
  if (!*lacking && rc == Z3E_OK) {
    rc = run_plan(&t, plan);
    for (int64_t b = 0; g->add && rc == Z3E_OK && b < g->batch; b++)
      store_tile(g, at_mut(g->c, g->out_dtype, b * g->c_batch_stride), (float *)t.c + b * t.c_batch_stride, g->m, g->n);
    if (g->add) z3i_pool_free(g->dev, t.c);
  }
  z3i_mm_plan_put(plan);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

/* ---- widened ----------------------------------------------------------------------------------------- */
typedef struct wide {
  int64_t rows, cols;                           /* block of C */
  bool in_place;                                /* blocks are whole dense rows of an f32 C: no tile is needed */
  float *a, *b, *c, *bias;
} wide;

/* Blocks whose operands and result stay within WIDE_MAX elements each (unless K alone exceeds it): a pure function of
 * the shape. Rows and columns are taken whole along K, so that sums aren't cut. */
static void wide_blocks(const z3i_gemm_args *g, wide *w)
{
  int64_t fit = Z3I_MAX((int64_t)WIDE_MAX / g->k, (int64_t)64);
  w->cols = Z3I_MIN(g->n, Z3I_MIN(fit, (int64_t)WIDE_MAX / 64));
  w->rows = Z3I_MIN(g->m, Z3I_MAX(Z3I_MIN(fit, (int64_t)WIDE_MAX / w->cols), (int64_t)64));
  w->in_place = g->out_dtype == Z3T_F32 && !g->add && g->ldc == w->cols;
}

/* Columns j.. of matrix number b, all rows in blocks. */
static int wide_columns(const z3i_gemm_args *g, const wide *w, int64_t b, int64_t j)
{
  int64_t cols = Z3I_MIN(w->cols, g->n - j);
  const char *b0 = at(g->b, g->in_dtype, b * g->b_batch_stride + (g->b_t ? j * g->ldb : j));
  widen(w->b, b0, g->in_dtype, g->b_t ? cols : g->k, g->b_t ? g->k : cols, g->ldb);
  for (int64_t i = 0; i < g->m; i += w->rows) {
    int64_t rows = Z3I_MIN(w->rows, g->m - i);
    const char *a0 = at(g->a, g->in_dtype, b * g->a_batch_stride + (g->a_t ? i : i * g->lda));
    widen(w->a, a0, g->in_dtype, g->a_t ? g->k : rows, g->a_t ? rows : g->k, g->lda);
    void *c = at_mut(g->c, g->out_dtype, b * g->c_batch_stride + i * g->ldc + j);
    z3i_gemm_args tile = { .dev = g->dev, .m = rows, .n = cols, .k = g->k, .batch = 1, .a = w->a, .b = w->b,
                           .c = w->in_place ? c : w->c, .bias = w->bias != NULL ? w->bias + j : NULL,
                           .lda = g->a_t ? rows : g->k, .ldb = g->b_t ? g->k : cols, .ldc = cols, .a_t = g->a_t,
                           .b_t = g->b_t };
    bool lacking;
    Z3I_TRY(by_library(&tile, &lacking));
    Z3I_ASSERT(!lacking);
    if (!w->in_place) store_tile(g, c, w->c, rows, cols);
  }
  return Z3E_OK;
}

static int widened(const z3i_gemm_args *g)
{
  wide w;
  wide_blocks(g, &w);
  size_t a_count = round_up((size_t)(w.rows * g->k)), b_count = round_up((size_t)(w.cols * g->k));
  size_t c_count = w.in_place ? 0 : round_up((size_t)(w.rows * w.cols));
  size_t bias_count = g->bias != NULL ? (size_t)g->n : 0;
  Z3I_TRY(z3i_scratch(g->dev, (a_count + b_count + c_count + bias_count) * sizeof(float), (void **)&w.a));
  w.b = w.a + a_count;
  w.c = w.b + b_count;
  w.bias = bias_count > 0 ? w.c + c_count : NULL;
  if (w.bias != NULL) z3i_isa()->to_f32(w.bias, g->bias, g->in_dtype, g->n);
  int rc = Z3E_OK;
  for (int64_t b = 0; b < g->batch && rc == Z3E_OK; b++)
    for (int64_t j = 0; j < g->n && rc == Z3E_OK; j += w.cols) rc = wide_columns(g, &w, b, j);
  z3i_pool_free(g->dev, w.a);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

/* ---- any product ------------------------------------------------------------------------------------- */
static int product(const z3i_gemm_args *g)
{
  bool lacking;
  Z3I_TRY(by_library(g, &lacking));
  return lacking ? widened(g) : Z3E_OK;
}

/* One matrix, or one run of matrices, that fits a tile. */
static int part(const z3i_gemm_args *g, int64_t b, int64_t count, int64_t i, int64_t rows)
{
  z3i_gemm_args p = *g;
  p.batch = count;
  p.m = rows;
  p.a = at(g->a, g->in_dtype, b * g->a_batch_stride + (g->a_t ? i : i * g->lda));
  p.b = at(g->b, g->in_dtype, b * g->b_batch_stride);
  p.c = at_mut(g->c, g->out_dtype, b * g->c_batch_stride + i * g->ldc);
  return product(&p);
}

static int check(const z3i_gemm_args *g)
{
  Z3I_REQUIRE(g->m >= 0 && g->n >= 0 && g->k >= 0 && g->batch >= 0, "gemm: sizes are %" PRId64 ", %" PRId64 ", %" PRId64
              ", %" PRId64 ", want >= 0", g->m, g->n, g->k, g->batch);
  Z3I_REQUIRE(g->in_dtype >= 0 && z3i_dtype_float(g->in_dtype), "gemm: inputs are %s, want a floating type",
              z3_dtype_name(g->in_dtype));
  Z3I_REQUIRE(g->out_dtype == Z3T_F32 || g->out_dtype == g->in_dtype, "gemm: result is %s, wants f32 or %s",
              z3_dtype_name(g->out_dtype), z3_dtype_name(g->in_dtype));
  int64_t a_lines = g->a_t ? g->k : g->m, b_lines = g->b_t ? g->n : g->k;
  Z3I_REQUIRE(a_lines <= 1 || g->lda >= (g->a_t ? g->m : g->k), "gemm: lda is %" PRId64 ", wants >= %" PRId64, g->lda,
              g->a_t ? g->m : g->k);
  Z3I_REQUIRE(b_lines <= 1 || g->ldb >= (g->b_t ? g->k : g->n), "gemm: ldb is %" PRId64 ", wants >= %" PRId64, g->ldb,
              g->b_t ? g->k : g->n);
  Z3I_REQUIRE(g->m <= 1 || g->ldc >= g->n, "gemm: ldc is %" PRId64 ", wants >= %" PRId64, g->ldc, g->n);
  Z3I_REQUIRE(g->batch <= 1 || g->m * g->n == 0 || g->c_batch_stride > 0,
              "gemm: batch stride of the result is %" PRId64 ", wants > 0", g->c_batch_stride);
  return Z3E_OK;
}

int z3i_gemm(const z3i_gemm_args *args)
{
  Z3I_TRY(check(args));
  z3i_gemm_args g = *args;
  if (g.m == 0 || g.n == 0 || g.batch == 0) return Z3E_OK;
  if (g.k == 0) return bias_only(&g);
  /* The distance of lines means nothing where there is one line: say dense. */
  if ((g.a_t ? g.k : g.m) == 1) g.lda = g.a_t ? g.m : g.k;
  if ((g.b_t ? g.n : g.k) == 1) g.ldb = g.b_t ? g.k : g.n;
  if (g.m == 1) g.ldc = g.n;
  if (z3i_amx_takes(&g)) return z3i_amx_gemm(&g);
  int64_t each = g.m * g.n, count = Z3I_MAX((int64_t)TILE_MAX / each, (int64_t)1);
  int64_t rows = each <= TILE_MAX ? g.m : Z3I_MAX((int64_t)TILE_MAX / g.n / 64 * 64, (int64_t)64);
  if (g.a_batch_stride == 0 && g.b_batch_stride == 0) count = 1;   /* the library wants one input with the batch */
  for (int64_t b = 0; b < g.batch; b += count)
    for (int64_t i = 0; i < g.m; i += rows)
      Z3I_TRY(part(&g, b, Z3I_MIN(count, g.batch - b), i, Z3I_MIN(rows, g.m - i)));
  return Z3E_OK;
}
