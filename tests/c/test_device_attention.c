/* test_device_attention.c -- attention against plain double loops at every level that the machine runs: dtypes, odd
 * sizes, strides, masks, grouped heads, queries that see nothing, large scores, bits on any threads, memory. */
#include "attention_case.h"

static void compare(const problem *p, const level *l, const char *name, const block *got, const block *before, bool add,
                    const double *want, double size)
{
  char what[160];
  snprintf(what, sizeof what, "%s %s B%d H%d K%d T%d S%d D%d causal%d mask %s %s", l->name, name, (int)p->B, (int)p->H,
           (int)p->K, (int)p->T, (int)p->S, (int)p->D, p->causal, p->mask ? p->mask : "none", z3_dtype_name(p->dtype));
  const int64_t *n = got->v.shape;
  for (int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; i++) {
    int64_t d = i % n[3], t = i / n[3] % n[2], h = i / n[3] / n[2] % n[1], b = i / n[3] / n[2] / n[1];
    double w = want[i] + (add ? (double)at4(&before->v, b, h, t, d) : 0);
    close_to((double)at4(&got->v, b, h, t, d), w, size + 1.01 * rounding(got->v.dtype) * fabs(w), what, i);
  }
}

static void run_at(const problem *p, const level *l, data *d, const expected *e)
{
  for (int i = 0; i < 3; i++)
    memcpy(d->grad[i].memory, d->before[i].memory, (size_t)(d->grad[i].count * z3i_dtype_bytes(p->grad_dtype)));
  CHECK_OK(l->forward(&d->forward));
  double slack = (p->spread > 1 ? 20 : 1) * (p->dtype == Z3T_F32 ? 4e-6 : 4 * rounding(p->dtype));
  compare(p, l, "out", &d->out, NULL, false, e->out, p->spread > 1 ? 1e-4 : 2e-6);
  for (int64_t i = 0; i < p->B * p->H * p->T; i++)
    close_to((double)((float *)d->lse.memory)[i], e->lse[i], 3e-6 * (1 + (double)(p->spread * p->spread)), "lse", i);
  CHECK_OK(l->backward(&d->backward));
  /* delta is computed from the rounded result, so 16-bit gradients are off by about its rounding. */
  double span = 1 + (double)(p->H / p->K) * sqrt((double)p->T);
  compare(p, l, "dq", &d->grad[0], &d->before[0], p->add & 1, e->grad[0], slack * 2);
  compare(p, l, "dk", &d->grad[1], &d->before[1], p->add & 2, e->grad[1], slack * span);
  compare(p, l, "dv", &d->grad[2], &d->before[2], p->add & 4, e->grad[2], slack * span);
}
static void run(problem p)
{
  level l[3];
  int n = find_levels(l);
  random_state = (uint64_t)(p.T * 1000 + p.S);
  data d = data_new(&p);
  data_settle(&d);
  expected e = reference(&p, &d);
  for (int i = 0; i < n; i++) run_at(&p, &l[i], &d, &e);
  expected_free(&e);
  data_free(&d);
}

static const int types[3] = { Z3T_F32, Z3T_BF16, Z3T_F16 };

static void test_attention_sizes(void **state)
{
  (void)state;
  static const int64_t sizes[][3] = { { 1, 1, 1 },     { 3, 3, 17 },    { 17, 17, 3 },
                                      { 65, 65, 65 },  { 64, 128, 16 }, { 66, 200, 80 },
                                      { 130, 70, 32 }, { 5, 130, 256 }, { 130, 130, 64 } };
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (int t = 0; t < 3; t++)
      for (int causal = 0; causal < 2; causal++)
        run((problem){ .B = 1 + (s == 3), .H = 2, .K = 2, .T = sizes[s][0], .S = sizes[s][1], .D = sizes[s][2],
                       .causal = causal, .dtype = types[t], .grad_dtype = s % 2 ? Z3T_F32 : types[t] });
}

/* Few queries take another way (attn_decode.c): more keys than one of its chunks holds. */
static void test_attention_few_queries(void **state)
{
  (void)state;
  for (int64_t T = 1; T <= 5; T++)
    for (int t = 0; t < 3; t++)
      run((problem){ .B = 2, .H = 6, .K = 2, .T = T, .S = 1100, .D = T == 3 ? 65 : 64, .causal = T & 1,
                     .dtype = types[t], .grad_dtype = Z3T_F32, .mask = T == 2 ? "b--s" : T == 4 ? "bhts" : NULL });
}

