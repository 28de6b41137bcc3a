/* test_device_softmax.c -- softmax and log-softmax of every kernel table against plain loops in double. */
#include "model_kernels.h"

typedef struct shape {
  int64_t R, C;
} shape;
static const shape shapes[] = { { 1, 1 },  { 7, 1 },    { 3, 2 },    { 4, 15 },   { 5, 16 },
                                { 3, 33 }, { 2, 2048 }, { 2, 2049 }, { 1, 50304 } };
static const int dtypes[] = { Z3T_F32, Z3T_BF16, Z3T_F16 };
static const int ops[] = { Z3OP_softmax, Z3OP_log_softmax };

/* ---- the reference ---- */
static void ref_forward(int op, shape s, const double *x, double *y)
{
  for (int64_t r = 0; r < s.R; r++) {
    const double *row = x + r * s.C;
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < s.C; i++) max = fmax(max, row[i]);
    for (int64_t i = 0; i < s.C; i++) sum += exp(row[i] - max);
    for (int64_t i = 0; i < s.C; i++)
      y[r * s.C + i] = op == Z3OP_softmax ? exp(row[i] - max) / sum : row[i] - max - log(sum);
  }
}
static void ref_backward(int op, shape s, const double *y, const double *g, double *gx)
{
  for (int64_t r = 0; r < s.R; r++) {
    double sum = 0;
    for (int64_t i = r * s.C; i < (r + 1) * s.C; i++) sum += op == Z3OP_softmax ? g[i] * y[i] : g[i];
    for (int64_t i = r * s.C; i < (r + 1) * s.C; i++)
      gx[i] = op == Z3OP_softmax ? y[i] * (g[i] - sum) : g[i] - exp(y[i]) * sum;
  }
}
static void test_reference(void **state)
{
  (void)state;
  const shape s = { 2, 9 };
  const int64_t n = s.R * s.C;
  const double h = 1e-5;
  for (int k = 0; k < 2; k++) {
    buf xb = buf_rnd(Z3T_F32, n, 1, 2, 0), gb = buf_rnd(Z3T_F32, n, 2, 1, 0);
    double *x = doubles(&xb), *g = doubles(&gb), *y = zeros(n), *gx = zeros(n);
    ref_forward(ops[k], s, x, y);
    ref_backward(ops[k], s, y, g, gx);
    for (int64_t i = 0; i < n; i++) {
      double before = x[i], diff = 0;
      for (int side = -1; side <= 1; side += 2) {
        x[i] = before + side * h;
        ref_forward(ops[k], s, x, y);
        for (int64_t j = 0; j < n; j++) diff += side * y[j] * g[j] / (2 * h);
      }
      x[i] = before;
      assert_near(gx[i], diff, 1e-9, 1e-7);
    }
  }
}

/* ---- the kernels ---- */
static int forward(const z3i_isa_table *t, int op, shape s, const buf *x, const buf *y)
{
  z3_attr attr = { 0 };
  z3i_call c = { .op = op, .attr = &attr, .dev = device() };
  c.in[0] = VIEW(x, s.R, s.C);
  c.out[0] = VIEW(y, s.R, s.C);
  return t->forward[op](&c);
}
static int backward(const z3i_isa_table *t, int op, shape s, const buf *y, const buf *g, const buf *gx, uint32_t add)
{
  z3_attr attr = { 0 };
  z3i_call c = { .op = op, .attr = &attr, .dev = device(), .gin_add = add };
  c.in[0] = bare(VIEW(gx, s.R, s.C));
  c.out[0] = VIEW(y, s.R, s.C);
  c.gout[0] = VIEW(g, s.R, s.C);
  c.gin[0] = VIEW(gx, s.R, s.C);
  return t->backward[op](&c);
}

/* Backward starts from the kernel's own y, rounded to the dtype: that rounding is not its error. Tolerances: exp and
 * one sum of C terms in f32; a log-probability has the rounding of x - max, a gradient of it that of the sum of g. */
static void check(const z3i_isa_table *t, int op, int dtype, shape s, double scale, double offset)
{
  const int64_t n = s.R * s.C;
  buf x = buf_rnd(dtype, n, 21, scale, offset), y = buf_new(dtype, n);
  buf g = buf_rnd(dtype, n, 22, 1, 0), gx = buf_new(dtype, n);
  double *want = zeros(n), *want_gx = zeros(n);
  ref_forward(op, s, doubles(&x), want);
  assert_int_equal(forward(t, op, s, &x, &y), Z3E_OK);
  assert_all_near(&y, want, op == Z3OP_softmax ? 1e-6 : 2e-6 + 1e-6 * scale);
  ref_backward(op, s, doubles(&y), doubles(&g), want_gx);
  assert_int_equal(backward(t, op, s, &y, &g, &gx, 0), Z3E_OK);
  assert_all_near(&gx, want_gx, 4e-6 + (op == Z3OP_softmax ? 0 : 3e-7 * sqrt((double)s.C)));
}

static void test_values(void **state)
{
  EACH_TABLE(t)
    for (int k = 0; k < 2; k++)
      for (int d = 0; d < LEN(dtypes); d++)
        for (int i = 0; i < LEN(shapes); i++) {
          check(t, ops[k], dtypes[d], shapes[i], 2, 0);
          drop_all(state);
        }
}

/* Only differences count: 1e4 up, 3e4 down, a spread in which most exponentials are 0, rising rows that rescale the
 * running sum in each block. */
