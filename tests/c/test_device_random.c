/* test_device_random.c -- random tensors and dropout of every table: the same numbers everywhere, and the right laws.
 */
#include "elem_refs.h"
#include "zero3/tensor.h"

static const int kinds[] = { Z3R_NORMAL, Z3R_UNIFORM, Z3R_TRUNC_NORMAL };

static buf draw(const z3i_isa_table *t, int dtype, int64_t n, int kind, double a, double b, uint64_t key, int64_t first)
{
  buf x = buf_new(dtype, n);
  z3i_view v = VIEW(&x, n);
  assert_int_equal(t->random(&v, kind, a, b, key, first), Z3E_OK);
  return x;
}

/* Philox as published: the first vector of the authors' known answers, and z3i_philox for the rest. */
static void test_device_random_is_philox(void **state)
{
  (void)state;
  uint32_t w[4];
  z3i_philox(0, 0, 0, w);
  assert_int_equal(w[0], 0x6627e8d5);
  assert_int_equal(w[1], 0xe169c58d);
  assert_int_equal(w[2], 0xbc57ac4c);
  assert_int_equal(w[3], 0x9b00dbd8);
  static const int64_t firsts[] = { 0, 1, 2, 3, 5, ((int64_t)1 << 34) - 3, (int64_t)1 << 40 };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(firsts); k++) {
    const uint64_t key = 0x123456789ABCDEF0u;
    buf x = draw(t, Z3T_F32, 4100, Z3R_UNIFORM, 0, 1, key, firsts[k]);
    for (int64_t i = 0; i < x.n; i++) {
      uint64_t e = (uint64_t)(firsts[k] + i);
      z3i_philox(key, 0, e / 4, w);
      assert_true(get(&x, i) == (double)(w[e % 4] >> 8) * 0x1p-24);
    }
    drop_all(NULL);
  }
}

/* An element depends on its key and number alone: not on the table, the threads, or where the tensor starts. */
static void test_device_random_same_everywhere(void **state)
{
  (void)state;
  enum { N = 70001 };
  const z3i_isa_table *all[4];
  int n_tables = tables(all), before = omp_get_max_threads();
  for (int k = 0; k < LEN(kinds); k++) {
    omp_set_num_threads(1);
    buf whole = draw(all[0], Z3T_F32, N, kinds[k], 0.5, 2, 77, 0);
    omp_set_num_threads(2);
    for (int t = 0; t < n_tables; t++) {
      buf again = draw(all[t], Z3T_F32, N, kinds[k], 0.5, 2, 77, 0);
      assert_true(same_bits(&whole, &again));
      for (int64_t first = 1; first < N; first = first * 5 + 1) {
        buf part = draw(all[t], Z3T_F32, Z3I_MIN(N - first, 3000), kinds[k], 0.5, 2, 77, first);
        assert_memory_equal(part.data, (float *)whole.data + first, (size_t)part.n * 4);
      }
      buf half = draw(all[t], Z3T_BF16, 1000, kinds[k], 0.5, 2, 77, 0);
      for (int64_t i = 0; i < half.n && kinds[k] != Z3R_UNIFORM; i++)
        assert_true((float)get(&half, i) == z3i_bf16_to_f32(z3i_f32_to_bf16((float)get(&whole, i))));
      buf rows = buf_new(Z3T_F32, 3000);        /* a transposed tensor is numbered row-major all the same */
      z3i_view v = { rows.data, Z3T_F32, 2, { 50, 60 }, { 1, 50 } };
      assert_int_equal(all[t]->random(&v, kinds[k], 0.5, 2, 77, 0), Z3E_OK);
      for (int64_t i = 0; i < 3000; i++) assert_true(at(&v, i) == get(&whole, i));
    }
    drop_all(NULL);
  }
  omp_set_num_threads(before);
}

/* Moments and the largest distance from the distribution (Kolmogorov & Smirnov): 1.95 / sqrt n has odds of 1 in 1000;
 * the numbers are fixed, so the test either always passes or never. */
static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double phi(double x) { return 0.5 * erfc(-x / sqrt(2)); }

static void test_device_random_distributions(void **state)
{
  (void)state;
  enum { N = 200000 };
  const z3i_isa_table *all[4];
  tables(all);
  for (int k = 0; k < LEN(kinds); k++) {
    buf x = draw(all[0], Z3T_F32, N, kinds[k], -1, 3, 2024, 12345);
    double *v = doubles(&x), worst = 0;
    qsort(v, N, sizeof *v, by_value);
    for (int64_t i = 0; i < N; i++) {
      double z = (v[i] + 1) / 3, law = phi(z);
      if (kinds[k] == Z3R_UNIFORM) law = (v[i] + 1) / 4;
      if (kinds[k] == Z3R_TRUNC_NORMAL) law = (phi(z) - phi(-2)) / (phi(2) - phi(-2));
      worst = fmax(worst, fmax(fabs(law - (double)i / N), fabs(law - (double)(i + 1) / N)));
    }
    assert_true(worst < 1.95 / sqrt(N));
    if (kinds[k] == Z3R_UNIFORM) assert_true(v[0] >= -1 && v[N - 1] < 3);
    if (kinds[k] == Z3R_TRUNC_NORMAL) assert_true(v[0] >= -7 && v[N - 1] <= 5 && v[0] < -6.99 && v[N - 1] > 4.99);
    if (kinds[k] == Z3R_NORMAL) assert_true(v[0] < -1 - 3 * 4 && v[N - 1] > -1 + 3 * 4 && v[N - 1] < -1 + 3 * 6.7);
    drop_all(NULL);
  }
}

