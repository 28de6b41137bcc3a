/* test_device_linear_ce.c -- linear_cross_entropy against plain double loops, with more rows and classes than one of
 * its blocks holds: reductions, ignored rows, dtypes, adding, large logits, bad targets, memory. */
#include "device/cpu/cpu_kernels.h"
#include "products.h"

typedef struct problem {
  int64_t n, c, v;
  int dtype, ids, reduction;
  float spread, shift;                            /* size of the weights; every logit is shifted about this much */
  int ignore_each;                                /* every so many rows is ignored; 0: none */
  int grad_dtype;
  uint32_t add;
} problem;

typedef struct data {
  block x, w, targets, loss, count, lse, gout, grad[2], before[2];
  z3_attr attr;
  z3i_call forward, backward;
} data;

enum { IGNORE = -7 };

static int64_t target_get(const data *d, int64_t i)
{
  return d->targets.v.dtype == Z3T_I32 ? ((int32_t *)d->targets.memory)[i] : ((int64_t *)d->targets.memory)[i];
}
static void target_set(const data *d, int64_t i, int64_t id)
{
  if (d->targets.v.dtype == Z3T_I32) ((int32_t *)d->targets.memory)[i] = (int32_t)id;
  else ((int64_t *)d->targets.memory)[i] = id;
}

static void data_new(const problem *p, data *d)
{
  *d = (data){ 0 };
  random_state = (uint64_t)(p->n + p->v);
  d->x = block_new(p->dtype, NULL, 0, true, SHAPE(p->n, p->c));
  d->w = block_new(p->dtype, NULL, 0, true, SHAPE(p->v, p->c));
  d->targets = block_new(p->ids, NULL, 0, false, SHAPE(p->n));
  int64_t each = p->reduction == Z3RED_NONE;
  d->loss = block_new(Z3T_F32, NULL, 0, false, (int)each, &p->n);
  d->gout = block_new(Z3T_F32, NULL, 0, true, (int)each, &p->n);
  d->count = block_new(Z3T_I64, NULL, 0, false, 0, NULL);
  d->lse = block_new(Z3T_F32, NULL, 0, false, SHAPE(p->n));
  for (int64_t i = 0; i < d->w.count; i++)
    number_set(d->w.memory, p->dtype, i, (p->spread > 0 ? p->spread : 1) * number_get(d->w.memory, p->dtype, i));
  for (int64_t i = 0; p->shift != 0 && i < p->n; i++) number_set(d->x.memory, p->dtype, i * p->c, 1);
  for (int64_t i = 0; p->shift != 0 && i < p->v; i++) number_set(d->w.memory, p->dtype, i * p->c, p->shift);
  for (int64_t i = 0; i < p->n; i++) target_set(d, i, (int64_t)((double)(random_float() + 1) / 2 * (double)p->v));
  for (int64_t i = 0; p->ignore_each && i < p->n; i += p->ignore_each) target_set(d, i, IGNORE);
  for (int i = 0; i < 2; i++) {
    const z3i_view *like = i == 0 ? &d->x.v : &d->w.v;
    d->grad[i] = block_new(p->grad_dtype, NULL, 0, true, 2, like->shape);
    d->before[i] = block_new(p->grad_dtype, NULL, 0, false, 2, like->shape);
    memcpy(d->before[i].memory, d->grad[i].memory, (size_t)(d->grad[i].count * z3i_dtype_bytes(p->grad_dtype)));
  }
  d->attr = (z3_attr){ .i = { IGNORE, p->reduction } };
  d->forward = (z3i_call){ .op = Z3OP_linear_cross_entropy, .attr = &d->attr, .dev = &dev,
                           .in = { d->x.v, d->w.v, d->targets.v }, .out = { d->loss.v,
                                                                            d->count.v }, .aux = { d->lse.v } };
  d->backward = d->forward;
  d->backward.gout[0] = d->gout.v;
  d->backward.gin[0] = d->grad[0].v;
  d->backward.gin[1] = d->grad[1].v;
  d->backward.gin_add = p->add;
}
static void data_free(data *d)
{
  block *all[] = { &d->x, &d->w, &d->targets, &d->loss, &d->count, &d->lse, &d->gout };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) block_free(all[i]);
  for (int i = 0; i < 2; i++) {
    block_free(&d->grad[i]);
    block_free(&d->before[i]);
  }
}

/* ---- the reference ----------------------------------------------------------------------------------- */
typedef struct expected {
  double *row, *lse, *grad[2], loss;
  int64_t count;
} expected;

