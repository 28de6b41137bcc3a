/* test_device_norm.c -- layer norm and RMS norm of every kernel table against plain loops in double. */
#include "model_kernels.h"

typedef struct shape {
  int64_t R, C;
} shape;
static const shape shapes[] = { { 1, 1 },   { 3, 1 },    { 2, 15 },   { 5, 16 },  { 4, 33 },
                                { 3, 768 }, { 2, 2049 }, { 2, 4100 }, { 67, 640 } };
static const int dtypes[] = { Z3T_F32, Z3T_BF16, Z3T_F16 };

/* ---- the reference ---- */
static void ref_forward(bool center, shape s, double eps, const double *x, const double *w, const double *b, double *y,
                        double *mean, double *rstd)
{
  for (int64_t r = 0; r < s.R; r++) {
    const double *row = x + r * s.C;
    double m = 0, v = 0;
    for (int64_t i = 0; i < s.C; i++) m += center ? row[i] / (double)s.C : 0;
    for (int64_t i = 0; i < s.C; i++) v += (row[i] - m) * (row[i] - m) / (double)s.C;
    mean[r] = m;
    rstd[r] = 1 / sqrt(v + eps);
    for (int64_t i = 0; i < s.C; i++) y[r * s.C + i] = (row[i] - m) * rstd[r] * (w ? w[i] : 1) + (b ? b[i] : 0);
  }
}

static void ref_backward(bool center, shape s, const double *x, const double *w, const double *g, const double *mean,
                         const double *rstd, double *gx, double *gw, double *gb)
{
  for (int64_t r = 0; r < s.R; r++) {
    double s1 = 0, s2 = 0;
    for (int64_t i = 0; i < s.C; i++) {
      double xhat = (x[r * s.C + i] - mean[r]) * rstd[r], gi = g[r * s.C + i], gh = gi * (w ? w[i] : 1);
      s1 += center ? gh / (double)s.C : 0;
      s2 += gh * xhat / (double)s.C;
      gw[i] += gi * xhat;
      gb[i] += gi;
    }
    for (int64_t i = 0; i < s.C; i++) {
      double xhat = (x[r * s.C + i] - mean[r]) * rstd[r];
      gx[r * s.C + i] = rstd[r] * (g[r * s.C + i] * (w ? w[i] : 1) - s1 - xhat * s2);
    }
  }
}

/* The reference's own gradients, by central differences of its forward. */
static void test_reference(void **state)
{
  (void)state;
  const shape s = { 3, 7 };
  const int64_t n = s.R * s.C;
  const double eps = 1e-5, h = 1e-5;
  for (int center = 0; center < 2; center++) {
    buf xb = buf_rnd(Z3T_F32, n, 1, 1, 0.3), wb = buf_rnd(Z3T_F32, s.C, 2, 0.5, 1), gb = buf_rnd(Z3T_F32, n, 3, 1, 0);
    double *x = doubles(&xb), *w = doubles(&wb), *g = doubles(&gb), *b = zeros(s.C), *y = zeros(n), *mean = zeros(s.R);
    double *rstd = zeros(s.R), *gx = zeros(n), *gw = zeros(s.C), *gbias = zeros(s.C);
    ref_forward(center, s, eps, x, w, b, y, mean, rstd);
    ref_backward(center, s, x, w, g, mean, rstd, gx, gw, gbias);
    struct {
      double *at, *grad;
      int64_t n;
    } part[] = { { x, gx, n }, { w, gw, s.C }, { b, gbias, s.C } };
    for (int k = 0; k < LEN(part); k++)
      for (int64_t i = 0; i < part[k].n; i++) {
        double before = part[k].at[i], diff = 0;
        for (int side = -1; side <= 1; side += 2) {
          part[k].at[i] = before + side * h;
          ref_forward(center, s, eps, x, w, b, y, mean, rstd);
          for (int64_t j = 0; j < n; j++) diff += side * y[j] * g[j] / (2 * h);
        }
        part[k].at[i] = before;
        assert_near(part[k].grad[i], diff, 1e-8, 1e-7);
      }
  }
}

/* ---- the kernels ---- */
typedef struct norm_case {
  bool center;
  shape s;
  double eps;
  buf x, w, b, g, y, mean, rstd, gx, gw, gb;
  bool has_w;
} norm_case;

