/* test_device_attention_amx.c -- bf16 attention on AMX tiles against plain double loops: sizes with tails, grouped
 * heads, masks, strides, adding, queries that see nothing, bits on any threads, memory, what is left to isa/.
 * Skipped where there is no AMX. */
#include "attention_case.h"
#include "device/cpu/attn_amx.h"
#include "device/cpu/cpu_kernels.h"

static void need_amx(void)
{
  if (!z3i_amx_usable()) skip();
}

/* Rounding of weights and slopes makes errors of the size of the whole, not of the element: their mean square must be
 * small beside that of what is wanted, and none may stand out. */
static void compare(const problem *p, const char *name, const block *got, const block *before, const double *want)
{
  char what[160];
  snprintf(what, sizeof what, "%s B%d H%d K%d T%d S%d D%d causal%d mask %s grad %s add%d", name, (int)p->B, (int)p->H,
           (int)p->K, (int)p->T, (int)p->S, (int)p->D, p->causal, p->mask ? p->mask : "none",
           z3_dtype_name(p->grad_dtype), (int)p->add);
  const int64_t *n = got->v.shape;
  int64_t count = n[0] * n[1] * n[2] * n[3];
  double squares = 0, wanted = 0, largest = 0, ulp = got->v.dtype == Z3T_F32 ? 1e-6 : 1.01 * rounding(got->v.dtype);
  for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(want[i]));
  for (int64_t i = 0; i < count; i++) {
    int64_t d = i % n[3], t = i / n[3] % n[2], h = i / n[3] / n[2] % n[1], b = i / n[3] / n[2] / n[1];
    double w = want[i] + (before ? (double)at4(&before->v, b, h, t, d) : 0), x = (double)at4(&got->v, b, h, t, d);
    close_to(x, w, 0.02 * largest + ulp * fabs(w) + 1e-6, what, i);
    squares += pow(fmax(fabs(x - w) - ulp * fabs(w) - 1e-7, 0), 2);
    wanted += want[i] * want[i];
  }
  if (squares > wanted * 0.008 * 0.008) fail_msg("%s: error %g of the whole", what, sqrt(squares / wanted));
}

/* blind: queries from the first on that a mask "--ts" lets see nothing. */
static void run_blind(problem p, int64_t blind)
{
  need_amx();
  p.dtype = Z3T_BF16;
  random_state = (uint64_t)(p.T * 1000 + p.S);
  data d = data_new(&p);
  data_settle(&d);
  if (blind > 0) memset(d.mask.memory, 0, (size_t)(blind * p.S));
  assert_true(z3i_attn_amx_takes(&d.forward, false));
  assert_true(z3i_attn_amx_takes(&d.backward, true));
  expected e = reference(&p, &d);
  CHECK_OK(z3i_cpu_attention_fwd(&d.forward));
  compare(&p, "out", &d.out, NULL, e.out);
  for (int64_t i = 0; i < p.B * p.H * p.T; i++)
    close_to((double)((float *)d.lse.memory)[i], e.lse[i], 3e-6 * (1 + (double)(p.spread * p.spread)), "lse", i);
  CHECK_OK(z3i_cpu_attention_bwd(&d.backward));
  static const char *const names[] = { "dq", "dk", "dv" };
  for (int i = 0; i < 3; i++) compare(&p, names[i], &d.grad[i], p.add >> i & 1 ? &d.before[i] : NULL, e.grad[i]);
  expected_free(&e);
  data_free(&d);
}

static void run(problem p) { run_blind(p, 0); }

static void test_attention_amx_sizes(void **state)
{
  (void)state;
  static const int64_t sizes[][3] = { { 5, 1, 32 },     { 31, 33, 96 },  { 33, 65, 64 },  { 64, 64, 64 },
                                      { 128, 128, 32 }, { 130, 70, 64 }, { 70, 300, 96 }, { 257, 255, 64 },
                                      { 161, 161, 128 }, { 96, 130, 256 } };
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (int causal = 0; causal < 2; causal++)
      run((problem){ .B = 1 + (s == 3), .H = 2, .K = 2, .T = sizes[s][0], .S = sizes[s][1], .D = sizes[s][2],
                     .causal = causal, .grad_dtype = s % 2 ? Z3T_F32 : Z3T_BF16 });
}

