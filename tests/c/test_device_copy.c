/* test_device_copy.c -- copies, casts, fills, ranges and conversions of every table; half precision bit by bit. */
#include "elem_refs.h"

static const int all_dtypes[] = { Z3T_F32, Z3T_BF16, Z3T_F16, Z3T_I32, Z3T_I64, Z3T_U8 };

/* What a value becomes in a dtype: floats round; integers go toward zero and, from u8's point of view, wrap. */
static double as_dtype(double v, int dtype)
{
  double mem = 0;
  buf b = { &mem, dtype, 1 };
  if (dtype == Z3T_U8) v = (double)(uint8_t)(int64_t)v;
  set(&b, 0, v);
  return get(&b, 0);
}

static void test_device_copy_converts(void **state)
{
  (void)state;
  static const double values[] = { 0,     1,     -1,     2.5, -2.5,     255,        256, 300.7,
                                   65504, 70000, -70000, 1e6, 16777217, 3.14159265, 1e-7 };
  EACH_TABLE(t)
  for (int from = 0; from < LEN(all_dtypes); from++)
    for (int to = 0; to < LEN(all_dtypes); to++)
      for (int64_t n = 0; n <= 70; n += 1 + n / 8) {
        buf x = buf_new(all_dtypes[from], n), y = buf_new(all_dtypes[to], n), z = buf_new(all_dtypes[to], n);
        for (int64_t i = 0; i < n; i++) set(&x, i, as_dtype(values[i % LEN(values)], x.dtype));
        z3i_view in = VIEW(&x, n), out = VIEW(&y, n), again = VIEW(&z, n);
        assert_int_equal(t->copy(&out, &in), Z3E_OK);
        z3_attr attr = { .i = { y.dtype } };
        z3i_call c = { .op = Z3OP_cast, .attr = &attr, .in = { in }, .out = { again } };
        assert_int_equal(t->forward[Z3OP_cast](&c), Z3E_OK);
        assert_true(same_bits(&y, &z));
        for (int64_t i = 0; i < n; i++)
          if (isfinite(get(&x, i))) assert_near(get(&y, i), as_dtype(get(&x, i), y.dtype), 0, 0);
        drop_all(NULL);
      }
}

/* NaN, infinities and out of range to integers: 0, the ends, and for u8 the low bits. */
static void test_device_copy_to_integers(void **state)
{
  (void)state;
  static const float values[] = { NAN,    INFINITY, -INFINITY, 3e9f, -3e9f, 1e30f,
                                  -1e30f, -1.9f,    255.9f,    257,  -1,    2147483520.0f };
  static const int64_t i64[] = { 0,         INT64_MAX, INT64_MIN, 3000000000, -3000000000, INT64_MAX,
                                 INT64_MIN, -1,        255,       257,        -1,          2147483520 };
  static const int32_t i32[] = { 0,         INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, INT32_MAX,
                                 INT32_MIN, -1,        255,       257,       -1,        2147483520 };
  static const uint8_t u8[] = { 0, 0, 0, 0, 0, 0, 0, 255, 255, 1, 255, 128 };
  enum { N = 12 * 9 };
  EACH_TABLE(t) {
    buf x = buf_new(Z3T_F32, N), a = buf_new(Z3T_I64, N), b = buf_new(Z3T_I32, N), c = buf_new(Z3T_U8, N);
    for (int64_t i = 0; i < N; i++) set(&x, i, (double)values[i % 12]);
    t->from_f32(a.data, Z3T_I64, x.data, N);
    t->from_f32(b.data, Z3T_I32, x.data, N);
    t->from_f32(c.data, Z3T_U8, x.data, N);
    for (int64_t i = 0; i < N; i++) {
      assert_true(((int64_t *)a.data)[i] == i64[i % 12]);
      assert_int_equal(((int32_t *)b.data)[i], i32[i % 12]);
      assert_int_equal(((uint8_t *)c.data)[i], u8[i % 12]);
    }
    drop_all(NULL);
  }
}

/* 64-bit integers keep their low bits, which a way through floats would lose. */
static void test_device_copy_integers_exact(void **state)
{
  (void)state;
  EACH_TABLE(t) {
    buf x = buf_new(Z3T_I64, 90), y = buf_new(Z3T_I64, 90), z = buf_new(Z3T_I32, 90);
    for (int64_t i = 0; i < 90; i++) ((int64_t *)x.data)[i] = ((int64_t)1 << 60) + i;
    z3i_view in = { x.data, Z3T_I64, 2, { 9, 10 }, { 1, 9 } }, out = VIEW(&y, 9, 10), narrow = VIEW(&z, 9, 10);
    assert_int_equal(t->copy(&out, &in), Z3E_OK);
    assert_int_equal(t->copy(&narrow, &in), Z3E_OK);
    for (int64_t i = 0; i < 90; i++) {
      int64_t want = i / 10 + i % 10 * 9;
      assert_true(((int64_t *)y.data)[i] == ((int64_t)1 << 60) + want);
      assert_int_equal(((int32_t *)z.data)[i], want);
    }
    drop_all(NULL);
  }
}