/* x, w: the inputs as doubles. */
static void reference_row(const problem *p, const data *d, expected *e, int64_t i, const double *x, const double *w,
                          double *weight)
{
  const int64_t target = target_get(d, i), c = p->c;
  double max = -INFINITY, sum = 0, picked = 0;
  for (int64_t j = 0; j < p->v; j++) {
    double logit = 0;
    for (int64_t k = 0; k < c; k++) logit += x[i * c + k] * w[j * c + k];
    weight[j] = logit;
    max = fmax(max, logit);
    if (j == target) picked = logit;
  }
  for (int64_t j = 0; j < p->v; j++) sum += weight[j] = exp(weight[j] - max);
  e->lse[i] = max + log(sum);
  e->row[i] = e->lse[i] - picked;
  const float *gout = d->gout.memory;
  double scale = p->reduction == Z3RED_NONE ? (double)gout[i] : (double)gout[0];
  if (p->reduction == Z3RED_MEAN) scale /= (double)e->count;
  for (int64_t j = 0; j < p->v; j++) {
    double g = scale * (weight[j] / sum - (j == target));
    for (int64_t k = 0; k < c; k++) {
      e->grad[0][i * c + k] += g * w[j * c + k];
      e->grad[1][j * c + k] += g * x[i * c + k];
    }
  }
}

static double *doubles(const block *b)
{
  double *out = calloc((size_t)b->count + 1, 8);
  for (int64_t i = 0; i < b->count; i++) out[i] = (double)number_get(b->memory, b->v.dtype, i);
  return out;
}

static void reference(const problem *p, const data *d, expected *e)
{
  *e = (expected){ .row = calloc((size_t)p->n + 1, 8), .lse = calloc((size_t)p->n + 1, 8),
                   .grad = { calloc((size_t)(p->n * p->c) + 1, 8), calloc((size_t)(p->v * p->c) + 1, 8) } };
  double *weight = calloc((size_t)p->v + 1, 8), *x = doubles(&d->x), *w = doubles(&d->w);
  for (int64_t i = 0; i < p->n; i++) e->count += target_get(d, i) != IGNORE;
  for (int64_t i = 0; i < p->n; i++)
    if (target_get(d, i) != IGNORE) reference_row(p, d, e, i, x, w, weight);
  for (int64_t i = 0; i < p->n; i++) e->loss += e->row[i];
  if (p->reduction == Z3RED_MEAN) e->loss = e->count > 0 ? e->loss / (double)e->count : 0;
  free(weight); free(x); free(w);
}
static void expected_free(expected *e)
{
  free(e->row); free(e->lse); free(e->grad[0]); free(e->grad[1]);
}

static double largest(const double *x, int64_t n)
{
  double most = 0;
  for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
  return most;
}

/* f32 products with logits of this size are off by about size * 1e-7 * sqrt(C). */
static void compare(const problem *p, const data *d, const expected *e)
{
  double size = fabs((double)p->shift) + (double)(p->spread > 0 ? p->spread : 1) * 4, slack = 1e-6 * size + 2e-6;
  const float *loss = d->loss.memory, *lse = d->lse.memory;
  assert_int_equal(*(int64_t *)d->count.memory, e->count);
  if (p->reduction != Z3RED_NONE) close_to((double)*loss, e->loss, slack * (p->reduction == Z3RED_SUM ? (double)p->n
                                                                            : 1), "loss", 0);
  for (int64_t i = 0; i < p->n; i++) {
    close_to((double)lse[i], e->lse[i], slack, "lse", i);
    if (p->reduction == Z3RED_NONE) close_to((double)loss[i], e->row[i], slack, "loss", i);
  }
  for (int g = 0; g < 2; g++) {
    int64_t n = d->grad[g].count;
    double most = largest(e->grad[g], n), rough = (p->dtype == Z3T_F32 ? slack : rounding(p->dtype)) * most;
    /* The shifted column of dx is a sum of large terms that cancel. */
    if (g == 0) rough += slack * fabs((double)p->shift) / (double)(e->count + 1);
    for (int64_t i = 0; i < n; i++) {
      double want = e->grad[g][i] + ((p->add >> g) & 1 ? (double)number_get(d->before[g].memory, p->grad_dtype, i) : 0);
      close_to((double)number_get(d->grad[g].memory, p->grad_dtype, i), want,
               rough + 1.01 * rounding(p->grad_dtype) * fabs(want), g ? "dw" : "dx", i);
    }
  }
}

