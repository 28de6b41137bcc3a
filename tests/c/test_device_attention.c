/* test_device_attention.c -- attention against plain double loops at every level that the machine runs: dtypes, odd sizes,
 * strides, masks, grouped heads, queries that see nothing, large scores, bits for any number of threads, memory. */
#include "device/cpu/isa/attn_levels.h"
#include "products.h"

typedef struct problem {
  int64_t B, H, K, T, S, D;
  bool causal;
  const char *mask;                               /* which of B, H, T, S it has: "bhts", "--ts", "b--s", "---s", or NULL */
  int dtype, grad_dtype;
  uint32_t add;
  const char *order;                              /* of q, k, v in memory */
  float spread;                                   /* size of q and k */
} problem;

typedef struct levels {
  const char *name;
  z3i_kernel forward, backward;
} level;

static int find_levels(level out[3])
{
  int n = 0;
#ifdef __x86_64__
  if (__builtin_cpu_supports("sse4.2")) out[n++] = (level){ "v2", z3i_attention_v2, z3i_attention_grad_v2 };
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    out[n++] = (level){ "v3", z3i_attention_v3, z3i_attention_grad_v3 };
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    out[n++] = (level){ "v4", z3i_attention_v4, z3i_attention_grad_v4 };
#else
  out[n++] = (level){ "base", z3i_attention_base, z3i_attention_grad_base };
#endif
  return n;
}

typedef struct data {
  block q, k, v, mask, out, lse, dout, grad[3], before[3];
  z3_attr attr;
  z3i_call forward, backward;
} data;

static data data_new(const problem *p)
{
  data d = { 0 };
  const char *order = p->order ? p->order : "0213";
  d.q = block_new(p->dtype, order, p->order ? 3 : 0, true, SHAPE(p->B, p->H, p->T, p->D));
  d.k = block_new(p->dtype, order, p->order ? 3 : 0, true, SHAPE(p->B, p->K, p->S, p->D));
  d.v = block_new(p->dtype, order, p->order ? 3 : 0, true, SHAPE(p->B, p->K, p->S, p->D));
  float spread = p->spread > 0 ? p->spread : 1;
  for (int64_t i = 0; i < d.q.count; i++) number_set(d.q.memory, p->dtype, i, spread * number_get(d.q.memory, p->dtype, i));
  for (int64_t i = 0; i < d.k.count; i++) number_set(d.k.memory, p->dtype, i, spread * number_get(d.k.memory, p->dtype, i));
  d.out = block_new(p->dtype, "0213", 0, true, SHAPE(p->B, p->H, p->T, p->D));
  d.lse = block_new(Z3T_F32, NULL, 0, true, SHAPE(p->B, p->H, p->T));
  d.dout = block_new(p->dtype, "0213", 0, true, SHAPE(p->B, p->H, p->T, p->D));
  if (p->mask != NULL) {
    d.mask = block_new(Z3T_U8, NULL, 0, false,
                       SHAPE(p->mask[0] == 'b' ? p->B : 1, p->mask[1] == 'h' ? p->H : 1, p->mask[2] == 't' ? p->T : 1, p->S));
    for (int64_t i = 0; i < d.mask.count; i++) ((uint8_t *)d.mask.memory)[i] = random_float() > -0.3f;
    if (p->mask[2] == 't') memset(d.mask.memory, 0, (size_t)p->S);   /* query 0 sees nothing */
  }
  const z3i_view *shape[3] = { &d.q.v, &d.k.v, &d.v.v };
  for (int i = 0; i < 3; i++) {
    d.grad[i] = block_new(p->grad_dtype, i == 0 ? "0213" : NULL, 0, true, 4, shape[i]->shape);
    d.before[i] = block_new(p->grad_dtype, i == 0 ? "0213" : NULL, 0, false, 4, shape[i]->shape);
    memcpy(d.before[i].memory, d.grad[i].memory, (size_t)(d.grad[i].count * z3i_dtype_bytes(p->grad_dtype)));
  }
  d.attr = (z3_attr){ .f = { 0.9 / sqrt((double)Z3I_MAX(p->D, 1)) }, .i = { p->causal } };
  d.forward = (z3i_call){ .op = Z3OP_attention, .dev = &dev, .in = { d.q.v, d.k.v, d.v.v, d.mask.v }, .out = { d.out.v },
                          .aux = { d.lse.v } };
  d.backward = d.forward;
  d.backward.gout[0] = d.dout.v;
  for (int i = 0; i < 3; i++) d.backward.gin[i] = d.grad[i].v;
  d.backward.gin_add = p->add;
  return d;
}
/* attr lies in d, which moves when returned: point at it where it came to rest. */
static void data_settle(data *d) { d->forward.attr = d->backward.attr = &d->attr; }
static void data_free(data *d)
{
  block *all[] = { &d->q, &d->k, &d->v, &d->mask, &d->out, &d->lse, &d->dout };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) block_free(all[i]);
  for (int i = 0; i < 3; i++) {
    block_free(&d->grad[i]);
    block_free(&d->before[i]);
  }
}

