/* test_device_gemm_amx.c -- products of our own on AMX: exact sums over every tail and layout, blocks' borders, the
 * same bits from any number of threads and any layout, special values. Skipped where there is no AMX. */
#include "device/cpu/gemm_amx.h"
#include "products.h"

static int amx_setup(void **state)
{
  z3i_amx_mode(Z3I_AMX_ALWAYS);
  return setup(state);
}
static int amx_teardown(void **state)
{
  z3i_amx_mode(Z3I_AMX_AUTO);
  return teardown(state);
}

static void need_amx(void)
{
  z3i_gemm_args g = { .m = 1, .n = 1, .k = 1, .batch = 1, .in_dtype = Z3T_BF16 };
  if (!z3i_amx_takes(&g)) skip();
}

/* A product whose values are small whole numbers, so that every sum in f32 is exact. The values are functions of the
 * place: any layout holds the same matrix. */
typedef struct whole {
  z3i_gemm_args g;
  uint16_t *a, *b, *bias;
  void *c, *before;
  int64_t c_bytes;
} whole;

static int value_a(int64_t i, int64_t k) { return (int)(z3i_mix(7 * (uint64_t)i, (uint64_t)k) % 9) - 4; }
static int value_b(int64_t k, int64_t j) { return (int)(z3i_mix(11 * (uint64_t)k, (uint64_t)j) % 9) - 4; }
static int value_c(int64_t i, int64_t j) { return (int)((i * 5 + j * 3) % 64) - 32; }

static uint16_t *matrix(int64_t rows, int64_t cols, bool t, int64_t ld, int (*value)(int64_t, int64_t))
{
  uint16_t *x = malloc((size_t)(ld * (t ? cols : rows) + 1) * 2);
  assert_non_null(x);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) x[t ? j * ld + i : i * ld + j] = z3i_f32_to_bf16((float)value(i, j));
  return x;
}

static whole whole_new(int64_t m, int64_t n, int64_t k, int form, int out, int64_t pad)
{
  whole w = { .g = { .dev = &dev, .m = m, .n = n, .k = k, .batch = 1, .a_t = form & 1, .b_t = form & 2, .add = form & 4,
                     .in_dtype = Z3T_BF16, .out_dtype = out } };
  w.g.lda = (w.g.a_t ? m : k) + pad;
  w.g.ldb = (w.g.b_t ? k : n) + pad;
  w.g.ldc = n + pad;
  w.g.a = w.a = matrix(m, k, w.g.a_t, w.g.lda, value_a);
  w.g.b = w.b = matrix(k, n, w.g.b_t, w.g.ldb, value_b);
  if (form & 8) w.g.bias = w.bias = matrix(1, n, false, n, value_c);
  w.c_bytes = m * w.g.ldc * z3i_dtype_bytes(out);
  w.g.c = w.c = malloc((size_t)w.c_bytes);
  w.before = malloc((size_t)w.c_bytes);
  for (int64_t i = 0; i < m * w.g.ldc; i++) number_set(w.c, out, i, (float)value_c(i / w.g.ldc, i % w.g.ldc));
  memcpy(w.before, w.c, (size_t)w.c_bytes);
  return w;
}
static void whole_free(whole *w)
{
  free(w->a); free(w->b); free(w->bias); free(w->c); free(w->before);
}

/* Every step-th element exactly, and that nothing between the rows changed. */
static void whole_check(const whole *w, int64_t step)
{
  const z3i_gemm_args *g = &w->g;
  for (int64_t e = 0; e < g->m * g->n; e += step) {
    int64_t i = e / g->n, j = e % g->n, sum = w->bias != NULL ? value_c(0, j) : 0;
    for (int64_t k = 0; k < g->k; k++) sum += value_a(i, k) * value_b(k, j);
    if (g->add) sum += value_c(i, j);
    float want = (float)sum, got = number_get(w->c, g->out_dtype, i * g->ldc + j);
    if (g->out_dtype == Z3T_BF16) want = z3i_bf16_to_f32(z3i_f32_to_bf16(want));
    if (got != want)
      fail_msg("m%" PRId64 " n%" PRId64 " k%" PRId64 " t%d%d add%d bias%d %s (%" PRId64 ",%" PRId64 "): %g, want %g",
               g->m, g->n, g->k, g->a_t, g->b_t, g->add, w->bias != NULL, z3_dtype_name(g->out_dtype), i, j,
               (double)got, (double)want);
  }
  size_t each = (size_t)z3i_dtype_bytes(g->out_dtype);
  for (int64_t i = 0; i < g->m; i++) {
    size_t at = (size_t)(i * g->ldc + g->n) * each;
    assert_memory_equal((char *)w->c + at, (char *)w->before + at, (size_t)(g->ldc - g->n) * each);
  }
}

