/* test_device_elem.c -- elementwise kernels of every table: values, gradients, views, integers, special values. */
#include "elem_refs.h"

static const int floats[] = { Z3T_F32, Z3T_BF16, Z3T_F16 };

static void forward(const z3i_isa_table *t, int op, const z3_attr *attr, const z3i_view *out, int n_in,
                    const z3i_view *in)
{
  z3i_call c = { .op = op, .attr = attr, .dev = device(), .out = { *out } };
  for (int i = 0; i < n_in; i++) c.in[i] = in[i];
  assert_non_null(t->forward[op]);
  assert_int_equal(t->forward[op](&c), Z3E_OK);
}

/* ---- values: tails of every length, every float dtype, and a length that runs on two threads ---------------- */
static void check_forward(const z3i_isa_table *t, const elem_case *e, int dtype, int64_t n)
{
  buf x[2] = { elem_input(e, dtype, n, 11), elem_input(e, dtype, n, 12) }, y = buf_new(dtype, n);
  z3i_view in[2] = { VIEW(&x[0], n), VIEW(&x[1], n) }, out = VIEW(&y, n);
  z3_attr attr = elem_attr(e);
  forward(t, e->op, &attr, &out, e->n_in, in);
  for (int64_t i = 0; i < n; i++) {
    double v[3] = { get(&x[0], i), get(&x[1], i) }, want = elem_ref(e->op, v, e->f0, e->f1);
    if (!near(get(&y, i), want, 3e-7 * (1 + fabs(v[0])), 1.01 * rounding(dtype) + 1e-6))
      fail_msg("%s of %.9g, %.9g at %" PRId64 " of %" PRId64 " is %.9g, wants %.9g (%s, %s)", z3_op_name(e->op), v[0],
               v[1], i, n, get(&y, i), want, z3_dtype_name(dtype), t->name);
  }
}

static void test_device_elem_forward(void **state)
{
  (void)state;
  EACH_TABLE(t)
  for (int k = 0; k < LEN(elem_cases); k++)
    for (int d = 0; d < LEN(floats); d++) {
      for (int64_t n = 0; n <= 70; n += d == 0 ? 1 : 7) check_forward(t, &elem_cases[k], floats[d], n);
      check_forward(t, &elem_cases[k], floats[d], 5003);
      drop_all(NULL);
    }
}

/* ---- gradients: against differences of the reference, written and added, in the input's dtype and in f32 ------ */
static double slope(const elem_case *e, const double *v, int i)
{
  double lo[3] = { v[0], v[1] }, hi[3] = { v[0], v[1] }, h = 1e-6;
  lo[i] -= h;
  hi[i] += h;
  return (elem_ref(e->op, hi, e->f0, e->f1) - elem_ref(e->op, lo, e->f0, e->f1)) / (2 * h);
}

static void check_backward(const z3i_isa_table *t, const elem_case *e, int dtype, int gin_dtype, int64_t n, bool add)
{
  buf x[2] = { elem_input(e, dtype, n, 21), elem_input(e, dtype, n, 22) }, y = buf_new(dtype, n);
  buf g = buf_rnd(dtype, n, 23, 1, 0), gx[2] = { buf_rnd(gin_dtype, n, 24, 1, 0), buf_rnd(gin_dtype, n, 25, 1, 0) };
  double *before[2] = { doubles(&gx[0]), doubles(&gx[1]) };
  z3_attr attr = elem_attr(e);
  z3i_call c = { .op = e->op, .attr = &attr, .dev = device(), .out = { VIEW(&y, n) }, .gout = { VIEW(&g, n) },
                 .gin_add = add ? 3 : 0 };
  for (int64_t i = 0; i < n; i++)
    set(&y, i, elem_ref(e->op, (double[3]){ get(&x[0], i), get(&x[1], i) }, e->f0, e->f1));
  for (int i = 0; i < e->n_in; i++) {
    c.in[i] = VIEW(&x[i], n);
    c.gin[i] = VIEW(&gx[i], n);
    if (!(e->saved & 1)) c.in[i] = bare(c.in[i]);
  }
  if (!(e->saved & 2)) c.out[0] = bare(c.out[0]);
  assert_int_equal(t->backward[e->op](&c), Z3E_OK);
  /* A 16-bit result as saved value costs its rounding, which 1 - y^2 and the like don't shrink. */
  double loose = e->saved == 2 && dtype != Z3T_F32 ? 16 * rounding(dtype) : 0;
  for (int k = 0; k < e->n_in; k++)
    for (int64_t i = 0; i < n; i++) {
      double v[3] = { get(&x[0], i), get(&x[1], i) }, want = get(&g, i) * slope(e, v, k) + (add ? before[k][i] : 0);
      double atol = 2e-6 * (1 + fabs(want - (add ? before[k][i] : 0))) + loose * fabs(want) + loose;
      if (fabs(v[0] - v[1]) < 1e-3 || fabs(v[0]) < 1e-3) continue;       /* the kinks of maximum and relu */
      if (!near(get(&gx[k], i), want, atol, 1.01 * rounding(gin_dtype) + 2e-6))
        fail_msg("%s: gradient %d at %.9g, %.9g (g %.9g) is %.9g, wants %.9g (%s into %s, add %d, %s)",
                 z3_op_name(e->op), k, v[0], v[1], get(&g, i), get(&gx[k], i), want, z3_dtype_name(dtype),
                 z3_dtype_name(gin_dtype), add, t->name);
    }
}