static void test_attention_amx_grouped_heads(void **state)
{
  (void)state;
  for (int64_t K = 1; K <= 4; K *= 2)
    run((problem){ .B = 2, .H = 4, .K = K, .T = 150, .S = 170, .D = 64, .causal = true, .grad_dtype = Z3T_F32 });
}

static void test_attention_amx_masks(void **state)
{
  (void)state;
  static const char *const masks[] = { "bhts", "--ts", "b--s", "---s", "-h-s" };
  for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
    for (int causal = 0; causal < 2; causal++)
      run((problem){ .B = 2, .H = 4, .K = 2, .T = 140, .S = 150, .D = 32, .causal = causal, .mask = masks[m],
                     .grad_dtype = m & 1 ? Z3T_F32 : Z3T_BF16, .add = 5 });
}

static void test_attention_amx_strides_and_adding(void **state)
{
  (void)state;
  static const char *const orders[] = { "0123", "0213", "2013", "1203" };
  for (size_t o = 0; o < 4; o++)
    for (int t = 0; t < 2; t++)
      run((problem){ .B = 2, .H = 3, .K = 1, .T = 67, .S = 67, .D = 64, .causal = true, .order = orders[o],
                     .grad_dtype = t ? Z3T_F32 : Z3T_BF16, .add = 7 });
}

/* Single queries, whole panels and whole blocks. */
static void test_attention_amx_queries_that_see_nothing(void **state)
{
  (void)state;
  for (int64_t blind = 1; blind <= 210; blind += 95)
    run_blind((problem){ .B = 1, .H = 2, .K = 2, .T = 300, .S = 140, .D = 32, .causal = blind & 2, .mask = "--ts",
                         .grad_dtype = Z3T_F32, .add = 1 }, blind);
  run_blind((problem){ .B = 1, .H = 2, .K = 1, .T = 6, .S = 2, .D = 32, .mask = "--ts", .grad_dtype = Z3T_BF16 }, 6);
}

/* Causal: query t sees keys 0 to t, as far as there are any. */
static void test_attention_amx_more_queries_than_keys(void **state)
{
  (void)state;
  run((problem){ .B = 1, .H = 2, .K = 2, .T = 300, .S = 20, .D = 32, .causal = true, .grad_dtype = Z3T_F32, .add = 1 });
  run((problem){ .B = 1, .H = 2, .K = 1, .T = 6, .S = 2, .D = 32, .causal = true, .grad_dtype = Z3T_BF16 });
}

/* Large scores; more keys than are packed at once in backward, more heads than are in forward. */
static void test_attention_amx_extremes(void **state)
{
  (void)state;
  run((problem){ .B = 1, .H = 2, .K = 1, .T = 70, .S = 170, .D = 32, .grad_dtype = Z3T_F32, .spread = 6 });
  run((problem){ .B = 1, .H = 1, .K = 1, .T = 5, .S = 8300, .D = 256, .grad_dtype = Z3T_F32 });
  run((problem){ .B = 1, .H = 12, .K = 12, .T = 17, .S = 600, .D = 256, .grad_dtype = Z3T_F32 });
}

static void test_attention_amx_shows_nan(void **state)
{
  (void)state;
  need_amx();
  problem p = { .B = 1, .H = 1, .K = 1, .T = 40, .S = 40, .D = 32, .dtype = Z3T_BF16, .grad_dtype = Z3T_F32 };
  data d = data_new(&p);
  data_settle(&d);
  number_set(d.q.memory, Z3T_BF16, 3, NAN);
  CHECK_OK(z3i_attn_amx_fwd(&d.forward));
  for (int64_t r = 0; r < d.out.count; r++)
    assert_true(isnan(number_get(d.out.memory, Z3T_BF16, r)) == (r < 32));
  CHECK_OK(z3i_attn_amx_bwd(&d.backward));
  for (int64_t r = 0; r < d.grad[1].count; r++) assert_true(isnan(number_get(d.grad[1].memory, Z3T_F32, r)));
  data_free(&d);
}