static void test_device_copy_strided_and_repeated(void **state)
{
  (void)state;
  EACH_TABLE(t)
  for (int d = 0; d < LEN(all_dtypes); d++)
    for (int e = 0; e < LEN(all_dtypes); e++) {
      buf x = buf_ids(all_dtypes[d], 7000, 1, 100), y = buf_ids(all_dtypes[e], 9000, 2, 100);
      z3i_view to = { y.data, y.dtype, 3, { 5, 40, 30 }, { 1500, 36, 1 } };      /* a part of a larger tensor */
      z3i_view from[] = { { x.data, x.dtype, 3, { 5, 40, 30 }, { 1, 150, 5 } },
                          { x.data, x.dtype, 2, { 40, 1 }, { 3, 1 } },
                          { x.data, x.dtype, 0, { 0 }, { 0 } },
                          { x.data, x.dtype, 1, { 30 }, { 2 } } };
      double *before = doubles(&y);
      for (int k = 0; k < LEN(from); k++) {
        assert_int_equal(t->copy(&to, &from[k]), Z3E_OK);
        for (int64_t i = 0; i < 6000; i++) {
          int64_t a = i / 1200, b = i / 30 % 40, c = i % 30, index[] = { a * 1200 + b * 30 + c, b, 0, c };
          assert_near(at(&to, i), at(&from[k], index[k]), 0, 0);
        }
      }
      for (int64_t i = 0; i < 9000; i++)
        if (i % 1500 >= 36 * 39 + 30 || i % 1500 % 36 >= 30 || i >= 7500) assert_true(get(&y, i) == before[i]);
      drop_all(NULL);
    }
}

/* Shapes around the tiles of transposing copies, in every element size, alone and in batches. */
static void test_device_copy_transposes(void **state)
{
  (void)state;
  static const int64_t sides[][2] = {
    { 8, 8 }, { 31, 33 }, { 32, 64 }, { 65, 32 }, { 7, 100 }, { 100, 7 }, { 300, 257 }
  };
  static const int dtypes[] = { Z3T_U8, Z3T_BF16, Z3T_F32, Z3T_I64 };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(sides); k++)
    for (int d = 0; d < LEN(dtypes); d++) {
      int64_t a = sides[k][0], b = sides[k][1], n = 6 * a * b;
      buf x = buf_ids(dtypes[d], n, 1, 200), y = buf_new(dtypes[d], n);
      z3i_view from[] = { { x.data, x.dtype, 2, { a, 6 * b }, { 1, a } },
                          { x.data, x.dtype, 3, { 6, a, b }, { a * b, 1, a } },
                          { x.data, x.dtype, 4, { 2, a, 3, b }, { 3 * a * b, 1, a * b, a } },
                          { x.data, x.dtype, 3, { a, 6, b }, { 1, a * b, a } } };
      for (int v = 0; v < LEN(from); v++) {
        z3i_view to = view(&y, from[v].ndim, from[v].shape);
        assert_int_equal(t->copy(&to, &from[v]), Z3E_OK);
        for (int64_t i = 0; i < n; i++)
          if (get(&y, i) != at(&from[v], i)) fail_msg("element %" PRId64 " of case %d, view %d (%s)", i, k, v, t->name);
      }
      drop_all(NULL);
    }
}

static void test_device_copy_gradient_accumulates(void **state)
{
  (void)state;
  EACH_TABLE(t)
  for (int d = 0; d < 3; d++) {
    buf g = buf_rnd(Z3T_BF16, 600, 1, 1, 0), gx = buf_rnd(all_dtypes[d], 900, 2, 1, 0);
    double *before = doubles(&gx);
    z3i_view to = { gx.data, gx.dtype, 2, { 20, 30 }, { 45, 1 } };
    z3_attr attr = { 0 };
    z3i_call c = { .op = Z3OP_copy,
                   .attr = &attr,
                   .gout = { { g.data, g.dtype, 2, { 20, 30 }, { 1, 20 } } },
                   .gin = { to },
                   .gin_add = 1 };
    assert_int_equal(t->backward[Z3OP_copy](&c), Z3E_OK);
    for (int64_t i = 0; i < 600; i++) {
      double want = before[i / 30 * 45 + i % 30] + at(&c.gout[0], i);
      assert_near(at(&to, i), want, 1e-7, 1.01 * rounding(gx.dtype));
    }
    for (int64_t i = 0; i < 900; i++)
      if (i % 45 >= 30) assert_true(get(&gx, i) == before[i]);
    drop_all(NULL);
  }
}