static void test_device_elem_backward(void **state)
{
  (void)state;
  EACH_TABLE(t)
  for (int k = 0; k < LEN(elem_cases); k++)
    for (int d = 0; d < LEN(floats); d++)
      for (int add = 0; add < 2; add++) {
        for (int64_t n = 0; n < 20; n += 3) check_backward(t, &elem_cases[k], floats[d], floats[d], n, add);
        check_backward(t, &elem_cases[k], floats[d], Z3T_F32, 2100, add);
        drop_all(NULL);
      }
}

/* ---- where and masked_fill; ties of maximum, kinks ------------------------------------------------------------ */
static void test_device_elem_masks(void **state)
{
  (void)state;
  enum { N = 77 };
  EACH_TABLE(t) {
    buf m = buf_ids(Z3T_U8, N, 1, 3), a = buf_rnd(Z3T_F32, N, 2, 1, 0), b = buf_rnd(Z3T_BF16, N, 3, 1, 0),
        y = buf_new(Z3T_F32, N);
    z3i_view in[3] = { VIEW(&m, N), VIEW(&a, N), VIEW(&b, N) }, out = VIEW(&y, N);
    z3_attr attr = { .f = { -INFINITY } };
    set(&b, 5, NAN);
    forward(t, Z3OP_where, &attr, &out, 3, in);
    for (int64_t i = 0; i < N; i++) assert_near(get(&y, i), get(&m, i) != 0 ? get(&a, i) : get(&b, i), 0, 0);
    forward(t, Z3OP_masked_fill, &attr, &out, 2, (z3i_view[]){ in[1], in[0] });
    for (int64_t i = 0; i < N; i++) assert_near(get(&y, i), get(&m, i) != 0 ? -INFINITY : get(&a, i), 0, 0);
    buf g = buf_rnd(Z3T_F32, N, 4, 1, 0), ga = buf_new(Z3T_F32, N), gb = buf_new(Z3T_F32, N);
    z3i_call c = { .op = Z3OP_where, .attr = &attr, .in = { in[0] }, .gout = { VIEW(&g, N) },
                   .gin = { [1] = VIEW(&ga, N), [2] = VIEW(&gb, N) } };
    assert_int_equal(t->backward[Z3OP_where](&c), Z3E_OK);
    for (int64_t i = 0; i < N; i++) {
      assert_near(get(&ga, i), get(&m, i) != 0 ? get(&g, i) : 0, 0, 0);
      assert_near(get(&gb, i), get(&m, i) != 0 ? 0 : get(&g, i), 0, 0);
    }
    c = (z3i_call){
      .op = Z3OP_masked_fill, .attr = &attr, .in = { [1] = in[0] }, .gout = { VIEW(&g, N) }, .gin = { VIEW(&ga, N) }
    };
    assert_int_equal(t->backward[Z3OP_masked_fill](&c), Z3E_OK);
    for (int64_t i = 0; i < N; i++) assert_near(get(&ga, i), get(&m, i) != 0 ? 0 : get(&g, i), 0, 0);
    drop_all(NULL);
  }
}