static norm_case case_new(bool center, shape s, int dtype, int weight_dtype, bool has_w, double scale, double offset)
{
  const int64_t n = s.R * s.C;
  return (norm_case){
    .center = center, .s = s, .eps = 1e-5, .has_w = has_w,
    .x = buf_rnd(dtype, n, 11, scale, offset), .g = buf_rnd(dtype, n, 12, 1, 0),
    .w = buf_rnd(weight_dtype, s.C, 13, 0.3, 1), .b = buf_rnd(weight_dtype, s.C, 14, 0.3, 0),
    .y = buf_new(dtype, n), .mean = buf_new(Z3T_F32, s.R),
    .rstd = buf_new(Z3T_F32, s.R), .gx = buf_new(dtype, n), .gw = buf_new(Z3T_F32, s.C), .gb = buf_new(Z3T_F32, s.C),
  };
}

static int run(const z3i_isa_table *t, const norm_case *k, bool backward, uint32_t add)
{
  const shape s = k->s;
  const int op = k->center ? Z3OP_layer_norm : Z3OP_rms_norm;
  z3_attr attr = { .f = { k->eps } };
  z3i_call c = { .op = op, .attr = &attr, .dev = device(), .gin_add = add };
  c.in[0] = VIEW(&k->x, s.R, s.C);
  if (k->has_w) c.in[1] = VIEW(&k->w, s.C);
  if (k->has_w && k->center && !backward) c.in[2] = VIEW(&k->b, s.C);
  c.out[0] = VIEW(&k->y, s.R, s.C);
  c.aux[0] = VIEW(k->center ? &k->mean : &k->rstd, s.R);
  if (k->center) c.aux[1] = VIEW(&k->rstd, s.R);
  if (!backward) return t->forward[op](&c);
  c.out[0] = bare(c.out[0]);
  c.gout[0] = VIEW(&k->g, s.R, s.C);
  if (k->gx.n > 0 || k->gw.n == 0) c.gin[0] = VIEW(&k->gx, s.R, s.C);
  if (k->has_w) c.gin[1] = VIEW(&k->gw, s.C);
  if (k->has_w && k->center) c.gin[2] = VIEW(&k->gb, s.C);
  return t->backward[op](&c);
}

/* Tolerances: mean and rstd are held in f32, so an offset costs its unit in the last place; sums over R rows and C
 * columns in f32 cost about 1e-6 of their largest term each. */
static void check(const z3i_isa_table *t, const norm_case *k, double offset)
{
  const shape s = k->s;
  const int64_t n = s.R * s.C;
  double *x = doubles(&k->x), *w = k->has_w ? doubles(&k->w) : NULL, *b = k->has_w && k->center ? doubles(&k->b) : NULL;
  double *g = doubles(&k->g), *y = zeros(n), *mean = zeros(s.R), *rstd = zeros(s.R), *gx = zeros(n), *gw = zeros(s.C);
  double *gb = zeros(s.C), lost = offset * 0x1p-23;
  ref_forward(k->center, s, k->eps, x, w, b, y, mean, rstd);
  ref_backward(k->center, s, x, w, g, mean, rstd, gx, gw, gb);
  double top = 1;
  for (int64_t r = 0; r < s.R; r++) top = fmax(top, rstd[r]);
  lost *= top;
  assert_int_equal(run(t, k, false, 0), Z3E_OK);
  assert_all_near(&k->y, y, 4e-6 + 4 * lost);
  for (int64_t r = 0; r < s.R; r++) {
    assert_near(get(&k->rstd, r), rstd[r], 0, 1e-5);
    if (k->center) assert_near(get(&k->mean, r), mean[r], 1e-6, 2e-7);
  }
  assert_int_equal(run(t, k, true, 0), Z3E_OK);
  assert_all_near(&k->gx, gx, (8e-6 + 8 * lost) * top);
  if (k->has_w) assert_all_near(&k->gw, gw, (4e-6 + 8 * lost) * (double)s.R);
  if (k->has_w && k->center) assert_all_near(&k->gb, gb, 4e-6 * (double)s.R);
  assert_no_scratch();
}

static void test_values(void **state)
{
  EACH_TABLE(t)
    for (int center = 0; center < 2; center++)
      for (int d = 0; d < LEN(dtypes); d++)
        for (int i = 0; i < LEN(shapes); i++)
          for (int has_w = 0; has_w < 2; has_w++) {
            norm_case k = case_new(center, shapes[i], dtypes[d], i % 2 ? Z3T_F32 : dtypes[d], has_w, 1, 0.5);
            check(t, &k, 0.5);
            drop_all(state);
          }
}

/* A mean much larger than the deviations: one pass over x^2 would have nothing left. */
static void test_offset(void **state)
{
  EACH_TABLE(t)
    for (int i = 0; i < LEN(shapes); i++) {
      if (shapes[i].C < 15) continue;
      norm_case k = case_new(true, shapes[i], Z3T_F32, Z3T_F32, true, 1, 1000);
      check(t, &k, 1000);
      drop_all(state);
    }
}

