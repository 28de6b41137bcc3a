/* test_device_vec.c -- accuracy of the vectorised functions: sweeps over all floats, in units of the last place.
 * The bounds are those that core/device/cpu/isa/vec.h states. */
#include "elem_refs.h"

enum { N = 1 << 16 };

typedef struct sweep {
  int op;
  double low, high, ulp;
} sweep;
static const sweep sweeps[] = {
  { Z3OP_exp, -INFINITY, INFINITY, 1.0 }, { Z3OP_log, 0, INFINITY, 0.81 },      { Z3OP_tanh, -INFINITY, INFINITY, 2.5 },
  { Z3OP_sigmoid, -87, INFINITY, 2.4 },   { Z3OP_sin, -1048576, 1048576, 1.6 }, { Z3OP_cos, -1048576, 1048576, 1.6 },
  { Z3OP_sqrt, 0, INFINITY, 0.5 },        { Z3OP_rsqrt, 1e-38, INFINITY, 1.5 }, { Z3OP_sin, -1e30, 1e30, 1.6 },
};

/* One unit of the last place of the float nearest to v, at least that of the smallest normal number. */
static double unit_of(double v)
{
  int e;
  frexp(fmax(fabs(v), 0x1p-126), &e);
  return ldexp(1, e - 24);
}

static void check_block(const z3i_isa_table *t, const sweep *s, const buf *x, const buf *y, double *worst)
{
  z3_attr attr = { 0 };
  z3i_call c = { .op = s->op, .attr = &attr, .in = { VIEW(x, N) }, .out = { VIEW(y, N) } };
  assert_int_equal(t->forward[s->op](&c), Z3E_OK);
  for (int64_t i = 0; i < N; i++) {
    double v[3] = { get(x, i) }, got = get(y, i);
    if (!(v[0] >= s->low && v[0] <= s->high)) continue;
    double want = elem_ref(s->op, v, 0, 0), error = fabs(got - want) / unit_of(want);
    if (isinf((float)want) || isnan(want)) {
      assert_near(got, (double)(float)want, 0, 0);
      continue;
    }
    if (!(error <= s->ulp))
      fail_msg("%s of %.9g is %.9g, wants %.9g: %.3f ulp, stated %.2f (%s)", z3_op_name(s->op), v[0], got, want, error,
               s->ulp, t->name);
    *worst = fmax(*worst, error);
  }
}

static void test_device_vec_ulp(void **state)
{
  (void)state;
  EACH_TABLE(t)
  for (int k = 0; k < LEN(sweeps); k++) {
    buf x = buf_new(Z3T_F32, N), y = buf_new(Z3T_F32, N);
    double worst = 0;
    for (uint32_t round = 0; round < 8; round++) {  /* every exponent and 256 fractions of each, others each round */
      for (uint32_t i = 0; i < N; i++) ((uint32_t *)x.data)[i] = i << 16 | (uint32_t)(z3i_mix(round, i) & 0xFFFF);
      check_block(t, &sweeps[k], &x, &y, &worst);
    }
    for (uint32_t i = 0; i < N; i++) set(&x, i, ((double)i - N / 2) * 0x1p-11 * 1.0001);    /* where models live */
    check_block(t, &sweeps[k], &x, &y, &worst);
    assert_true(worst > 0.2 * sweeps[k].ulp);       /* the stated bound isn't idle */
    drop_all(NULL);
  }
}

/* erf has no operation of its own: gelu(x) = x (1 + erf(x / sqrt 2)) / 2 shows it. */
static void test_device_vec_erf(void **state)
{
  (void)state;
  EACH_TABLE(t) {
    buf x = buf_new(Z3T_F32, N), y = buf_new(Z3T_F32, N);
    for (int64_t i = 0; i < N; i++) set(&x, i, (double)(i - N / 2) * 0x1p-12);
    z3_attr attr = { 0 };
    z3i_call c = { .op = Z3OP_gelu_erf, .attr = &attr, .in = { VIEW(&x, N) }, .out = { VIEW(&y, N) } };
    assert_int_equal(t->forward[Z3OP_gelu_erf](&c), Z3E_OK);
    for (int64_t i = 0; i < N; i++) {
      double v = get(&x, i), want = 0.5 * v * (1 + erf(v / sqrt(2)));
      assert_near(get(&y, i), want, 1.3e-7 * fabs(v), 1e-7);
    }
    drop_all(NULL);
  }
}

/* An element has the same bits wherever it lies in a vector, and in a tail. */
static void test_device_vec_place_in_block(void **state)
{
  (void)state;
  static const int ops[] = { Z3OP_exp, Z3OP_log,       Z3OP_tanh,     Z3OP_sigmoid,
                             Z3OP_sin, Z3OP_gelu_tanh, Z3OP_gelu_erf, Z3OP_silu };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(ops); k++) {
    buf x = buf_rnd(Z3T_F32, 200, 3, 3, 0), y = buf_new(Z3T_F32, 200), z = buf_new(Z3T_F32, 200);
    z3_attr attr = { 0 };
    z3i_call c = { .op = ops[k], .attr = &attr, .in = { VIEW(&x, 200) }, .out = { VIEW(&y, 200) } };
    assert_int_equal(t->forward[ops[k]](&c), Z3E_OK);
    for (int64_t lo = 0; lo < 200; lo += 13) {
      int64_t n = Z3I_MIN(200 - lo, 1 + lo % 17);
      z3i_view from = { (float *)x.data + lo, Z3T_F32, 1, { n }, { 1 } },
               to = { (float *)z.data + lo, Z3T_F32, 1, { n }, { 1 } };
      c.in[0] = from;
      c.out[0] = to;
      assert_int_equal(t->forward[ops[k]](&c), Z3E_OK);
      assert_memory_equal((float *)z.data + lo, (float *)y.data + lo, (size_t)n * 4);
    }
    drop_all(NULL);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    TEST(test_device_vec_ulp), TEST(test_device_vec_erf), TEST(test_device_vec_place_in_block),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