static void test_device_elem_ties_and_kinks(void **state)
{
  (void)state;
  static const struct { int op; double a, b, ga, gb; } cases[] = {
    { Z3OP_maximum, 2, 2, 0.5, 0.5 }, { Z3OP_maximum, 1, 2, 0, 1 }, { Z3OP_maximum, NAN, 2, 1, 1 },
    { Z3OP_minimum, 2, 2, 0.5, 0.5 }, { Z3OP_minimum, 1, 2, 1, 0 }, { Z3OP_minimum, 1, NAN, 1, 1 },
    { Z3OP_pow, 0, 2, 0, 0 }, { Z3OP_pow, 0, 0, 0, 0 }, { Z3OP_pow, 3, 0, 0, 1.0986122887 },
    { Z3OP_abs, 0, 0, 0, 0 }, { Z3OP_clamp, -1, 0, 1, 0 }, { Z3OP_clamp, 1, 0, 1, 0 }, { Z3OP_clamp, 1.5, 0, 0, 0 },
    { Z3OP_relu, 0, 0, 0, 0 }, { Z3OP_gelu_tanh, 1e30, 0, 1, 0 }, { Z3OP_gelu_tanh, -1e30, 0, 0, 0 },
    { Z3OP_gelu_erf, INFINITY, 0, 1, 0 }, { Z3OP_gelu_erf, -1e30, 0, 0, 0 }, { Z3OP_silu, 200, 0, 1, 0 },
    { Z3OP_silu, -200, 0, 0, 0 }, { Z3OP_sin, 1e9, 0, 0.837887181364, 0 },
  };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(cases); k++) {
    float a = (float)cases[k].a, b = (float)cases[k].b, y = fmaxf(a, 0), g = 1, ga = 7, gb = 7;
    z3_attr attr = { .f = { -1, 1 } };
    buf bufs[] = { { &a, Z3T_F32, 1 }, { &b, Z3T_F32, 1 },  { &y, Z3T_F32, 1 },
                   { &g, Z3T_F32, 1 }, { &ga, Z3T_F32, 1 }, { &gb, Z3T_F32, 1 } };
    bool two = cases[k].op == Z3OP_maximum || cases[k].op == Z3OP_minimum || cases[k].op == Z3OP_pow;
    z3i_call c = { .op = cases[k].op,
                   .attr = &attr,
                   .in = { VIEW(&bufs[0], 1), VIEW(&bufs[1], 1) },
                   .out = { VIEW(&bufs[2], 1) },
                   .gout = { VIEW(&bufs[3], 1) },
                   .gin = { VIEW(&bufs[4], 1) } };
    if (two) c.gin[1] = VIEW(&bufs[5], 1);
    assert_int_equal(t->backward[cases[k].op](&c), Z3E_OK);
    assert_near((double)ga, cases[k].ga, 2e-6, 1e-6);
    if (two) assert_near((double)gb, cases[k].gb, 2e-6, 1e-6);
  }
}

