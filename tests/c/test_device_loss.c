/* test_device_loss.c -- cross-entropy of every kernel table against plain loops in double. */
#include "model_kernels.h"

typedef struct loss_case {
  int64_t N, V, ignore;
  int reduction;
  buf x, targets, out, count, lse, gout, gx;
} loss_case;

static const int reductions[] = { Z3RED_SUM, Z3RED_MEAN, Z3RED_NONE };
static const int dtypes[] = { Z3T_F32, Z3T_BF16, Z3T_F16 };

static loss_case case_new(int64_t N, int64_t V, int dtype, int id_dtype, int reduction, double scale, double offset)
{
  const int64_t outs = reduction == Z3RED_NONE ? N : 1;
  return (loss_case){
    .N = N, .V = V, .ignore = -100, .reduction = reduction, .x = buf_rnd(dtype, N * V, 31, scale, offset),
    .targets = buf_ids(id_dtype, N, 32, V), .out = buf_new(Z3T_F32, outs), .count = buf_new(Z3T_I64, 1),
    .lse = buf_new(Z3T_F32, N), .gout = buf_rnd(Z3T_F32, outs, 33, 1, 1), .gx = buf_new(dtype, N * V),
  };
}

static int run(const z3i_isa_table *t, const loss_case *k, bool backward, uint32_t add)
{
  z3_attr attr = { .i = { k->ignore, k->reduction } };
  z3i_call c = { .op = Z3OP_cross_entropy, .attr = &attr, .dev = device(), .gin_add = add };
  c.in[0] = VIEW(&k->x, k->N, k->V);
  c.in[1] = VIEW(&k->targets, k->N);
  c.out[0] = k->reduction == Z3RED_NONE ? VIEW(&k->out, k->N) : view(&k->out, 0, NULL);
  c.out[1] = view(&k->count, 0, NULL);
  c.aux[0] = VIEW(&k->lse, k->N);
  if (!backward) return t->forward[c.op](&c);
  c.gout[0] = c.out[0];
  c.gout[0].data = k->gout.data;
  c.out[0] = bare(c.out[0]);
  c.out[1] = bare(c.out[1]);
  c.gin[0] = VIEW(&k->gx, k->N, k->V);
  return t->backward[c.op](&c);
}

/* ---- the reference ---- */
static double ref_row(const double *x, int64_t V, int64_t target, double *lse)
{
  double max = -INFINITY, sum = 0;
  for (int64_t i = 0; i < V; i++) max = fmax(max, x[i]);
  for (int64_t i = 0; i < V; i++) sum += exp(x[i] - max);
  *lse = max + log(sum);
  return log(sum) - (x[target] - max);
}

static void ref(const loss_case *k, double *out, double *lse, double *gx, int64_t *count)
{
  double *x = doubles(&k->x), sum = 0;
  *count = 0;
  for (int64_t r = 0; r < k->N; r++) *count += (int64_t)get(&k->targets, r) != k->ignore;
  for (int64_t r = 0; r < k->N; r++) {
    const int64_t target = (int64_t)get(&k->targets, r);
    double row = 0, scale = get(&k->gout, k->reduction == Z3RED_NONE ? r : 0);
    if (target != k->ignore) {
      row = ref_row(x + r * k->V, k->V, target, &lse[r]);
      if (k->reduction == Z3RED_MEAN) scale /= (double)*count;
      for (int64_t i = 0; i < k->V; i++)
        gx[r * k->V + i] = scale * (exp(x[r * k->V + i] - lse[r]) - (i == target));
    }
    if (k->reduction == Z3RED_NONE) out[r] = row;
    sum += row;
  }
  if (k->reduction != Z3RED_NONE) out[0] = k->reduction == Z3RED_MEAN ? *count > 0 ? sum / (double)*count : 0 : sum;
}

static void test_reference(void **state)
{
  (void)state;
  loss_case k = case_new(3, 7, Z3T_F32, Z3T_I64, Z3RED_MEAN, 2, 0);
  double out, lse[3], unused[3], gx[21], scratch[21];
  const double h = 1e-3;
  int64_t count;
  set(&k.targets, 1, -100);
  memset(gx, 0, sizeof gx);
  ref(&k, &out, lse, gx, &count);
  assert_int_equal(count, 2);
  for (int64_t i = 0; i < 21; i++) {
    double before = get(&k.x, i), at[2], step = 0;
    for (int side = 0; side < 2; side++) {
      set(&k.x, i, before + (side ? h : -h));
      step += (side ? 1 : -1) * get(&k.x, i);
      ref(&k, &at[side], unused, scratch, &count);
    }
    set(&k.x, i, before);
    assert_near(gx[i], (at[1] - at[0]) / step * get(&k.gout, 0), 1e-6, 0);
  }
}