static void run(problem p)
{
  data d;
  expected e;
  data_new(&p, &d);
  reference(&p, &d, &e);
  CHECK_OK(z3i_cpu_linear_cross_entropy_fwd(&d.forward));
  CHECK_OK(z3i_cpu_linear_cross_entropy_bwd(&d.backward));
  compare(&p, &d, &e);
  expected_free(&e);
  data_free(&d);
}

static const int types[3] = { Z3T_F32, Z3T_BF16, Z3T_F16 };

static void test_linear_ce_sizes_and_reductions(void **state)
{
  (void)state;
  static const int64_t sizes[][3] = { { 1, 1, 1 }, { 3, 17, 65 }, { 65, 3, 130 }, { 17, 32, 1 }, { 130, 40, 257 } };
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (int t = 0; t < 3; t++)
      for (int r = 0; r < 3; r++)
        run((problem){ .n = sizes[s][0], .c = sizes[s][1], .v = sizes[s][2], .dtype = types[t], .reduction = r,
                       .ids = r & 1 ? Z3T_I32 : Z3T_I64, .ignore_each = s & 1 ? 3 : 0,
                       .grad_dtype = s & 1 ? Z3T_F32 : types[t], .add = (uint32_t)r });
}

/* Several blocks of the vocabulary, and several of rows: sums over blocks, with and without adding. */
static void test_linear_ce_many_blocks(void **state)
{
  (void)state;
  for (int t = 0; t < 2; t++) {
    run((problem){ .n = 3000, .c = 2, .v = 2900, .dtype = types[t], .ids = Z3T_I64, .ignore_each = 5,
                   .reduction = Z3RED_MEAN, .grad_dtype = types[t], .add = t ? 0 : 3 });
    run((problem){ .n = 4100, .c = 3, .v = 2100, .dtype = types[t], .ids = Z3T_I32, .reduction = Z3RED_SUM,
                   .grad_dtype = types[t], .add = t ? 3 : 0 });
  }
}

/* Twice the gradient, added, is exactly twice the gradient, however many blocks it was summed over. */
static void test_linear_ce_adding_is_exact(void **state)
{
  (void)state;
  for (int t = 0; t < 2; t++) {
    problem p = { .n = 4100, .c = 5, .v = 4200, .dtype = types[t], .ids = Z3T_I64, .reduction = Z3RED_MEAN,
                  .grad_dtype = types[t] };
    data d;
    data_new(&p, &d);
    CHECK_OK(z3i_cpu_linear_cross_entropy_fwd(&d.forward));
    CHECK_OK(z3i_cpu_linear_cross_entropy_bwd(&d.backward));
    for (int g = 0; g < 2; g++) memcpy(d.before[g].memory, d.grad[g].memory,
                                       (size_t)(d.grad[g].count * z3i_dtype_bytes(types[t])));
    d.backward.gin_add = 3;
    CHECK_OK(z3i_cpu_linear_cross_entropy_bwd(&d.backward));
    for (int g = 0; g < 2; g++)
      for (int64_t i = 0; i < d.grad[g].count; i++)
        assert_true(number_get(d.grad[g].memory, types[t], i) == 2 * number_get(d.before[g].memory, types[t], i));
    data_free(&d);
  }
}

/* Logits far from 0: f32 can't hold their log-sum-exp well, and no block alone has the row's sum. */
static void test_linear_ce_large_logits(void **state)
{
  (void)state;
  static const float shifts[] = { 50, -100, 1000, -3000 };
  for (size_t s = 0; s < 4; s++)
    run((problem){ .n = 3000, .c = 3, .v = 2900, .dtype = Z3T_F32, .ids = Z3T_I64, .reduction = Z3RED_MEAN,
                   .shift = shifts[s], .grad_dtype = Z3T_F32 });
  run((problem){ .n = 30, .c = 8, .v = 300, .dtype = Z3T_F32, .ids = Z3T_I64, .spread = 100, .grad_dtype = Z3T_F32 });
}

static void test_linear_ce_all_ignored_and_empty(void **state)
{
  (void)state;
  for (int r = 0; r < 3; r++) {
    problem p = { .n = 20, .c = 4, .v = 9, .dtype = Z3T_F32, .ids = Z3T_I64, .reduction = r, .ignore_each = 1,
                  .grad_dtype = Z3T_F32 };
    run(p);
    p.n = 0;
    run(p);
    p.n = 5;
    p.c = 0;
    p.ignore_each = 2;
    run(p);
  }
}