static void test_device_elem_special_values(void **state)
{
  (void)state;
  static const struct { int op; double a, b, want;
  } cases[] = {
    { Z3OP_exp, 1000, 0, INFINITY },
    { Z3OP_exp, -1000, 0, 0 },
    { Z3OP_exp, -INFINITY, 0, 0 },
    { Z3OP_exp, NAN, 0, NAN },
    { Z3OP_exp, -100, 0, 3.783506e-44 },
    { Z3OP_log, 0, 0, -INFINITY },
    { Z3OP_log, -1, 0, NAN },
    { Z3OP_log, INFINITY, 0, INFINITY },
    { Z3OP_log, 1e-40, 0, -92.1034037 },
    { Z3OP_sqrt, -1, 0, NAN },
    { Z3OP_rsqrt, 0, 0, INFINITY },
    { Z3OP_relu, NAN, 0, NAN },
    { Z3OP_clamp, NAN, 0, NAN },
    { Z3OP_tanh, 1e9, 0, 1 },
    { Z3OP_tanh, -INFINITY, 0, -1 },
    { Z3OP_tanh, NAN, 0, NAN },
    { Z3OP_sigmoid, -1e9, 0, 0 },
    { Z3OP_sigmoid, 1e9, 0, 1 },
    { Z3OP_silu, -1e9, 0, 0 },
    { Z3OP_silu, INFINITY, 0, INFINITY },
    { Z3OP_gelu_tanh, -1e9, 0, 0 },
    { Z3OP_gelu_tanh, 1e20, 0, 1e20 },
    { Z3OP_gelu_erf, -1e9, 0, 0 },
    { Z3OP_gelu_erf, NAN, 0, NAN },
    { Z3OP_sin, 1e9, 0, 0.545843449449 },
    { Z3OP_cos, 1e9, 0, 0.837887181364 },
    { Z3OP_sin, INFINITY, 0, NAN },
    { Z3OP_isfinite, INFINITY, 0, 0 },
    { Z3OP_isfinite, NAN, 0, 0 },
    { Z3OP_isfinite, 3e38, 0, 1 },
    { Z3OP_div, 1, 0, INFINITY },
    { Z3OP_div, 0, 0, NAN },
    { Z3OP_maximum, NAN, 1, NAN },
    { Z3OP_maximum, 1, NAN, NAN },
    { Z3OP_minimum, NAN, 1, NAN },
    { Z3OP_minimum, 1, NAN, NAN },
    { Z3OP_pow, -2, 3, -8 },
    { Z3OP_pow, 0, 0, 1 },
    { Z3OP_swiglu, -1e9, 3, 0 },
  };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(cases); k++)
    for (int64_t n = 1; n <= 33; n += 16) {       /* alone, and in every lane of a vector */
      buf a = buf_new(Z3T_F32, n), b = buf_new(Z3T_F32, n), y = buf_new(Z3T_F32, n);
      for (int64_t i = 0; i < n; i++) set(&a, i, cases[k].a), set(&b, i, cases[k].b);
      z3i_view in[2] = { VIEW(&a, n), VIEW(&b, n) }, out = VIEW(&y, n);
      forward(t, cases[k].op, &(z3_attr){ .f = { -1, 1 } }, &out, 2, in);
      for (int64_t i = 0; i < n; i++)
        if (!near(get(&y, i), cases[k].want, 1e-45, 1e-5))
          fail_msg("%s of %g, %g is %.9g, wants %.9g (%s)", z3_op_name(cases[k].op), cases[k].a, cases[k].b, get(&y, i),
                   cases[k].want, t->name);
      drop_all(NULL);
    }
}

/* ---- views: any strides, repeats, mixed dtypes ------------------------------------------------------------------ */
static void test_device_elem_views(void **state)
{
  (void)state;
  static const int pairs[][2] = {
    { Z3T_F32, Z3T_F32 }, { Z3T_BF16, Z3T_F32 }, { Z3T_F16, Z3T_I32 }, { Z3T_U8, Z3T_BF16 }, { Z3T_I64, Z3T_F32 }
  };
  EACH_TABLE(t)
  for (int p = 0; p < LEN(pairs); p++) {
    buf a = buf_new(pairs[p][0], 5000), b = buf_new(pairs[p][1], 5000), y = buf_new(Z3T_F32, 5000);
    for (int64_t i = 0; i < 5000; i++) set(&a, i, (double)(i % 200)), set(&b, i, (double)((i * 7) % 120));
    int da = a.dtype, db = b.dtype;
    z3i_view cases[][2] = {
      { { a.data, da, 2, { 70, 50 }, { 1, 70 } }, { b.data, db, 2, { 70, 50 }, { 50, 1 } } }, /* transposed */
      { { a.data, da, 3, { 7, 11, 13 }, { 13, 0, 1 } }, { b.data, db, 3, { 7, 11, 13 }, { 0, 1, 0 } } }, /* repeated */
      { { a.data, da, 3, { 4, 5, 60 }, { 600, 120, 2 } },
        { b.data, db, 3, { 4, 5, 60 }, { 1, 4, 20 } } }, /* every other */
      { { a.data, da, 4, { 3, 1, 5, 7 }, { 35, 9, 7, 1 } }, { b.data, db, 4, { 3, 1, 5, 7 }, { 0, 0, 0, 0 } } },
      { { a.data, da, 0, { 0 }, { 0 } }, { b.data, db, 0, { 0 }, { 0 } } },
      { { a.data, da, 2, { 0, 3 }, { 3, 1 } }, { b.data, db, 2, { 0, 3 }, { 0, 1 } } },
      { { a.data, da, 8, { 2, 3, 2, 3, 2, 3, 2, 3 }, { 1, 2, 6, 12, 36, 72, 216, 432 } },
        { b.data, db, 8, { 2, 3, 2, 3, 2, 3, 2, 3 }, { 648, 216, 108, 36, 18, 6, 3, 1 } } },
    };
    for (int k = 0; k < LEN(cases); k++) {
      int64_t n = z3i_view_numel(&cases[k][0]);
      z3i_view out = view(&y, cases[k][0].ndim, cases[k][0].shape);
      forward(t, Z3OP_sub, &(z3_attr){ 0 }, &out, 2, cases[k]);
      for (int64_t i = 0; i < n; i++) assert_near(get(&y, i), at(&cases[k][0], i) - at(&cases[k][1], i), 0, 0);
    }
    drop_all(NULL);
  }
}