/* ---- the kernels ---- */
/* Tolerances: a row's loss has the rounding of exp and of a sum of V terms in f32 (2e-6), whatever the logits' size;
 * gradients are relative to their scale. */
static void check(const z3i_isa_table *t, const loss_case *k)
{
  double *out = zeros(k->out.n), *lse = zeros(k->N), *gx = zeros(k->N * k->V);
  int64_t count;
  ref(k, out, lse, gx, &count);
  assert_int_equal(run(t, k, false, 0), Z3E_OK);
  assert_int_equal(((int64_t *)k->count.data)[0], count);
  assert_all_near(&k->out, out, 2e-6 * (k->reduction == Z3RED_SUM ? (double)k->N : 1));
  for (int64_t r = 0; r < k->N; r++)
    if ((int64_t)get(&k->targets, r) != k->ignore) assert_near(get(&k->lse, r), lse[r], 2e-6, 1e-7);
  assert_int_equal(run(t, k, true, 0), Z3E_OK);
  assert_all_near(&k->gx, gx, 2e-6 * (k->reduction == Z3RED_MEAN && count > 0 ? 1 / (double)count : 1) * 4);
  assert_no_scratch();
}

static void test_values(void **state)
{
  static const int64_t shapes[][2] = {
    { 1, 1 }, { 5, 2 }, { 4, 17 }, { 6, 257 }, { 3, 2048 }, { 3, 2050 }, { 2, 50304 }
  };
  EACH_TABLE(t)
    for (int d = 0; d < LEN(dtypes); d++)
      for (int i = 0; i < LEN(shapes); i++)
        for (int m = 0; m < 3; m++) {
          loss_case k = case_new(shapes[i][0], shapes[i][1], dtypes[d], i % 2 ? Z3T_I32 : Z3T_I64, reductions[m], 2, 0);
          check(t, &k);
          if (k.N > 2) {
            k.ignore = i % 2 ? -100 : k.V - 1;  /* an ignore_index that is a class as well */
            set(&k.targets, 1, (double)k.ignore);
            set(&k.targets, 2, 0);
            set(&k.targets, 0, k.V > 2 ? (double)(k.V - 2) : 0);
            check(t, &k);
          }
          drop_all(state);
        }
}

/* Logits of 1e4 cost nothing: the maximum cancels, and probabilities are normalised again where lse is coarse. */
static void test_large(void **state)
{
  EACH_TABLE(t)
    for (int m = 0; m < 3; m++) {
      loss_case up = case_new(4, 300, Z3T_F32, Z3T_I64, reductions[m], 3, 1e4);
      loss_case down = case_new(4, 3000, Z3T_F32, Z3T_I64, reductions[m], 3, -1e4);
      loss_case wide = case_new(4, 300, Z3T_F32, Z3T_I64, reductions[m], 1e4, 0);
      check(t, &up);
      check(t, &down);
      check(t, &wide);
      drop_all(state);
    }
}

/* NaN and inf end in the loss; other rows keep their numbers. */
static void test_nonfinite(void **state)
{
  static const double bad[] = { NAN, INFINITY };
  EACH_TABLE(t)
    for (int i = 0; i < 2; i++) {
      loss_case k = case_new(3, 20, Z3T_F32, Z3T_I64, Z3RED_NONE, 1, 0);
      set(&k.x, 27, bad[i]);
      assert_int_equal(run(t, &k, false, 0) | run(t, &k, true, 0), Z3E_OK);
      for (int64_t r = 0; r < 3; r++) assert_true(isnan(get(&k.out, r)) == (r == 1));
      for (int64_t j = 0; j < 60; j++) assert_true(j / 20 == 1 || isfinite(get(&k.gx, j)));
      assert_true(isnan(get(&k.gx, 27)));
      k.reduction = Z3RED_MEAN;
      k.out = buf_new(Z3T_F32, 1);
      assert_int_equal(run(t, &k, false, 0), Z3E_OK);
      assert_true(isnan(get(&k.out, 0)));
      drop_all(state);
    }
}