/* A constant row has variance 0 however its sum rounds: y is b, rstd is that of eps alone. */
static void test_constant_row(void **state)
{
  static const double values[] = { 0, 12345.678, 1e6 / 3, -98765.4321 };
  EACH_TABLE(t)
    for (int v = 0; v < LEN(values); v++) {
      const int64_t C = 3001;
      norm_case k = case_new(true, (shape){ 2, C }, Z3T_F32, Z3T_F32, true, 0, values[v]);
      assert_int_equal(run(t, &k, false, 0), Z3E_OK);
      double *b = doubles(&k.b);
      for (int64_t i = 0; i < k.y.n; i++) assert_near(get(&k.y, i), b[i % C], 1e-6, 0);
      assert_near(get(&k.rstd, 1), 1 / sqrt(1e-5), 0, 1e-6);
      drop_all(state);
    }
}

static void test_large_and_nan(void **state)
{
  EACH_TABLE(t)
    for (int center = 0; center < 2; center++) {
      norm_case k = case_new(center, (shape){ 3, 40 }, Z3T_F32, Z3T_F32, true, 1e15, 0);
      set(&k.x, 45, NAN);                       /* row 1 */
      assert_int_equal(run(t, &k, false, 0), Z3E_OK);
      for (int64_t i = 0; i < 120; i++) assert_true(isnan(get(&k.y, i)) == (i / 40 == 1));
      drop_all(state);
    }
}

static void test_empty(void **state)
{
  (void)state;
  static const shape empty[] = { { 0, 8 }, { 0, 0 }, { 4, 0 } };
  EACH_TABLE(t)
    for (int i = 0; i < LEN(empty); i++) {
      norm_case k = case_new(true, empty[i], Z3T_BF16, Z3T_BF16, true, 1, 0);
      assert_int_equal(run(t, &k, false, 0), Z3E_OK);
      assert_int_equal(run(t, &k, true, 0), Z3E_OK);
      for (int64_t j = 0; j < k.gw.n; j++) assert_true(get(&k.gw, j) == 0 && get(&k.gb, j) == 0);
    }
}

/* Adding into gradients, and the same bits with one and two threads. */
static void test_add_and_threads(void **state)
{
  static const shape big[] = { { 67, 640 }, { 300, 129 }, { 9, 4200 } };
  EACH_TABLE(t)
    for (int center = 0; center < 2; center++)
      for (int i = 0; i < LEN(big); i++) {
        norm_case a = case_new(center, big[i], Z3T_F32, Z3T_BF16, true, 1, 0), b = a, before = a;
        const int64_t n = big[i].R * big[i].C, C = big[i].C;
        b.y = buf_new(Z3T_F32, n);
        b.gx = buf_rnd(Z3T_F32, n, 5, 1, 0), b.gw = buf_rnd(Z3T_F32, C, 6, 1, 0), b.gb = buf_rnd(Z3T_F32, C, 7, 1, 0);
        before.gx = buf_rnd(Z3T_F32, n, 5, 1, 0), before.gw = buf_rnd(Z3T_F32, C, 6, 1, 0);
        before.gb = buf_rnd(Z3T_F32, C, 7, 1, 0);
        omp_set_num_threads(1);
        assert_int_equal(run(t, &a, false, 0) | run(t, &a, true, 0), Z3E_OK);
        omp_set_num_threads(2);
        assert_int_equal(run(t, &b, false, 0) | run(t, &b, true, 7), Z3E_OK);
        assert_true(same_bits(&a.y, &b.y));
        assert_added(&b.gx, &before.gx, &a.gx);
        assert_added(&b.gw, &before.gw, &a.gw);
        if (center) assert_added(&b.gb, &before.gb, &a.gb);
        drop_all(state);
      }
}

/* Weights alone and input alone give what both together give. */
static void test_unwanted(void **state)
{
  EACH_TABLE(t) {
    norm_case a = case_new(true, (shape){ 5, 50 }, Z3T_F32, Z3T_F32, true, 1, 0), b = a;
    assert_int_equal(run(t, &a, false, 0) | run(t, &a, true, 0), Z3E_OK);
    b.gx.n = 0;
    b.gw = buf_new(Z3T_F32, 50), b.gb = buf_new(Z3T_F32, 50);
    assert_int_equal(run(t, &b, true, 0), Z3E_OK);
    assert_true(same_bits(&a.gw, &b.gw) && same_bits(&a.gb, &b.gb));
    drop_all(state);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    TEST(test_reference), TEST(test_values), TEST(test_offset), TEST(test_constant_row), TEST(test_large_and_nan),
    TEST(test_empty), TEST(test_add_and_threads), TEST(test_unwanted),
  };
  return cmocka_run_group_tests_name("device/norm", tests, NULL, NULL);
}
