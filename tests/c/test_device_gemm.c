/* test_device_gemm.c -- products against plain sums in double: dtypes, layouts, sizes, adding, bias, batches, memory.
 * */
#include <pthread.h>

#include "device/cpu/gemm.h"
#include "device/cpu/gemm_amx.h"
#include "device/cpu/gemm_onednn.h"
#include "products.h"

typedef struct problem {
  int64_t m, n, k, batch, pad;
  bool a_t, b_t, bias, add, a_repeat, b_repeat;
  int in, out;
} problem;

typedef struct data {
  void *a, *b, *bias, *c, *before;
  int64_t a_count, b_count, c_count;
  z3i_gemm_args g;
} data;

static data data_new(const problem *p)
{
  data d = { 0 };
  z3i_gemm_args *g = &d.g;
  *g = (z3i_gemm_args){ .dev = &dev, .m = p->m, .n = p->n, .k = p->k, .batch = p->batch, .a_t = p->a_t, .b_t = p->b_t,
                        .add = p->add, .in_dtype = p->in, .out_dtype = p->out };
  g->lda = (p->a_t ? p->m : p->k) + p->pad;
  g->ldb = (p->b_t ? p->k : p->n) + p->pad;
  g->ldc = p->n + p->pad;
  int64_t a_each = g->lda * (p->a_t ? p->k : p->m), b_each = g->ldb * (p->b_t ? p->n : p->k), c_each = g->ldc * p->m;
  g->a_batch_stride = p->a_repeat ? 0 : a_each;
  g->b_batch_stride = p->b_repeat ? 0 : b_each;
  g->c_batch_stride = c_each;
  d.a_count = a_each * (p->a_repeat ? 1 : p->batch);
  d.b_count = b_each * (p->b_repeat ? 1 : p->batch);
  d.c_count = c_each * p->batch;
  g->a = d.a = numbers(p->in, d.a_count, true);
  g->b = d.b = numbers(p->in, d.b_count, true);
  g->c = d.c = numbers(p->out, d.c_count, true);
  if (p->bias) g->bias = d.bias = numbers(p->in, p->n, true);
  size_t bytes = (size_t)Z3I_MAX(d.c_count * z3i_dtype_bytes(p->out), (int64_t)1);
  d.before = malloc(bytes);
  memcpy(d.before, d.c, bytes);
  return d;
}
static void data_free(data *d)
{
  free(d->a); free(d->b); free(d->bias); free(d->c); free(d->before);
}

static void compare(const problem *p, const data *d, int64_t step)
{
  const z3i_gemm_args *g = &d->g;
  for (int64_t r = 0; r < p->batch * p->m * p->n; r += step) {
    int64_t b = r / (p->m * p->n), i = r / p->n % p->m, j = r % p->n, at = b * g->c_batch_stride + i * g->ldc + j;
    double want = p->bias ? (double)number_get(d->bias, p->in, j) : 0, size = fabs(want);
    for (int64_t k = 0; k < p->k; k++) {
      double x = (double)number_get(d->a, p->in, b * g->a_batch_stride + (p->a_t ? k * g->lda + i : i * g->lda + k));
      double y = (double)number_get(d->b, p->in, b * g->b_batch_stride + (p->b_t ? j * g->ldb + k : k * g->ldb + j));
      want += x * y;
      size += fabs(x * y);
    }
    if (p->add) want += (double)number_get(d->before, p->out, at);
    char what[200];
    snprintf(what, sizeof what, "m%" PRId64 " n%" PRId64 " k%" PRId64 " batch%" PRId64 " pad%" PRId64
             " t%d%d bias%d add%d %s->%s", p->m, p->n, p->k, p->batch, p->pad, p->a_t, p->b_t, p->bias, p->add,
             z3_dtype_name(p->in), z3_dtype_name(p->out));
    close_to((double)number_get(d->c, p->out, at), want, 3e-7 * (size + 1) + 1.01 * rounding(p->out) * fabs(want),
             what, r);
  }
  /* What lies between the rows of C must not change. */
  size_t each = (size_t)z3i_dtype_bytes(p->out);
  for (int64_t l = 0; p->pad > 0 && l < p->batch * p->m; l++) {
    size_t at = (size_t)(l * g->ldc + p->n) * each;
    assert_memory_equal((char *)d->c + at, (char *)d->before + at, (size_t)p->pad * each);
  }
}