static void whole_run(int64_t m, int64_t n, int64_t k, int form, int out, int64_t pad, int64_t step)
{
  whole w = whole_new(m, n, k, form, out, pad);
  CHECK_OK(z3i_amx_gemm(&w.g));
  whole_check(&w, step);
  whole_free(&w);
}

static void test_amx_tails(void **state)
{
  (void)state;
  need_amx();
  static const int64_t sizes[] = { 1, 15, 16, 17, 31, 32, 33, 65 };
  enum { COUNT = 8 };
  for (int e = 0; e < COUNT * COUNT * COUNT; e++)
    for (int r = 0; r < 4; r++) {                 /* of 32 forms, four per size, other ones each time */
      int form = (e * 5 + r * 9) % 16, out = (e + r) & 1 ? Z3T_F32 : Z3T_BF16;
      whole_run(sizes[e % COUNT], sizes[e / COUNT % COUNT], sizes[e / COUNT / COUNT], form, out, r * 3, 1);
    }
}

/* Past the sizes at which rows, columns and K are cut. */
static void test_amx_blocks(void **state)
{
  (void)state;
  need_amx();
  static const int64_t sizes[][3] = { { 2100, 70, 100 }, { 40, 4200, 2150 }, { 4190, 300, 1030 }, { 130, 2500, 700 },
                                      { 64, 64, 9000 }, { 4170, 600, 96 } };
  for (int s = 0; s < 6; s++)
    for (int form = 0; form < 16; form += 3)
      whole_run(sizes[s][0], sizes[s][1], sizes[s][2], form, form & 2 ? Z3T_F32 : Z3T_BF16, 0, 97);
}

/* Rounding shows in these: any change of the order of sums would change bits. */
static void fill(uint16_t *x, int64_t rows, int64_t cols, bool t, uint64_t seed)
{
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++)
      x[t ? j * rows + i : i * cols + j] =
          z3i_f32_to_bf16((float)(z3i_mix(seed + (uint64_t)i, (uint64_t)j) >> 40) / 0x1p23f - 1);
}

static void test_amx_same_bits(void **state)
{
  (void)state;
  need_amx();
  enum { M = 193, N = 330, K = 1700 };
  uint16_t *a = numbers(Z3T_BF16, M * K, false), *b = numbers(Z3T_BF16, K * N, false);
  float *first = numbers(Z3T_F32, M * N, false), *c = numbers(Z3T_F32, M * N, false);
  int before = omp_get_max_threads(), round = 0;
  for (int layout = 0; layout < 4; layout++) {
    bool a_t = layout & 1, b_t = layout & 2;
    fill(a, M, K, a_t, 1);
    fill(b, K, N, b_t, 2);
    z3i_gemm_args g = { .dev = &dev, .m = M, .n = N, .k = K, .batch = 1, .a = a, .b = b, .c = c,
                        .lda = a_t ? M : K, .ldb = b_t ? K : N, .ldc = N, .a_t = a_t, .b_t = b_t,
                        .in_dtype = Z3T_BF16, .out_dtype = Z3T_F32 };
    for (int threads = 1; threads <= 7; threads += 1 + threads / 3, round++) {
      omp_set_num_threads(threads);
      memset(c, round, sizeof *c * M * N);
      CHECK_OK(z3i_amx_gemm(&g));
      if (round == 0) memcpy(first, c, sizeof *c * M * N);
      assert_memory_equal(c, first, sizeof *c * M * N);
    }
    /* One row alone is the same row. */
    g.m = 1;
    g.lda = a_t ? 1 : K;
    uint16_t row[K];
    for (int k = 0; k < K; k++) row[k] = a[a_t ? k * M : k];
    g.a = row;
    CHECK_OK(z3i_amx_gemm(&g));
    assert_memory_equal(c, first, sizeof *c * N);
  }
  omp_set_num_threads(before);
  free(a); free(b); free(c); free(first);
}