static void test_attention_masks(void **state)
{
  (void)state;
  static const char *const masks[] = { "bhts", "--ts", "b--s", "---s", "-h-s" };
  for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
    for (int causal = 0; causal < 2; causal++)
      run((problem){ .B = 2, .H = 4, .K = 2, .T = 70, .S = 90, .D = 24, .causal = causal, .mask = masks[m],
                     .dtype = types[m % 3], .grad_dtype = types[m % 3], .add = 5 });
}

static void test_attention_strides_and_adding(void **state)
{
  (void)state;
  static const char *const orders[] = { "0123", "0213", "2013", "1203", "0132" };
  for (size_t o = 0; o < 5; o++)
    for (int t = 0; t < 3; t++)
      run((problem){ .B = 2, .H = 3, .K = 1, .T = 67, .S = 67, .D = o & 1 ? 32 : 20, .causal = true, .order = orders[o],
                     .dtype = types[t], .grad_dtype = t ? Z3T_F32 : types[t], .add = 7 });
}

/* More queries than keys and causal: query t sees keys 0 to t, as far as there are any. */
static void test_attention_more_queries_than_keys(void **state)
{
  (void)state;
  for (int t = 0; t < 3; t++) {
    run((problem){ .B = 1, .H = 2, .K = 2, .T = 150, .S = 20, .D = 16, .causal = true, .dtype = types[t],
                   .grad_dtype = types[t] });
    run((problem){ .B = 1, .H = 2, .K = 2, .T = 4, .S = 2, .D = 16, .causal = true, .dtype = types[t],
                   .grad_dtype = types[t] });
  }
}

static void test_attention_large_scores(void **state)
{
  (void)state;
  for (int causal = 0; causal < 2; causal++)
    run((problem){ .B = 1, .H = 2, .K = 1, .T = 70, .S = 70, .D = 32, .causal = causal, .dtype = Z3T_F32,
                   .grad_dtype = Z3T_F32, .spread = 12 });
  /* Scores of 1e8: weights are 0 or 1, nothing overflows. */
  level l[3];
  int n = find_levels(l);
  problem p = { .B = 1, .H = 1, .K = 1, .T = 80, .S = 80, .D = 16, .causal = true, .dtype = Z3T_F32,
                .grad_dtype = Z3T_F32, .spread = 1e4f };
  for (int i = 0; i < n; i++) {
    data d = data_new(&p);
    data_settle(&d);
    CHECK_OK(l[i].forward(&d.forward));
    CHECK_OK(l[i].backward(&d.backward));
    for (int64_t r = 0; r < d.out.count; r++) assert_true(fabsf(((float *)d.out.memory)[r]) <= 1);
    for (int g = 0; g < 3; g++)
      for (int64_t r = 0; r < d.grad[g].count; r++) assert_true(isfinite(((float *)d.grad[g].memory)[r]));
    data_free(&d);
  }
}

static void test_attention_zero_sizes(void **state)
{
  (void)state;
  static const int64_t sizes[][5] = { { 0, 2, 3, 3, 8 }, { 2, 0, 3, 3, 8 }, { 1, 2, 0, 3, 8 }, { 1, 2, 3, 0, 8 },
                                      { 1, 2, 3, 3, 0 } };
  for (size_t s = 0; s < 5; s++)
    for (int causal = 0; causal < 2; causal++)
      run((problem){ .B = sizes[s][0], .H = sizes[s][1], .K = Z3I_MAX(sizes[s][1], 1), .T = sizes[s][2],
                     .S = sizes[s][3], .D = sizes[s][4], .causal = causal, .dtype = Z3T_F32, .grad_dtype = Z3T_F32,
                     .add = s & 1 ? 7 : 0 });
}

/* A NaN must show, not vanish in a maximum. */
static void test_attention_shows_nan(void **state)
{
  (void)state;
  level l[3];
  int n = find_levels(l);
  for (int64_t T = 1; T <= 40; T += 39) {
    problem p = { .B = 1, .H = 1, .K = 1, .T = T, .S = 40, .D = 16, .dtype = Z3T_F32, .grad_dtype = Z3T_F32 };
    for (int i = 0; i < n; i++) {
      data d = data_new(&p);
      data_settle(&d);
      ((float *)d.q.memory)[3] = NAN;
      CHECK_OK(l[i].forward(&d.forward));
      for (int64_t r = 0; r < d.out.count; r++) assert_true(isnan(((float *)d.out.memory)[r]) == (r < 16));
      data_free(&d);
    }
  }
}

