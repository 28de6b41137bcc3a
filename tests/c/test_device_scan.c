/* test_device_scan.c -- cumulative sums and triangles of every table against plain loops. */
#include "elem_refs.h"

static void test_device_scan_cumsum(void **state)
{
  (void)state;
  static const int64_t shapes[][4] = { { 1, 1, 1, 0 }, { 3, 70, 1, 1 }, { 2, 5000, 1, 1 }, { 3, 9, 300, 1 },
                                       { 4, 5, 6, 0 }, { 4, 5, 6, 2 },  { 2, 0, 3, 1 } };
  static const int dtypes[] = { Z3T_F32, Z3T_BF16, Z3T_I64 };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(shapes); k++)
    for (int d = 0; d < LEN(dtypes); d++) {
      const int64_t *s = shapes[k], n = s[0] * s[1] * s[2], dim = s[3],
                    step = dim == 2   ? 1
                           : dim == 1 ? s[2]
                                      : s[1] * s[2];
      buf x = buf_ids(dtypes[d], n, 5, 3), y = buf_new(dtypes[d], n), g = buf_rnd(Z3T_F32, n, 6, 1, 0),
          gx = buf_rnd(Z3T_F32, n, 7, 1, 0);
      double *before = doubles(&gx);
      z3_attr attr = { .i = { dim } };
      z3i_call c = { .op = Z3OP_cumsum, .attr = &attr, .in = { view(&x, 3, s) }, .out = { view(&y, 3, s) },
                     .gout = { view(&g, 3, s) }, .gin = { view(&gx, 3, s) }, .gin_add = 1 };
      assert_int_equal(t->forward[Z3OP_cumsum](&c), Z3E_OK);
      assert_int_equal(t->backward[Z3OP_cumsum](&c), Z3E_OK);
      for (int64_t i = 0; i < n; i++) {
        int64_t place = i / step % s[dim];
        double sum = 0, tail = 0;
        for (int64_t j = 0; j <= place; j++) sum += get(&x, i - j * step);
        for (int64_t j = 0; j < s[dim] - place; j++) tail += get(&g, i + j * step);
        assert_near(get(&y, i), sum, 0, dtypes[d] == Z3T_BF16 ? rounding(Z3T_BF16) : 0);
        assert_near(get(&gx, i), tail + before[i], 1e-5, 1e-6);
        if (n > 3000) i += 7;
      }
      drop_all(NULL);
    }
}

static void test_device_scan_tril(void **state)
{
  (void)state;
  static const int dtypes[] = { Z3T_F32, Z3T_F16, Z3T_I64, Z3T_U8 };
  static const int64_t shapes[][3] = { { 1, 1, 1 },    { 2, 5, 7 }, { 3, 7, 5 },
                                       { 1, 3, 3000 }, { 0, 3, 3 }, { 1, 200, 200 } };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(shapes); k++)
    for (int d = 0; d < LEN(dtypes); d++)
      for (int64_t diagonal = -8; diagonal <= 8; diagonal += 4) {
        const int64_t *s = shapes[k], n = s[0] * s[1] * s[2];
        buf x = buf_ids(dtypes[d], n, 5, 100), y = buf_new(dtypes[d], n), g = buf_rnd(Z3T_F32, n, 6, 1, 0),
            gx = buf_rnd(Z3T_F32, n, 7, 1, 0);
        double *before = doubles(&gx);
        z3_attr attr = { .i = { diagonal } };
        z3i_call c = { .op = Z3OP_tril, .attr = &attr, .in = { view(&x, 3, s) }, .out = { view(&y, 3, s) },
                       .gout = { view(&g, 3, s) }, .gin = { view(&gx, 3, s) }, .gin_add = diagonal > 0 };
        assert_int_equal(t->forward[Z3OP_tril](&c), Z3E_OK);
        if (z3i_dtype_float(dtypes[d])) assert_int_equal(t->backward[Z3OP_tril](&c), Z3E_OK);
        for (int64_t i = 0; i < n; i++) {
          bool below = i % s[2] <= i / s[2] % s[1] + diagonal;
          assert_near(get(&y, i), below ? get(&x, i) : 0, 0, 0);
          if (z3i_dtype_float(dtypes[d]))
            assert_near(get(&gx, i), (below ? get(&g, i) : 0) + (diagonal > 0 ? before[i] : 0), 0, 1e-6);
        }
        drop_all(NULL);
      }
}

int main(void)
{
  const struct CMUnitTest tests[] = { TEST(test_device_scan_cumsum), TEST(test_device_scan_tril) };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