static void test_large(void **state)
{
  EACH_TABLE(t)
    for (int k = 0; k < 2; k++) {
      check(t, ops[k], Z3T_F32, (shape){ 3, 33 }, 2, 1e4);
      check(t, ops[k], Z3T_F32, (shape){ 3, 33 }, 3, -3e4);
      check(t, ops[k], Z3T_F32, (shape){ 2, 5000 }, 40, 0);
      check(t, ops[k], Z3T_F16, (shape){ 2, 33 }, 2, 6e4);
      const shape s = { 2, 9000 };
      buf x = buf_new(Z3T_F32, 18000), y = buf_new(Z3T_F32, 18000);
      for (int64_t i = 0; i < 18000; i++) set(&x, i, (i < 9000 ? 1 : -1) * 0.01 * (double)i);
      double *want = zeros(18000);
      ref_forward(ops[k], s, doubles(&x), want);
      assert_int_equal(forward(t, ops[k], s, &x, &y), Z3E_OK);
      assert_all_near(&y, want, 4e-5);
      drop_all(state);
    }
}

/* -inf is probability 0; a row of only -inf, a NaN or +inf gives NaN there and nowhere else. */
static void test_special(void **state)
{
  static const int64_t widths[] = { 5, 40, 5000 };
  EACH_TABLE(t)
    for (int k = 0; k < 2; k++)
      for (int w = 0; w < LEN(widths); w++) {
        const int64_t C = widths[w];
        const shape s = { 5, C };
        buf x = buf_rnd(Z3T_F32, 5 * C, 3, 1, 0), y = buf_new(Z3T_F32, 5 * C);
        for (int64_t i = 0; i < C; i++) set(&x, C + i, -INFINITY);
        for (int64_t i = 0; i < C - 1; i++) set(&x, 4 * C + i, -INFINITY);   /* all blocks but the last */
        set(&x, 2 * C + C / 2, NAN);
        set(&x, 3 * C, INFINITY);
        assert_int_equal(forward(t, ops[k], s, &x, &y), Z3E_OK);
        for (int64_t i = 0; i < 5 * C; i++)
          if (k == 0 || i / C != 3) assert_true(isnan(get(&y, i)) == (i / C >= 1 && i / C <= 3));
        assert_near(get(&y, 5 * C - 1), k == 0 ? 1 : 0, 1e-7, 0);
        assert_true(get(&y, 4 * C) == (k == 0 ? 0 : -INFINITY));
        drop_all(state);
      }
}

/* The ratio of two probabilities is one exponential: its relative error, and 0 where floats get subnormal. */
static void test_exponential(void **state)
{
  const int64_t n = 20001;
  EACH_TABLE(t) {
    buf x = buf_new(Z3T_F32, 2 * n), y = buf_new(Z3T_F32, 2 * n);
    for (int64_t i = 0; i < n; i++) set(&x, 2 * i, 0), set(&x, 2 * i + 1, -0.005 * (double)i);
    assert_int_equal(forward(t, Z3OP_softmax, (shape){ n, 2 }, &x, &y), Z3E_OK);
    for (int64_t i = 0; i < n; i++) {
      const double at = get(&x, 2 * i + 1), got = get(&y, 2 * i + 1);
      if (at > -87.3) assert_near(got, exp(at) / (1 + exp(at)), 0, 3e-7);
      if (at < -87.4) assert_true(got == 0);
    }
    drop_all(state);
  }
}

static void test_empty(void **state)
{
  (void)state;
  EACH_TABLE(t)
    for (int k = 0; k < 2; k++) {
      buf none = buf_new(Z3T_F32, 0), one = buf_rnd(Z3T_F32, 1, 1, 1, 0), y = buf_new(Z3T_F32, 1);
      assert_int_equal(forward(t, ops[k], (shape){ 0, 5 }, &none, &none), Z3E_OK);
      assert_int_equal(forward(t, ops[k], (shape){ 5, 0 }, &none, &none), Z3E_OK);
      assert_int_equal(backward(t, ops[k], (shape){ 5, 0 }, &none, &none, &none, 0), Z3E_OK);
      z3_attr attr = { 0 };
      z3i_call c = { .op = ops[k], .attr = &attr, .dev = device() };
      c.in[0] = view(&one, 0, NULL);
      c.out[0] = view(&y, 0, NULL);
      assert_int_equal(t->forward[ops[k]](&c), Z3E_OK);   /* a scalar is one row of one */
      assert_true(get(&y, 0) == (k == 0 ? 1 : 0));
    }
}

static void test_add_and_threads(void **state)
{
  static const shape big[] = { { 2000, 33 }, { 31, 3000 } };
  EACH_TABLE(t)
    for (int k = 0; k < 2; k++)
      for (int i = 0; i < LEN(big); i++) {
        const shape s = big[i];
        const int64_t n = s.R * s.C;
        buf x = buf_rnd(Z3T_BF16, n, 1, 3, 0), g = buf_rnd(Z3T_F32, n, 2, 1, 0), y[2], gx[2];
        buf before = buf_rnd(Z3T_F32, n, 4, 1, 0);
        for (int j = 0; j < 2; j++) {
          omp_set_num_threads(j + 1);
          y[j] = buf_new(Z3T_F32, n);
          gx[j] = buf_rnd(Z3T_F32, n, 4, 1, 0);
          assert_int_equal(forward(t, ops[k], s, &x, &y[j]), Z3E_OK);
          assert_int_equal(backward(t, ops[k], s, &y[j], &g, &gx[j], (uint32_t)j), Z3E_OK);
        }
        assert_true(same_bits(&y[0], &y[1]));
        assert_added(&gx[1], &before, &gx[0]);
        drop_all(state);
      }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    TEST(test_reference), TEST(test_values), TEST(test_large), TEST(test_special), TEST(test_exponential),
    TEST(test_empty), TEST(test_add_and_threads),
  };
  return cmocka_run_group_tests_name("device/softmax", tests, NULL, NULL);
}