static void test_device_copy_fill_and_arange(void **state)
{
  (void)state;
  static const double values[] = { 0, 1, -3.7, 300, 1e30, INFINITY, NAN };
  EACH_TABLE(t)
  for (int d = 0; d < LEN(all_dtypes); d++)
    for (int64_t n = 0; n < 5000; n = n * 3 + 1) {
      buf x = buf_new(all_dtypes[d], 2 * n);
      z3i_view v = { x.data, x.dtype, 2, { n, 1 }, { 2, 1 } };
      for (int k = 0; k < LEN(values); k++) {
        double want = values[k];
        if (!z3i_dtype_float(x.dtype)) {
          if (!(fabs(want) < 1e18)) continue;
          want = trunc(want);
        }
        assert_int_equal(t->fill(&v, values[k]), Z3E_OK);
        for (int64_t i = 0; i < n; i++) assert_near(at(&v, i), as_dtype(want, x.dtype), 0, 0);
      }
      assert_int_equal(t->arange(&v, 10.5, -0.25), Z3E_OK);
      for (int64_t i = 0; i < n; i++) assert_near(at(&v, i), as_dtype(10.5 - 0.25 * (double)i, x.dtype), 0, 0);
      drop_all(NULL);
    }
  int64_t big = 0;
  z3i_view one = { &big, Z3T_I64, 0, { 0 }, { 0 } };
  assert_int_equal(all_tables[0]->fill(&one, 0x1p60), Z3E_OK);
  assert_true(big == (int64_t)1 << 60);
}

/* ---- half precision: base/half.c against the definition, and every table against base/half.c -------------------- */
static double half_value(uint16_t h)
{
  int exponent = h >> 10 & 31, fraction = h & 1023;
  double sign = h & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * (exponent != 0 ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static void test_device_copy_half_all(void **state)
{
  (void)state;
  for (int h = 0; h < 65536; h++) {
    float f = z3i_f16_to_f32((uint16_t)h);
    assert_near((double)f, half_value((uint16_t)h), 0, 0);
    uint16_t back = z3i_f32_to_f16(f);
    if (isnan(f)) assert_true(isnan(z3i_f16_to_f32(back)));
    else assert_int_equal(back, h);
    if (h >= 0x7BFF || h == 0) continue; /* halfway to the next goes to the even one, a touch beside it doesn't */
    float middle = (float)(0.5 * (half_value((uint16_t)h) + half_value((uint16_t)(h + 1))));
    assert_int_equal(z3i_f32_to_f16(middle), h + (h & 1));
    assert_int_equal(z3i_f32_to_f16(nextafterf(middle, 1e9f)), h + 1);
    assert_int_equal(z3i_f32_to_f16(nextafterf(middle, 0)), h);
  }
  assert_int_equal(z3i_f32_to_f16(65519.9f), 0x7BFF);
  assert_int_equal(z3i_f32_to_f16(65520.0f), 0x7C00);
  assert_int_equal(z3i_f32_to_f16(0x1p-25f), 0);
  assert_int_equal(z3i_f32_to_f16(0x1.000002p-25f), 1);
}

static void test_device_copy_tables_convert_alike(void **state)
{
  (void)state;
  enum { N = 65536 };
  EACH_TABLE(t) {
    buf h = buf_new(Z3T_F16, N), f = buf_new(Z3T_F32, N), b = buf_new(Z3T_BF16, N);
    for (int i = 0; i < N; i++) ((uint16_t *)h.data)[i] = (uint16_t)i;
    t->to_f32(f.data, h.data, Z3T_F16, N);
    for (int64_t i = 0; i < N; i++) assert_near(get(&f, i), half_value((uint16_t)i), 0, 0);
    t->to_f32(f.data, h.data, Z3T_BF16, N);
    for (int64_t i = 0; i < N; i++) assert_near(get(&f, i), (double)z3i_bf16_to_f32((uint16_t)i), 0, 0);
    for (uint32_t round = 0; round < 16; round++) {
      for (uint32_t i = 0; i < N; i++) ((uint32_t *)f.data)[i] = i << 16 | (z3i_mix(round, i) & 0xFFFF);
      t->from_f32(h.data, Z3T_F16, f.data, N);
      t->from_f32(b.data, Z3T_BF16, f.data, N);
      for (int64_t i = 0; i < N; i++) {
        float x = ((float *)f.data)[i];
        assert_near(get(&h, i), (double)z3i_f16_to_f32(z3i_f32_to_f16(x)), 0, 0);
        assert_near(get(&b, i), (double)z3i_bf16_to_f32(z3i_f32_to_bf16(x)), 0, 0);
        assert_true(isnan(get(&b, i)) || fabs(get(&b, i) - (double)x) <= 0x1.01p-8 * fabs((double)x) + 0x1p-133 ||
                    isinf(get(&b, i)));
      }
    }
    drop_all(NULL);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    TEST(test_device_copy_converts), TEST(test_device_copy_to_integers), TEST(test_device_copy_integers_exact),
    TEST(test_device_copy_strided_and_repeated), TEST(test_device_copy_transposes),
    TEST(test_device_copy_gradient_accumulates), TEST(test_device_copy_fill_and_arange),
    TEST(test_device_copy_half_all), TEST(test_device_copy_tables_convert_alike),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