static void test_linear_ce_nan_shows(void **state)
{
  (void)state;
  problem p = { .n = 4, .c = 4, .v = 9, .dtype = Z3T_F32, .ids = Z3T_I64, .reduction = Z3RED_NONE,
                .grad_dtype = Z3T_F32 };
  data d;
  data_new(&p, &d);
  ((float *)d.x.memory)[5] = NAN;
  CHECK_OK(z3i_cpu_linear_cross_entropy_fwd(&d.forward));
  for (int i = 0; i < 4; i++) assert_true(isnan(((float *)d.loss.memory)[i]) == (i == 1));
  data_free(&d);
}

static void test_linear_ce_bad_target(void **state)
{
  (void)state;
  problem p = { .n = 6, .c = 4, .v = 9, .dtype = Z3T_F32, .ids = Z3T_I32, .reduction = Z3RED_MEAN,
                .grad_dtype = Z3T_F32 };
  static const int64_t bad[] = { 9, -1 };
  for (int b = 0; b < 2; b++) {
    data d;
    data_new(&p, &d);
    target_set(&d, 4, bad[b]);
    assert_int_equal(z3i_cpu_linear_cross_entropy_fwd(&d.forward), Z3E_ARG);
    char want[200];
    snprintf(want, sizeof want,
             "linear_cross_entropy: target at [4] is %d, wants 0 to 8 or -7 (ignored): there are 9 classes",
             (int)bad[b]);
    assert_string_equal(z3_last_error(), want);
    assert_int_equal(z3i_cpu_linear_cross_entropy_bwd(&d.backward), Z3E_ARG);
    data_free(&d);
  }
}

static void test_linear_ce_one_gradient(void **state)
{
  (void)state;
  problem p = { .n = 70, .c = 6, .v = 90, .dtype = Z3T_BF16, .ids = Z3T_I64, .reduction = Z3RED_MEAN,
                .grad_dtype = Z3T_F32 };
  for (int g = 0; g < 2; g++) {
    data d;
    data_new(&p, &d);
    CHECK_OK(z3i_cpu_linear_cross_entropy_fwd(&d.forward));
    CHECK_OK(z3i_cpu_linear_cross_entropy_bwd(&d.backward));
    memcpy(d.before[g].memory, d.grad[g].memory, (size_t)d.grad[g].count * 4);
    memset(d.grad[g].memory, 0, (size_t)d.grad[g].count * 4);
    d.backward.gin[1 - g] = without_data(d.backward.gin[1 - g]);
    CHECK_OK(z3i_cpu_linear_cross_entropy_bwd(&d.backward));
    assert_memory_equal(d.before[g].memory, d.grad[g].memory, (size_t)d.grad[g].count * 4);
    data_free(&d);
  }
}

static void test_linear_ce_memory(void **state)
{
  (void)state;
  problem p = { .n = 3000, .c = 2, .v = 20000, .dtype = Z3T_BF16, .ids = Z3T_I64, .reduction = Z3RED_MEAN,
                .grad_dtype = Z3T_F32, .add = 3 };
  data d;
  data_new(&p, &d);
  CHECK_OK(z3i_cpu_linear_cross_entropy_fwd(&d.forward));
  assert_true(dev.pool->stats.peak < 40 << 20);   /* all logits would be 229 MiB */
  CHECK_OK(z3i_cpu_linear_cross_entropy_bwd(&d.backward));
  assert_true(dev.pool->stats.peak < 64 << 20);
  data_free(&d);
  p.n = 40;
  p.v = 50;
  data_new(&p, &d);
  assert_true(out_of_memory_sweep(z3i_cpu_linear_cross_entropy_fwd, &d.forward) > 0);
  assert_true(out_of_memory_sweep(z3i_cpu_linear_cross_entropy_bwd, &d.backward) > 0);
  data_free(&d);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_linear_ce_sizes_and_reductions, setup, teardown),
    cmocka_unit_test_setup_teardown(test_linear_ce_many_blocks, setup, teardown),
    cmocka_unit_test_setup_teardown(test_linear_ce_adding_is_exact, setup, teardown),
    cmocka_unit_test_setup_teardown(test_linear_ce_large_logits, setup, teardown),
    cmocka_unit_test_setup_teardown(test_linear_ce_all_ignored_and_empty, setup, teardown),
    cmocka_unit_test_setup_teardown(test_linear_ce_nan_shows, setup, teardown),
    cmocka_unit_test_setup_teardown(test_linear_ce_bad_target, setup, teardown),
    cmocka_unit_test_setup_teardown(test_linear_ce_one_gradient, setup, teardown),
    cmocka_unit_test_setup_teardown(test_linear_ce_memory, setup, teardown),
  };
  return cmocka_run_group_tests_name("device_linear_ce", tests, NULL, NULL);
}