static void run(problem p)
{
  data d = data_new(&p);
  CHECK_OK(z3i_gemm(&d.g));
  compare(&p, &d, 1);
  data_free(&d);
}

static const struct { int in, out; } types[] = { { Z3T_F32, Z3T_F32 }, { Z3T_BF16, Z3T_BF16 }, { Z3T_BF16, Z3T_F32 },
                                                 { Z3T_F16, Z3T_F16 }, { Z3T_F16, Z3T_F32 } };
enum { TYPES = 5 };

static void test_gemm_sizes_and_layouts(void **state)
{
  (void)state;
  static const int64_t sizes[][3] = { { 1, 1, 1 },   { 1, 65, 130 },  { 65, 1, 17 },   { 17, 3, 1 },
                                      { 3, 17, 65 }, { 130, 65, 17 }, { 65, 130, 130 } };
  for (int t = 0; t < TYPES; t++)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
      for (int layout = 0; layout < 4; layout++)
        for (int64_t pad = 0; pad < 6; pad += 5)
          run((problem){ .m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2], .batch = 1, .pad = pad,
                         .a_t = layout & 1, .b_t = layout >> 1, .bias = layout == 2, .add = layout == 1,
                         .in = types[t].in, .out = types[t].out });
}

static void test_gemm_batches(void **state)
{
  (void)state;
  for (int t = 0; t < TYPES; t++)
    for (int form = 0; form < 8; form++)
      run((problem){ .m = 17, .n = 33, .k = 20, .batch = 3, .pad = form & 1 ? 7 : 0, .a_t = form & 2, .b_t = form & 4,
                     .a_repeat = form == 3, .b_repeat = form == 5, .add = form & 1, .bias = form == 2,
                     .in = types[t].in, .out = types[t].out });
}

/* Heads side by side: matrices that interleave, as attention by hand makes them. */
static void test_gemm_interleaved_batch(void **state)
{
  (void)state;
  enum { T = 19, H = 3, D = 16 };
  for (int t = 0; t < 3; t++) {
    int in = types[t].in;
    void *q = numbers(in, T * H * D, true), *k = numbers(in, T * H * D, true);
    float *c = numbers(Z3T_F32, H * T * T, false);
    z3i_gemm_args g = { .dev = &dev, .m = T, .n = T, .k = D, .batch = H, .a = q, .b = k, .c = c, .lda = H * D,
                        .ldb = H * D, .ldc = T, .a_batch_stride = D, .b_batch_stride = D, .c_batch_stride = T * T,
                        .in_dtype = in, .b_t = true };
    CHECK_OK(z3i_gemm(&g));
    for (int r = 0; r < H * T * T; r++) {
      int h = r / (T * T), i = r / T % T, j = r % T;
      double want = 0;
      for (int d = 0; d < D; d++)
        want += (double)number_get(q, in, (i * H + h) * D + d) * (double)number_get(k, in, (j * H + h) * D + d);
      close_to((double)c[r], want, 1e-5, "interleaved", r);
    }
    free(q); free(k); free(c);
  }
}

static void test_gemm_zero_sizes(void **state)
{
  (void)state;
  for (int t = 0; t < TYPES; t++)
    for (int form = 0; form < 4; form++) {
      problem p = { .m = 5, .n = 7, .k = 0, .batch = 2, .pad = 1, .bias = form & 1, .add = form & 2, .in = types[t].in,
                    .out = types[t].out };
      run(p);
      p.k = 3;
      p.m = 0;
      run(p);
      p.m = 5;
      p.n = 0;
      run(p);
      p.n = 7;
      p.batch = 0;
      run(p);
    }
}