/* ---- integers: in 64 bits, wrapping ------------------------------------------------------------------------------ */
static void test_device_elem_integers(void **state)
{
  (void)state;
  static const struct { int op, dtype; int64_t a, b; double f0, f1; int64_t want;
  } cases[] = {
    { Z3OP_add, Z3T_I64, (int64_t)1 << 53, 1, 0, 0, ((int64_t)1 << 53) + 1 },
    { Z3OP_sub, Z3T_I32, -2, 5, 0, 0, -7 },
    { Z3OP_mul, Z3T_I64, 3037000500, 3037000500, 0, 0, (int64_t)(3037000500ull * 3037000500ull) },
    { Z3OP_add, Z3T_U8, 200, 100, 0, 0, 44 },
    { Z3OP_neg, Z3T_I64, 5, 0, 0, 0, -5 },
    { Z3OP_neg, Z3T_U8, 1, 0, 0, 0, 255 },
    { Z3OP_abs, Z3T_I32, -9, 0, 0, 0, 9 },
    { Z3OP_relu, Z3T_I64, -9, 0, 0, 0, 0 },
    { Z3OP_clamp, Z3T_I64, -9, 0, -3, INFINITY, -3 },
    { Z3OP_clamp, Z3T_I32, 9, 0, -INFINITY, 4, 4 },
    { Z3OP_maximum, Z3T_I64, INT64_MAX, INT64_MAX - 1, 0, 0, INT64_MAX },
    { Z3OP_minimum, Z3T_I32, 3, -3, 0, 0, -3 },
    { Z3OP_add_scalar, Z3T_I64, ((int64_t)1 << 53) + 1, 0, 2, 0, ((int64_t)1 << 53) + 3 },
    { Z3OP_mul_scalar, Z3T_I32, -3, 0, 7, 0, -21 },
    { Z3OP_rsub_scalar, Z3T_I64, 3, 0, 10, 0, 7 },
    { Z3OP_pow, Z3T_I64, -3, 39, 0, 0, -4052555153018976267 },
    { Z3OP_pow, Z3T_I32, 5, -1, 0, 0, 0 },
    { Z3OP_pow, Z3T_I32, -1, -3, 0, 0, -1 },
    { Z3OP_pow, Z3T_U8, 3, 6, 0, 0, 729 % 256 },
    { Z3OP_pow_scalar, Z3T_I64, ((int64_t)1 << 31) + 1, 0, 2, 0, ((int64_t)1 << 62) + ((int64_t)1 << 32) + 1 },
    { Z3OP_pow_scalar, Z3T_I32, 0, 0, 0, 0, 1 },
    { Z3OP_masked_fill, Z3T_I64, 5, 1, -100, 0, -100 },
    { Z3OP_isfinite, Z3T_I64, 5, 0, 0, 0, 1 },
    { Z3OP_copy, Z3T_I64, ((int64_t)1 << 60) + 1, 0, 0, 0, ((int64_t)1 << 60) + 1 },
  };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(cases); k++) {
    int64_t mem[3] = { cases[k].a, cases[k].b, 0 }, got = 0;
    buf x = { &mem[0], cases[k].dtype, 1 }, y = { &mem[1], cases[k].dtype, 1 }, r = { &mem[2], cases[k].dtype, 1 };
    z3i_view in[2] = { VIEW(&x, 1), VIEW(&y, 1) }, out = VIEW(&r, 1);
    forward(t, cases[k].op, &(z3_attr){ .f = { cases[k].f0, cases[k].f1 } }, &out, 2, in);
    if (cases[k].dtype == Z3T_I64) got = mem[2];
    else got = (int64_t)get(&r, 0);
    if (got != cases[k].want)
      fail_msg("%s is %" PRId64 ", wants %" PRId64, z3_op_name(cases[k].op), got, cases[k].want);
  }
}