/* More threads than key heads take another way through backward; neither they nor a second run may change a bit. */
static void test_attention_amx_same_bits_on_any_threads(void **state)
{
  (void)state;
  need_amx();
  int threads = omp_get_max_threads();
  static const problem problems[] = {
    { .B = 1, .H = 4, .K = 2, .T = 200, .S = 310, .D = 64, .causal = true, .dtype = Z3T_BF16, .grad_dtype = Z3T_F32 },
    { .B = 1, .H = 2, .K = 1, .T = 600, .S = 600, .D = 32, .mask = "--ts", .dtype = Z3T_BF16, .grad_dtype = Z3T_BF16,
      .add = 7 },
    { .B = 3, .H = 1, .K = 1, .T = 300, .S = 200, .D = 128, .causal = true, .dtype = Z3T_BF16,
      .grad_dtype = Z3T_F32 },
  };
  static const int counts[] = { 1, 1, 2, 3, 5 };
  for (int q = 0; q < 3; q++) {
    data first = { 0 };
    for (int t = 0; t < 5; t++) {
      omp_set_num_threads(counts[t]);
      random_state = 7;
      data d = data_new(&problems[q]);
      data_settle(&d);
      CHECK_OK(z3i_attn_amx_fwd(&d.forward));
      CHECK_OK(z3i_attn_amx_bwd(&d.backward));
      if (t == 0) {
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
static void test_attention_amx_gradients_one_by_one(void **state)
{
  (void)state;
  need_amx();
  problem p = { .B = 2, .H = 2, .K = 1, .T = 180, .S = 180, .D = 32, .causal = true, .dtype = Z3T_BF16,
                .grad_dtype = Z3T_F32 };
  data all = data_new(&p);
  data_settle(&all);
  CHECK_OK(z3i_attn_amx_fwd(&all.forward));
  CHECK_OK(z3i_attn_amx_bwd(&all.backward));
  for (int g = 0; g < 3; g++) {
    block alone = block_new(Z3T_F32, g == 0 ? "0213" : NULL, 0, true, 4, all.grad[g].v.shape);
    z3i_call c = all.backward;
    for (int j = 0; j < 3; j++) c.gin[j] = without_data(c.gin[j]);
    c.gin[g] = alone.v;
    CHECK_OK(z3i_attn_amx_bwd(&c));
    assert_memory_equal(alone.memory, all.grad[g].memory, (size_t)alone.count * 4);
    block_free(&alone);
  }
  data_free(&all);
}

static bool taken(problem p, bool backward)
{
  data d = data_new(&p);
  data_settle(&d);
  bool yes = z3i_attn_amx_takes(backward ? &d.backward : &d.forward, backward);
  data_free(&d);
  return yes;
}

static void test_attention_amx_leaves_the_rest(void **state)
{
  (void)state;
  need_amx();
  const problem good = { .B = 1, .H = 2, .K = 2, .T = 40, .S = 40, .D = 32, .dtype = Z3T_BF16, .grad_dtype = Z3T_F32 };
  assert_true(taken(good, false) && taken(good, true));
  problem bad[6] = { good, good, good, good, good, good };
  bad[0].dtype = Z3T_F16;
  bad[1].D = 40;
  bad[2].D = 288;
  bad[3].T = 4;
  bad[4].order = "0132";
  bad[5].S = 0;
  for (int i = 0; i < 6; i++) assert_false(taken(bad[i], false) || taken(bad[i], true));
  problem half = good;
  half.grad_dtype = Z3T_F16;
  assert_true(taken(half, false) && !taken(half, true));
  int before = z3i_amx_mode(Z3I_AMX_NEVER);
  assert_false(taken(good, false) || taken(good, true));
  z3i_amx_mode(before);
}

static void test_attention_amx_out_of_memory(void **state)
{
  (void)state;
  need_amx();
  problem p = { .B = 1, .H = 2, .K = 1, .T = 70, .S = 700, .D = 64, .dtype = Z3T_BF16, .grad_dtype = Z3T_F32 };
  data d = data_new(&p);
  data_settle(&d);
  assert_true(out_of_memory_sweep(z3i_attn_amx_fwd, &d.forward) > 0);
  assert_true(out_of_memory_sweep(z3i_attn_amx_bwd, &d.backward) > 0);
  data_free(&d);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_attention_amx_sizes, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_amx_grouped_heads, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_amx_masks, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_amx_strides_and_adding, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_amx_queries_that_see_nothing, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_amx_more_queries_than_keys, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_amx_extremes, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_amx_shows_nan, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_amx_same_bits_on_any_threads, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_amx_gradients_one_by_one, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_amx_leaves_the_rest, setup, teardown),
    cmocka_unit_test_setup_teardown(test_attention_amx_out_of_memory, setup, teardown),
  };
  return cmocka_run_group_tests_name("device_attention_amx", tests, NULL, NULL);
}