/* Pairs of normals share a radius: they and their neighbours must not be correlated. */
static void test_device_random_independence(void **state)
{
  (void)state;
  enum { N = 200000 };
  const z3i_isa_table *all[4];
  tables(all);
  buf x = draw(all[0], Z3T_F32, N, Z3R_NORMAL, 0, 1, 5, 0), y = draw(all[0], Z3T_F32, N, Z3R_NORMAL, 0, 1, 6, 0);
  for (int lag = 1; lag <= 5; lag++) {
    double self = 0, squares = 0, other = 0;
    for (int64_t i = lag; i < N; i++) {
      double a = get(&x, i), b = get(&x, i - lag);
      self += a * b;
      squares += (a * a - 1) * (b * b - 1) / 2;
      other += a * get(&y, i - lag);
    }
    assert_true(fabs(self) < 4 * sqrt(N) && fabs(squares) < 4 * sqrt(N) && fabs(other) < 4 * sqrt(N));
  }
}

static void test_device_random_ranges(void **state)
{
  (void)state;
  static const struct { double a, b; } ranges[] = { { 0, 1 }, { 1, 1.01 }, { -3, -2 }, { -1, 0 }, { 5, 5 } };
  static const int dtypes[] = { Z3T_F32, Z3T_BF16, Z3T_F16, Z3T_I32, Z3T_I64, Z3T_U8 };
  EACH_TABLE(t) {
    for (int k = 0; k < LEN(ranges); k++)
      for (int d = 0; d < 3; d++) {
        buf x = draw(t, dtypes[d], 20000, Z3R_UNIFORM, ranges[k].a, ranges[k].b, 9, 0);
        double step = 2 * rounding(dtypes[d]) * fabs(ranges[k].a);
        for (int64_t i = 0; i < x.n; i++) {
          assert_true(get(&x, i) >= ranges[k].a - step);
          assert_true(get(&x, i) < ranges[k].b || ranges[k].a == ranges[k].b);
        }
      }
    for (int d = 3; d < LEN(dtypes); d++) {       /* integers: every value of [2, 7), about equally often */
      buf x = draw(t, dtypes[d], 20000, Z3R_UNIFORM, 2, 7, 9, 0);
      int64_t seen[8] = { 0 };
      for (int64_t i = 0; i < x.n; i++) {
        assert_in_range((int64_t)get(&x, i), 2, 6);
        seen[(int)get(&x, i)]++;
      }
      for (int i = 2; i < 7; i++) assert_in_range(seen[i], 3800, 4200);
    }
    buf x = buf_new(Z3T_F32, 1);
    z3i_view v = VIEW(&x, 1);
    assert_int_equal(t->random(&v, 3, 0, 1, 0, 0), Z3E_ARG);
    assert_int_equal(t->random(&v, Z3R_UNIFORM, 1, 0, 0, 0), Z3E_ARG);
    drop_all(NULL);
  }
}

/* ---- dropout ------------------------------------------------------------------------------------------------------
 */
static void test_device_random_dropout(void **state)
{
  (void)state;
  static const double ps[] = { 0, 0.1, 0.5, 1 };
  static const int64_t counts[] = { 0, 1, 3, 70, 2049, 70000 };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(ps); k++)
    for (int c = 0; c < LEN(counts); c++) {
      int64_t n = counts[c], kept_count = 0;
      buf x = buf_new(Z3T_F32, n), y = buf_new(Z3T_F32, n), gx = buf_new(Z3T_F32, n);
      for (int64_t i = 0; i < n; i++) set(&x, i, (double)(i % 1000 + 1)), set(&gx, i, 1);
      if (n > 5) set(&x, 5, NAN);
      z3_attr attr = { .f = { ps[k] }, .i = { 4242 } };
      z3i_call call = { .op = Z3OP_dropout, .attr = &attr, .in = { VIEW(&x, n) }, .out = { VIEW(&y, n) },
                        .gout = { VIEW(&x, n) }, .gin = { VIEW(&gx, n) }, .gin_add = 1 };
      assert_int_equal(t->forward[Z3OP_dropout](&call), Z3E_OK);
      assert_int_equal(t->backward[Z3OP_dropout](&call), Z3E_OK);
      for (int64_t i = 0; i < n; i++) {
        uint32_t w[4];
        z3i_philox(4242, 0, (uint64_t)i / 4, w);
        bool keep_it = (double)(w[i % 4] >> 8) * 0x1p-24 < 1 - ps[k];
        kept_count += keep_it;
        assert_near(get(&y, i), keep_it ? get(&x, i) / (1 - ps[k]) : 0, 0, 2e-7);
        assert_near(get(&gx, i), 1 + (keep_it ? get(&x, i) / (1 - ps[k]) : 0), 0, 4e-7);
      }
      assert_true(fabs((double)kept_count - (1 - ps[k]) * (double)n) <=
                  4 * sqrt((double)n * ps[k] * (1 - ps[k])) + 1e-9);
      drop_all(NULL);
    }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    TEST(test_device_random_is_philox),      TEST(test_device_random_same_everywhere),
    TEST(test_device_random_distributions),  TEST(test_device_random_independence),
    TEST(test_device_random_ranges),         TEST(test_device_random_dropout),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