static void test_device_elem_comparisons(void **state)
{
  (void)state;
  static const double values[] = { -1, 0, 0.1, 2, 2, INFINITY, NAN };
  static const int dtypes[] = { Z3T_F32, Z3T_BF16, Z3T_F16, Z3T_I64 };
  EACH_TABLE(t)
  for (int d = 0; d < LEN(dtypes); d++)
    for (int i = 0; i < LEN(values); i++)
      for (int j = 0; j < LEN(values); j++)
        for (int64_t cmp = Z3CMP_EQ; cmp <= Z3CMP_GE; cmp++) {
          if (dtypes[d] == Z3T_I64 && !(fabs(values[i]) < 3 && fabs(values[j]) < 3)) continue;
          buf a = buf_new(dtypes[d], 1), b = buf_new(dtypes[d], 1), y = buf_new(Z3T_U8, 1);
          set(&a, 0, values[i]), set(&b, 0, values[j]);
          double x = get(&a, 0), z = get(&b, 0), s = dtypes[d] == Z3T_I64 ? values[j] : z;
          bool want[] = { x == z, x != z, x<z, x <= z, x> z, x >= z },
               scalar[] = { x == s, x != s, x<s, x <= s, x> s, x >= s };
          z3i_view in[2] = { VIEW(&a, 1), VIEW(&b, 1) }, out = VIEW(&y, 1);
          forward(t, Z3OP_compare, &(z3_attr){ .i = { cmp } }, &out, 2, in);
          assert_int_equal(get(&y, 0), want[cmp]);
          forward(t, Z3OP_cmp_scalar, &(z3_attr){ .f = { values[j] }, .i = { cmp } }, &out, 1, in);
          if (get(&y, 0) != scalar[cmp])
            fail_msg("%g ? %g (%" PRId64 ", %s): %g", x, s, cmp, z3_dtype_name(dtypes[d]), get(&y, 0));
          drop_all(NULL);
        }
  z3i_call bad = { .op = Z3OP_compare, .attr = &(z3_attr){ .i = { 6 } } };
  assert_int_equal(all_tables[0]->forward[Z3OP_compare](&bad), Z3E_ARG);
}

/* ---- the number of threads changes no bit --------------------------------------------------------------------------
 */
static void test_device_elem_threads(void **state)
{
  (void)state;
  enum { N = 100001 };
  static const int ops[] = { Z3OP_gelu_tanh, Z3OP_swiglu, Z3OP_add, Z3OP_exp };
  int before = omp_get_max_threads();
  EACH_TABLE(t)
  for (int k = 0; k < LEN(ops); k++) {
    buf a = buf_rnd(Z3T_F32, N, 1, 2, 0), b = buf_rnd(Z3T_BF16, N, 2, 2, 0), y[2];
    for (int threads = 1; threads <= 2; threads++) {
      omp_set_num_threads(threads);
      y[threads - 1] = buf_new(Z3T_BF16, N);
      z3i_view in[2] = { VIEW(&a, N), VIEW(&b, N) }, out = VIEW(&y[threads - 1], N);
      forward(t, ops[k], &(z3_attr){ 0 }, &out, 2, in);
    }
    assert_true(same_bits(&y[0], &y[1]));
    drop_all(NULL);
  }
  omp_set_num_threads(before);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    TEST(test_device_elem_forward), TEST(test_device_elem_backward), TEST(test_device_elem_masks),
    TEST(test_device_elem_ties_and_kinks), TEST(test_device_elem_special_values), TEST(test_device_elem_views),
    TEST(test_device_elem_integers), TEST(test_device_elem_comparisons), TEST(test_device_elem_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