/* ---- the reference: one head at a time with its whole matrix ------------------------------------------ */
typedef struct expected {
  double *out, *lse, *grad[3];                    /* contiguous (B,H,T,D), (B,H,T), ... */
} expected;

static bool sees(const problem *p, const data *d, int64_t b, int64_t h, int64_t t, int64_t s)
{
  if (p->causal && s > t + p->S - p->T) return false;
  if (p->mask == NULL) return true;
  const z3i_view *m = &d->mask.v;
  return at4(m, m->shape[0] > 1 ? b : 0, m->shape[1] > 1 ? h : 0, m->shape[2] > 1 ? t : 0, s) != 0;
}

static void reference_query(const problem *p, const data *d, expected *e, int64_t b, int64_t h, int64_t t, double *w)
{
  int64_t g = h / (p->H / p->K), row = (b * p->H + h) * p->T + t;
  double scale = (double)(float)d->attr.f[0], max = -INFINITY, sum = 0, delta = 0;
  for (int64_t s = 0; s < p->S; s++) {
    double dot = 0;
    for (int64_t i = 0; i < p->D; i++) dot += (double)at4(&d->q.v, b, h, t, i) * (double)at4(&d->k.v, b, g, s, i);
    w[s] = sees(p, d, b, h, t, s) ? scale * dot : -INFINITY;
    max = fmax(max, w[s]);
  }
  for (int64_t s = 0; s < p->S; s++) sum += max == -INFINITY ? 0 : exp(w[s] - max);
  e->lse[row] = sum > 0 ? max + log(sum) : -INFINITY;
  for (int64_t s = 0; s < p->S; s++) w[s] = sum > 0 ? exp(w[s] - max) / sum : 0;
  for (int64_t s = 0; s < p->S; s++)
    for (int64_t i = 0; i < p->D; i++) e->out[row * p->D + i] += w[s] * (double)at4(&d->v.v, b, g, s, i);
  for (int64_t i = 0; i < p->D; i++) delta += e->out[row * p->D + i] * (double)at4(&d->dout.v, b, h, t, i);
  for (int64_t s = 0; s < p->S; s++) {
    int64_t key = ((b * p->K + g) * p->S + s) * p->D;
    double dp = 0;
    for (int64_t i = 0; i < p->D; i++) {
      double o = (double)at4(&d->dout.v, b, h, t, i);
      dp += o * (double)at4(&d->v.v, b, g, s, i);
      e->grad[2][key + i] += w[s] * o;
    }
    double ds = scale * w[s] * (dp - delta);
    for (int64_t i = 0; i < p->D; i++) {
      e->grad[0][row * p->D + i] += ds * (double)at4(&d->k.v, b, g, s, i);
      e->grad[1][key + i] += ds * (double)at4(&d->q.v, b, h, t, i);
    }
  }
}

static expected reference(const problem *p, const data *d)
{
  size_t queries = (size_t)(p->B * p->H * p->T), keys = (size_t)(p->B * p->K * p->S), D = (size_t)p->D;
  expected e = { calloc(queries * D + 1, 8), calloc(queries + 1, 8),
                 { calloc(queries * D + 1, 8), calloc(keys * D + 1, 8), calloc(keys * D + 1, 8) } };
  double *w = calloc((size_t)p->S + 1, 8);
  for (int64_t b = 0; b < p->B; b++)
    for (int64_t h = 0; h < p->H; h++)
      for (int64_t t = 0; t < p->T; t++) reference_query(p, d, &e, b, h, t, w);
  free(w);
  return e;
}
static void expected_free(expected *e)
{
  free(e->out); free(e->lse);
  for (int i = 0; i < 3; i++) free(e->grad[i]);
}