/* Adding must give the bits of the product into f32, added: gradients accumulate without a trace of how. */
static void test_gemm_add_equals_product_added(void **state)
{
  (void)state;
  static const int64_t sizes[][3] = { { 65, 130, 300 }, { 257, 96, 2000 }, { 2048, 64, 130 } };
  for (int t = 0; t < TYPES; t++)
    for (int s = 0; s < 3; s++) {
      problem p = { .m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2], .batch = 1, .a_t = true, .add = true,
                    .in = types[t].in, .out = types[t].out };
      data d = data_new(&p);
      float *product = numbers(Z3T_F32, d.c_count, false);
      z3i_gemm_args plain = d.g;
      plain.add = false;
      plain.out_dtype = Z3T_F32;
      plain.c = product;
      CHECK_OK(z3i_gemm(&plain));
      CHECK_OK(z3i_gemm(&d.g));
      void *want = numbers(p.out, d.c_count, false);
      for (int64_t i = 0; i < d.c_count; i++) number_set(want, p.out, i, number_get(d.before, p.out, i) + product[i]);
      assert_memory_equal(d.c, want, (size_t)(d.c_count * z3i_dtype_bytes(p.out)));
      free(want);
      free(product);
      data_free(&d);
    }
}

/* Weights' shapes, where B is brought into the library's layout and widened types go in several blocks. */
static void test_gemm_large(void **state)
{
  (void)state;
  for (int t = 0; t < TYPES; t++)
    for (int form = 0; form < 3; form++) {
      problem p = { .m = form == 1 ? 300 : 2100, .n = form == 1 ? 2050 : 515, .k = form == 2 ? 3000 : 257, .batch = 1,
                    .a_t = form == 0, .b_t = form == 2, .bias = form == 1, .in = types[t].in, .out = types[t].out };
      data d = data_new(&p);
      CHECK_OK(z3i_gemm(&d.g));
      compare(&p, &d, 3571);
      data_free(&d);
    }
}

static void test_gemm_repeats_bitwise(void **state)
{
  (void)state;
  int threads = omp_get_max_threads();
  for (int n = 1; n <= 2; n++) {
    omp_set_num_threads(n);
    for (int t = 0; t < TYPES; t++) {
      problem p = { .m = 130, .n = 515, .k = 700, .batch = 1, .b_t = t & 1, .in = types[t].in, .out = types[t].out };
      data d = data_new(&p);
      size_t bytes = (size_t)(d.c_count * z3i_dtype_bytes(p.out));
      void *first = malloc(bytes);
      for (int round = 0; round < 5; round++) {
        memset(d.c, round, bytes);
        CHECK_OK(z3i_gemm(&d.g));
        if (round == 0) memcpy(first, d.c, bytes);
        assert_memory_equal(d.c, first, bytes);
        if (round == 2) z3i_mm_cache_clear();
      }
      free(first);
      data_free(&d);
    }
  }
  omp_set_num_threads(threads);
}

typedef struct worker {
  problem p;
  data d;
  void *want;
  int failures;
} worker;

static void *work(void *arg)
{
  worker *w = arg;
  size_t bytes = (size_t)(w->d.c_count * z3i_dtype_bytes(w->p.out));
  omp_set_num_threads(1);
  for (int i = 0; i < 60; i++) {
    memset(w->d.c, i, bytes);
    if (z3i_gemm(&w->d.g) != Z3E_OK || memcmp(w->d.c, w->want, bytes) != 0) w->failures++;
    if (i % 20 == 19) z3i_mm_cache_clear();
  }
  return NULL;
}

static void test_gemm_many_threads_at_once(void **state)
{
  (void)state;
  enum { WORKERS = 4 };
  worker w[WORKERS];
  pthread_t id[WORKERS];
  int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  for (int i = 0; i < WORKERS; i++) {
    w[i] = (worker){ .p = { .m = 70, .n = 60, .k = 50, .batch = 1, .a_t = i & 1, .in = i < 2 ? Z3T_BF16 : Z3T_F32,
                            .out = Z3T_F32 } };
    w[i].d = data_new(&w[i].p);
    w[i].want = numbers(w[i].p.out, w[i].d.c_count, false);
    CHECK_OK(z3i_gemm(&w[i].d.g));
    memcpy(w[i].want, w[i].d.c, (size_t)(w[i].d.c_count * z3i_dtype_bytes(w[i].p.out)));
  }
  for (int i = 0; i < WORKERS; i++) assert_int_equal(pthread_create(&id[i], NULL, work, &w[i]), 0);
  for (int i = 0; i < WORKERS; i++) pthread_join(id[i], NULL);
  omp_set_num_threads(threads);
  for (int i = 0; i < WORKERS; i++) {
    assert_int_equal(w[i].failures, 0);
    free(w[i].want);
    data_free(&w[i].d);
  }
}