static void test_nothing_counts(void **state)
{
  EACH_TABLE(t)
    for (int m = 0; m < 3; m++) {
      loss_case k = case_new(3, 20, Z3T_BF16, Z3T_I32, reductions[m], 1, 0);
      loss_case none = case_new(0, 5, Z3T_F32, Z3T_I64, reductions[m], 1, 0);
      for (int64_t r = 0; r < 3; r++) set(&k.targets, r, -100);
      for (int64_t i = 0; i < 60; i++) set(&k.x, i, NAN);
      assert_int_equal(run(t, &k, false, 0) | run(t, &k, true, 0), Z3E_OK);
      for (int64_t i = 0; i < k.out.n; i++) assert_true(get(&k.out, i) == 0);
      for (int64_t i = 0; i < 60; i++) assert_true(get(&k.gx, i) == 0);
      assert_int_equal(((int64_t *)k.count.data)[0], 0);
      assert_int_equal(run(t, &none, false, 0) | run(t, &none, true, 0), Z3E_OK);
      if (none.out.n == 1) assert_true(get(&none.out, 0) == 0);
      drop_all(state);
    }
}

static void test_errors(void **state)
{
  (void)state;
  static const double bad[] = { 20, -1, -101 };
  EACH_TABLE(t)
    for (int i = 0; i < LEN(bad); i++) {
      loss_case k = case_new(5, 20, Z3T_F32, i ? Z3T_I32 : Z3T_I64, Z3RED_MEAN, 1, 0);
      char want[80];
      set(&k.targets, 3, bad[i]);
      assert_int_equal(run(t, &k, false, 0), Z3E_ARG);
      snprintf(want, sizeof want, "cross_entropy: target at [3] is %d, wants 0 to 19 or -100", (int)bad[i]);
      if (strstr(z3_last_error(), want) == NULL) fail_msg("message: %s", z3_last_error());
      buf untouched = buf_new(Z3T_F32, 5);
      assert_memory_equal(k.lse.data, untouched.data, 20);
      assert_memory_equal(k.out.data, untouched.data, 4);
    }
}

static void test_add_and_threads(void **state)
{
  EACH_TABLE(t)
    for (int m = 0; m < 3; m++) {
      const int64_t N = 37, V = 2100;
      loss_case a = case_new(N, V, Z3T_F32, Z3T_I64, reductions[m], 2, m * 100), b = a;
      buf before = buf_rnd(Z3T_F32, N * V, 6, 1, 0);
      b.out = buf_new(Z3T_F32, a.out.n);
      b.lse = buf_new(Z3T_F32, N);
      b.gx = buf_rnd(Z3T_F32, N * V, 6, 1, 0);
      set(&a.targets, 5, -100);
      omp_set_num_threads(1);
      assert_int_equal(run(t, &a, false, 0) | run(t, &a, true, 0), Z3E_OK);
      omp_set_num_threads(2);
      assert_int_equal(run(t, &b, false, 0) | run(t, &b, true, 1), Z3E_OK);
      assert_true(same_bits(&a.out, &b.out) && same_bits(&a.lse, &b.lse));
      assert_added(&b.gx, &before, &a.gx);
      drop_all(state);
    }
}

/* The two row steps give what the whole operation gives. */
static void test_row_steps(void **state)
{
  static const double offsets[] = { 0, 2000 };
  EACH_TABLE(t)
    for (int i = 0; i < 2; i++) {
      loss_case k = case_new(3, 4099, Z3T_F32, Z3T_I64, Z3RED_SUM, 2, offsets[i]);
      assert_int_equal(run(t, &k, false, 0) | run(t, &k, true, 0), Z3E_OK);
      for (int64_t r = 0; r < 3; r++) {
        float *row = (float *)k.x.data + r * k.V, lse = t->row_lse(row, k.V), scale = ((float *)k.gout.data)[0];
        assert_true(lse == ((float *)k.lse.data)[r]);
        t->row_ce_grad(row, k.V, (int64_t)get(&k.targets, r), lse, scale);
      }
      assert_true(same_bits(&k.x, &k.gx));
      drop_all(state);
    }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    TEST(test_reference), TEST(test_values), TEST(test_large), TEST(test_nonfinite), TEST(test_nothing_counts),
    TEST(test_errors), TEST(test_add_and_threads), TEST(test_row_steps),
  };
  return cmocka_run_group_tests_name("device/loss", tests, NULL, NULL);
}