static void compare(const problem *p, const level *l, const char *name, const block *got, const block *before, bool add,
                    const double *want, double size)
{
  char what[160];
  snprintf(what, sizeof what, "%s %s B%d H%d K%d T%d S%d D%d causal%d mask %s %s", l->name, name, (int)p->B, (int)p->H, (int)p->K,
           (int)p->T, (int)p->S, (int)p->D, p->causal, p->mask ? p->mask : "none", z3_dtype_name(p->dtype));
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
  static const int64_t sizes[][3] = { { 1, 1, 1 }, { 3, 3, 17 }, { 17, 17, 3 }, { 65, 65, 65 }, { 130, 130, 64 }, { 66, 200, 80 },
                                      { 130, 70, 32 }, { 5, 130, 256 }, { 64, 128, 16 } };
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (int t = 0; t < 3; t++)
      for (int causal = 0; causal < 2; causal++)
        run((problem){ .B = 1 + (s == 3), .H = 2, .K = 2, .T = sizes[s][0], .S = sizes[s][1], .D = sizes[s][2], .causal = causal,
                       .dtype = types[t], .grad_dtype = s % 2 ? Z3T_F32 : types[t] });
}

/* Few queries take another way (attn_decode.c): more keys than one of its chunks holds. */
static void test_attention_few_queries(void **state)
{
  (void)state;
  for (int64_t T = 1; T <= 5; T++)
    for (int t = 0; t < 3; t++)
      run((problem){ .B = 2, .H = 6, .K = 2, .T = T, .S = 1100, .D = T == 3 ? 65 : 64, .causal = T & 1, .dtype = types[t],
                     .grad_dtype = Z3T_F32, .mask = T == 2 ? "b--s" : T == 4 ? "bhts" : NULL });
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

/* More queries than keys and causal: the first queries see nothing. */
static void test_attention_queries_that_see_nothing(void **state)
{
  (void)state;
  for (int t = 0; t < 3; t++) {
    run((problem){ .B = 1, .H = 2, .K = 2, .T = 150, .S = 20, .D = 16, .causal = true, .dtype = types[t], .grad_dtype = types[t] });
    run((problem){ .B = 1, .H = 2, .K = 2, .T = 4, .S = 2, .D = 16, .causal = true, .dtype = types[t], .grad_dtype = types[t] });
  }
}

static void test_attention_large_scores(void **state)
{
  (void)state;
  for (int causal = 0; causal < 2; causal++)
    run((problem){ .B = 1, .H = 2, .K = 1, .T = 70, .S = 70, .D = 32, .causal = causal, .dtype = Z3T_F32, .grad_dtype = Z3T_F32,
                   .spread = 12 });
  /* Scores of 1e8: weights are 0 or 1, nothing overflows. */
  level l[3];
  int n = find_levels(l);
  problem p = { .B = 1, .H = 1, .K = 1, .T = 80, .S = 80, .D = 16, .causal = true, .dtype = Z3T_F32, .grad_dtype = Z3T_F32, .spread = 1e4f };
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
  static const int64_t sizes[][5] = { { 0, 2, 3, 3, 8 }, { 2, 0, 3, 3, 8 }, { 1, 2, 0, 3, 8 }, { 1, 2, 3, 0, 8 }, { 1, 2, 3, 3, 0 } };
  for (size_t s = 0; s < 5; s++)
    for (int causal = 0; causal < 2; causal++)
      run((problem){ .B = sizes[s][0], .H = sizes[s][1], .K = Z3I_MAX(sizes[s][1], 1), .T = sizes[s][2], .S = sizes[s][3],
                     .D = sizes[s][4], .causal = causal, .dtype = Z3T_F32, .grad_dtype = Z3T_F32, .add = s & 1 ? 7 : 0 });
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
  problem p = { .B = 2, .H = 2, .K = 1, .T = 80, .S = 80, .D = 32, .causal = true, .dtype = Z3T_F32, .grad_dtype = Z3T_F32 };
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
  problem p = { .B = 1, .H = 1, .K = 1, .T = 2048, .S = 2048, .D = 16, .causal = true, .dtype = Z3T_F32, .grad_dtype = Z3T_F32 };
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
    cmocka_unit_test_setup_teardown(test_attention_queries_that_see_nothing, setup, teardown),
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