/* Two and more threads than key heads take other ways through backward; bits must not show it. */
static void test_attention_same_bits_on_any_threads(void **state)
{
  (void)state;
  level l[3];
  int n = find_levels(l), threads = omp_get_max_threads();
  static const problem problems[] = {
    { .B = 1, .H = 4, .K = 2, .T = 200, .S = 210, .D = 40, .causal = true, .dtype = Z3T_BF16, .grad_dtype = Z3T_F32 },
    { .B = 1, .H = 2, .K = 1, .T = 300, .S = 300, .D = 64, .dtype = Z3T_F32, .grad_dtype = Z3T_F32, .add = 7 },
    { .B = 1, .H = 4, .K = 1, .T = 2, .S = 2000, .D = 64, .dtype = Z3T_F32, .grad_dtype = Z3T_F32 },
  };
  for (int i = 0; i < n; i++)
    for (int q = 0; q < 3; q++) {
      data first = { 0 };
      for (int t = 1; t <= 5; t++) {
        omp_set_num_threads(t);
        random_state = 7;
        data d = data_new(&problems[q]);
        data_settle(&d);
        CHECK_OK(l[i].forward(&d.forward));
        CHECK_OK(l[i].backward(&d.backward));
        if (t == 1) {
          first = d;
          continue;
        }
        const block *a[] = { &d.out, &d.lse, &d.grad[0], &d.grad[1], &d.grad[2] };
        const block *b[] = { &first.out, &first.lse, &first.grad[0], &first.grad[1], &first.grad[2] };
        for (int r = 0; r < 5; r++)
          assert_memory_equal(a[r]->memory, b[r]->memory, (size_t)(a[r]->count * z3i_dtype_bytes(a[r]->v.dtype)));
        data_free(&d);
      }
      data_free(&first);
    }
  omp_set_num_threads(threads);
}

/* Each gradient alone must have the bits that it has among the others. */
static void test_attention_gradients_one_by_one(void **state)
{
  (void)state;
  level l[3];
  int n = find_levels(l);
  problem p = { .B = 2, .H = 2, .K = 1, .T = 80, .S = 80, .D = 32, .causal = true, .dtype = Z3T_F32,
                .grad_dtype = Z3T_F32 };
  for (int i = 0; i < n; i++) {
    data all = data_new(&p);
    data_settle(&all);
    CHECK_OK(l[i].forward(&all.forward));
    CHECK_OK(l[i].backward(&all.backward));
    for (int g = 0; g < 3; g++) {
      block alone = block_new(Z3T_F32, g == 0 ? "0213" : NULL, 0, true, 4, all.grad[g].v.shape);
      z3i_call c = all.backward;
      for (int j = 0; j < 3; j++) c.gin[j] = without_data(c.gin[j]);
      c.gin[g] = alone.v;
      CHECK_OK(l[i].backward(&c));
      assert_memory_equal(alone.memory, all.grad[g].memory, (size_t)alone.count * 4);
      block_free(&alone);
    }
    data_free(&all);
  }
}

static void test_attention_memory_is_bounded(void **state)
{
  (void)state;
  level l[3];
  int n = find_levels(l);
  problem p = { .B = 1, .H = 1, .K = 1, .T = 2048, .S = 2048, .D = 16, .causal = true, .dtype = Z3T_F32,
                .grad_dtype = Z3T_F32 };
  data d = data_new(&p);
  data_settle(&d);
  CHECK_OK(l[n - 1].forward(&d.forward));
  CHECK_OK(l[n - 1].backward(&d.backward));
  assert_true(dev.pool->stats.peak < 2048 * 2048);   /* a quarter of one f32 matrix of scores */
  data_free(&d);
}

static void test_attention_out_of_memory(void **state)
{
  (void)state;
  level l[3];
  int n = find_levels(l);
  for (int64_t T = 2; T <= 70; T += 68) {
    problem p = { .B = 1, .H = 2, .K = 1, .T = T, .S = 700, .D = 16, .dtype = Z3T_F32, .grad_dtype = Z3T_F32 };
    data d = data_new(&p);
    data_settle(&d);
    assert_true(out_of_memory_sweep(l[n - 1].forward, &d.forward) > 0);
    assert_true(out_of_memory_sweep(l[n - 1].backward, &d.backward) > 0);
    data_free(&d);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_attention_sizes, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_few_queries, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_masks, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_strides_and_adding, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_more_queries_than_keys, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_large_scores, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_zero_sizes, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_shows_nan, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_same_bits_on_any_threads, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_gradients_one_by_one, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_memory_is_bounded, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_out_of_memory, setup, teardown),
  };
  return cmocka_run_group_tests_name("device_attention", tests, NULL, NULL);
}