static void test_amx_special_values(void **state)
{
  (void)state;
  need_amx();
  enum { M = 40, N = 64, K = 70, DENORMAL = 0x0011 };
  uint16_t *a = numbers(Z3T_BF16, M * K, false), *b = numbers(Z3T_BF16, K * N, false);
  uint16_t *bias = numbers(Z3T_BF16, N, false), *c = numbers(Z3T_BF16, M * N, false);
  for (int i = 0; i < M * K; i++) a[i] = 0x3F80;
  for (int i = 0; i < K * N; i++) b[i] = 0x3F80;
  a[3 * K + 69] = 0x7FC0;                         /* row 3: NaN */
  a[33 * K + 5] = 0x7F80;                         /* row 33: inf */
  b[5 * N + 9] = 0;                               /* column 9: inf * 0 in row 33 */
  for (int k = 0; k < K; k++) {
    a[7 * K + k] = DENORMAL;                      /* row 7: taken as 0 */
    a[8 * K + k] = 0;
  }
  bias[4] = DENORMAL;                             /* the bias isn't */
  z3i_gemm_args g = { .dev = &dev, .m = M, .n = N, .k = K, .batch = 1, .a = a, .b = b, .bias = bias, .c = c,
                      .lda = K, .ldb = N, .ldc = N, .in_dtype = Z3T_BF16, .out_dtype = Z3T_BF16 };
  CHECK_OK(z3i_amx_gemm(&g));
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      float got = z3i_bf16_to_f32(c[i * N + j]);
      if (i == 3 || (i == 33 && j == 9)) assert_true(isnan(got));
      else if (i == 33) assert_true(isinf(got) && got > 0);
      else if (i == 7 || i == 8) assert_int_equal(c[i * N + j], j == 4 ? DENORMAL : 0);
      else assert_true(got == (j == 9 ? 69.0f : 70.0f));
    }
  free(a); free(b); free(c); free(bias);
}

/* What it takes by itself: large bf16 products; not f32, not small ones, nothing when switched off. */
static void test_amx_takes(void **state)
{
  (void)state;
  need_amx();
  z3i_gemm_args g = { .m = 1024, .n = 2304, .k = 768, .batch = 1, .in_dtype = Z3T_BF16 };
  assert_int_equal(z3i_amx_mode(Z3I_AMX_AUTO), Z3I_AMX_ALWAYS);
  assert_true(z3i_amx_takes(&g));
  g.m = 1;
  assert_false(z3i_amx_takes(&g));
  z3i_amx_mode(Z3I_AMX_ALWAYS);
  assert_true(z3i_amx_takes(&g));
  g.in_dtype = Z3T_F32;
  assert_false(z3i_amx_takes(&g));
  g = (z3i_gemm_args){ .m = 1024, .n = 2304, .k = 768, .batch = 1, .in_dtype = Z3T_BF16 };
  z3i_amx_mode(Z3I_AMX_NEVER);
  assert_false(z3i_amx_takes(&g));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_amx_tails, amx_setup, amx_teardown),
    cmocka_unit_test_setup_teardown(test_amx_blocks, amx_setup, amx_teardown),
    cmocka_unit_test_setup_teardown(test_amx_same_bits, amx_setup, amx_teardown),
    cmocka_unit_test_setup_teardown(test_amx_special_values, amx_setup, amx_teardown),
    cmocka_unit_test_setup_teardown(test_amx_takes, amx_setup, amx_teardown),
  };
  return cmocka_run_group_tests_name("device_gemm_amx", tests, NULL, NULL);
}