static void test_gemm_cache_is_bounded(void **state)
{
  (void)state;
  for (int64_t m = 1; m <= 300; m++)
    run((problem){ .m = m, .n = 2, .k = 2, .batch = 1, .in = Z3T_F32, .out = Z3T_F32 });
  assert_int_equal(z3i_mm_cache_count(), 256);
  z3i_mm_cache_clear();
  assert_int_equal(z3i_mm_cache_count(), 0);
}

static int gemm_kernel(const z3i_call *c)
{
  return z3i_gemm(c->in[0].data);
}

static void test_gemm_out_of_memory(void **state)
{
  (void)state;
  for (int t = 0; t < TYPES; t++)
    for (int add = 0; add < 2; add++) {
      problem p = { .m = 1600, .n = 70, .k = 80, .batch = 1, .add = add, .bias = true, .in = types[t].in,
                    .out = types[t].out };
      data d = data_new(&p);
      z3i_call c = { .in = { { .data = &d.g } } };
      int failures = out_of_memory_sweep(gemm_kernel, &c);
      assert_true(failures > 0 || !add);          /* adding needs a tile; the library may need nothing */
      compare(&p, &d, 101);
      data_free(&d);
    }
}

static void test_gemm_bad_arguments(void **state)
{
  (void)state;
  float x[16] = { 0 };
  z3i_gemm_args good = { .dev = &dev, .m = 2, .n = 2, .k = 2, .batch = 1, .a = x, .b = x + 4, .c = x + 8, .lda = 2,
                         .ldb = 2, .ldc = 2 };
  CHECK_OK(z3i_gemm(&good));
  z3i_gemm_args bad = good;
  bad.lda = 1;
  assert_int_equal(z3i_gemm(&bad), Z3E_ARG);
  assert_string_equal(z3_last_error(), "gemm: lda is 1, wants >= 2");
  bad = good;
  bad.k = -1;
  assert_int_equal(z3i_gemm(&bad), Z3E_ARG);
  bad = good;
  bad.out_dtype = Z3T_BF16;
  assert_int_equal(z3i_gemm(&bad), Z3E_ARG);
  bad = good;
  bad.in_dtype = Z3T_I64;
  assert_int_equal(z3i_gemm(&bad), Z3E_ARG);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_gemm_sizes_and_layouts, setup, teardown),
    cmocka_unit_test_setup_teardown(test_gemm_batches, setup, teardown),
    cmocka_unit_test_setup_teardown(test_gemm_interleaved_batch, setup, teardown),
    cmocka_unit_test_setup_teardown(test_gemm_zero_sizes, setup, teardown),
    cmocka_unit_test_setup_teardown(test_gemm_add_equals_product_added, setup, teardown),
    cmocka_unit_test_setup_teardown(test_gemm_large, setup, teardown),
    cmocka_unit_test_setup_teardown(test_gemm_repeats_bitwise, setup, teardown),
    cmocka_unit_test_setup_teardown(test_gemm_many_threads_at_once, setup, teardown),
    cmocka_unit_test_setup_teardown(test_gemm_cache_is_bounded, setup, teardown),
    cmocka_unit_test_setup_teardown(test_gemm_out_of_memory, setup, teardown),
    cmocka_unit_test_setup_teardown(test_gemm_bad_arguments, setup, teardown),
  };
  /* Once through oneDNN alone, once with all that AMX can do there. */
  z3i_amx_mode(Z3I_AMX_NEVER);
  int failed = cmocka_run_group_tests_name("device_gemm", tests, NULL, NULL);
  z3i_amx_mode(Z3I_AMX_ALWAYS);
  return failed + cmocka_run_group_tests_name("device_gemm_own", tests, NULL, NULL);
}
