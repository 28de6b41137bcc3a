/* test_device_update.c -- optimizer updates of every table against the formulas in double (parity/README.md, part C).
 */
#include "model_kernels.h"
#include "zero3/optim.h"

/* Everything of one parameter, in double. */
typedef struct state {
  double *p, *m, *v;
} state;

static void reference(const z3i_update *u, int64_t step, const double *grad, state s)
{
  double b1 = u->beta1, b2 = u->beta2, lr = u->lr, wd = u->weight_decay;
  for (int64_t i = 0; i < u->n; i++) {
    double g = grad[i] * (double)u->grad_scale, p = s.p[i], look;
    switch (u->kind) {
    case Z3_ADAMW:
    case Z3_ADAM:
      if (u->kind == Z3_ADAM) g += wd * p;
      else p *= 1 - lr * wd;
      s.m[i] = b1 * s.m[i] + (1 - b1) * g;
      s.v[i] = b2 * s.v[i] + (1 - b2) * g * g;
      p -= lr * (s.m[i] / (1 - pow(b1, (double)step))) / (sqrt(s.v[i] / (1 - pow(b2, (double)step))) + u->eps);
      break;
    case Z3_LION:
      p *= 1 - lr * wd;
      look = b1 * s.m[i] + (1 - b1) * g;
      p -= lr * (look > 0 ? 1 : look < 0 ? -1 : 0);
      s.m[i] = b2 * s.m[i] + (1 - b2) * g;
      break;
    default:
      g += wd * p;
      if (s.m != NULL) {
        s.m[i] = step == 1 ? g : u->momentum * s.m[i] + g;
        g = u->nesterov ? g + u->momentum * s.m[i] : s.m[i];
      }
      p -= lr * g;
    }
    s.p[i] = p;
  }
}

typedef struct update_case {
  int kind;
  bool momentum_buffer;
  double lr, beta1, beta2, eps, weight_decay, momentum;
  int nesterov;
} update_case;
static const update_case cases[] = {
  { Z3_ADAMW, true, 1e-3, 0.9, 0.999, 1e-8, 0.1, 0, 0 },   { Z3_ADAMW, true, 0.05, 0.9, 0.95, 1e-3, 0, 0, 0 },
  { Z3_ADAM, true, 1e-2, 0.9, 0.999, 1e-8, 0.01, 0, 0 },   { Z3_LION, true, 1e-2, 0.9, 0.99, 0, 0.1, 0, 0 },
  { Z3_SGD, false, 0.1, 0, 0, 0, 0.01, 0, 0 },             { Z3_SGD, true, 0.1, 0, 0, 0, 0.01, 0.9, 0 },
  { Z3_SGD, true, 0.1, 0, 0, 0, 0.01, 0.9, 1 },
};

static z3i_update update_of(const update_case *k, int64_t step, int64_t n, const buf *p, const buf *m, const buf *v,
                            const buf *g, const buf *w)
{
  bool adam = k->kind == Z3_ADAMW || k->kind == Z3_ADAM;
  return (z3i_update){ .kind = k->kind, .n = n, .master = p->data, .m = k->momentum_buffer ? m->data : NULL,
                       .v = adam ? v->data : NULL, .grad = g->data, .weight16 = w == NULL ? NULL : w->data,
                       .weight16_dtype = w == NULL ? 0 : w->dtype, .grad_scale = 0.25f, .lr = k->lr, .beta1 = k->beta1,
                       .beta2 = k->beta2, .eps = k->eps, .weight_decay = k->weight_decay, .momentum = k->momentum,
                       .bias1 = 1 - pow(k->beta1, (double)step), .bias2 = 1 - pow(k->beta2, (double)step),
                       .nesterov = k->nesterov, .first = step == 1 };
}

static void check_update(const z3i_isa_table *t, const update_case *k, int64_t n, int w_dtype)
{
  bool adam = k->kind == Z3_ADAMW || k->kind == Z3_ADAM;
  buf p = buf_rnd(Z3T_F32, n, 1, 1, 0), m = buf_new(Z3T_F32, n), v = buf_new(Z3T_F32, n), w = buf_new(w_dtype, n);
  for (int64_t i = 0; i < n; i++) {
    set(&m, i, adam || k->kind == Z3_LION ? 0 : NAN);       /* SGD's buffer holds nothing before its first step */
    set(&v, i, 0);
  }
  state s = { doubles(&p), k->momentum_buffer ? doubles(&m) : NULL, doubles(&v) };
  for (int64_t step = 1; step <= 6; step++) {
    buf g = buf_rnd(Z3T_F32, n, (uint64_t)(10 + step), 4, 0);
    if (n > 2) set(&g, 2, 0);
    z3i_update u = update_of(k, step, n, &p, &m, &v, &g, w_dtype == Z3T_F32 ? NULL : &w);
    assert_int_equal(t->update(&u), Z3E_OK);
    reference(&u, step, doubles(&g), s);
    for (int64_t i = 0; i < n; i++) {
      if (!near(get(&p, i), s.p[i], 3e-6 * k->lr + 5e-7 * (double)step, 1e-6))
        fail_msg("kind %d step %" PRId64 ": p[%" PRId64 "] is %.9g, wants %.9g (%s)", k->kind, step, i, get(&p, i),
                 s.p[i], t->name);
      if (s.m != NULL) assert_near(get(&m, i), s.m[i], 1e-6, 2e-6);
      if (adam) assert_near(get(&v, i), s.v[i], 1e-9, 2e-6);
      if (w_dtype == Z3T_BF16) assert_int_equal(((uint16_t *)w.data)[i], z3i_f32_to_bf16((float)get(&p, i)));
      if (w_dtype == Z3T_F16) assert_int_equal(((uint16_t *)w.data)[i], z3i_f32_to_f16((float)get(&p, i)));
    }
  }
}

static void test_device_update_formulas(void **state_)
{
  (void)state_;
  static const int64_t counts[] = { 0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 70, 2049 };
  static const int weights[] = { Z3T_F32, Z3T_BF16, Z3T_F16 };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(cases); k++)
    for (int c = 0; c < LEN(counts); c++) {
      check_update(t, &cases[k], counts[c], weights[c % 3]);
      drop_all(NULL);
    }
}

/* 1 - beta2 must come from double: 1 - 0.999f is off by 1.3e-5, which v shows. */
static void test_device_update_betas_are_doubles(void **state_)
{
  (void)state_;
  EACH_TABLE(t) {
    buf p = buf_new(Z3T_F32, 1), m = buf_new(Z3T_F32, 1), v = buf_new(Z3T_F32, 1), g = buf_new(Z3T_F32, 1);
    set(&p, 0, 1), set(&m, 0, 0), set(&v, 0, 0), set(&g, 0, 4);
    z3i_update u = update_of(&cases[0], 1, 1, &p, &m, &v, &g, NULL);
    assert_int_equal(t->update(&u), Z3E_OK);
    assert_near(get(&v, 0), 0.001, 0, 1e-7);
    assert_near(get(&m, 0), 0.1, 0, 1e-7);
    drop_all(NULL);
  }
}

/* Shards of other sizes, and other numbers of threads, give the same bits. */
static void test_device_update_same_bits_in_parts(void **state_)
{
  (void)state_;
  enum { N = 70003 };
  int before = omp_get_max_threads();
  EACH_TABLE(t)
  for (int k = 0; k < LEN(cases); k++) {
    buf g = buf_rnd(Z3T_F32, N, 3, 1, 0), start = buf_rnd(Z3T_F32, N, 1, 1, 0), p[2], w[2];
    for (int run = 0; run < 2; run++) {
      buf m = buf_rnd(Z3T_F32, N, 4, 0.1, 0), v = buf_rnd(Z3T_F32, N, 5, 0.01, 0.5);
      p[run] = buf_new(Z3T_F32, N);
      w[run] = buf_new(Z3T_BF16, N);
      copy_into(&p[run], &start);
      omp_set_num_threads(2 - run);
      for (int64_t lo = 0; lo < N;) {
        int64_t n = run == 0 ? N : Z3I_MIN(N - lo, 1 + lo / 3);
        z3i_update u = update_of(&cases[k], 2, n, &p[run], &m, &v, &g, &w[run]);
        u.master += lo;
        if (u.m != NULL) u.m += lo;
        if (u.v != NULL) u.v += lo;
        u.grad += lo;
        u.weight16 = (uint16_t *)w[run].data + lo;
        assert_int_equal(t->update(&u), Z3E_OK);
        lo += n;
      }
    }
    assert_true(same_bits(&p[0], &p[1]) && same_bits(&w[0], &w[1]));
    drop_all(NULL);
  }
  omp_set_num_threads(before);
}

static void test_device_update_nan_shows(void **state_)
{
  (void)state_;
  EACH_TABLE(t)
  for (int k = 0; k < LEN(cases); k++) {
    buf p = buf_rnd(Z3T_F32, 20, 1, 1, 0), m = buf_rnd(Z3T_F32, 20, 2, 1, 0), v = buf_rnd(Z3T_F32, 20, 2, 0.1, 1);
    buf g = buf_rnd(Z3T_F32, 20, 3, 1, 0);
    set(&g, 7, NAN);
    z3i_update u = update_of(&cases[k], 2, 20, &p, &m, &v, &g, NULL);
    assert_int_equal(t->update(&u), Z3E_OK);
    for (int64_t i = 0; i < 20; i++) assert_int_equal(isnan(get(&p, i)), i == 7);
    drop_all(NULL);
  }
}

static void test_device_update_refuses(void **state_)
{
  (void)state_;
  EACH_TABLE(t) {
    buf a = buf_rnd(Z3T_F32, 4, 1, 1, 0), before = buf_rnd(Z3T_F32, 4, 1, 1, 0);
    z3i_update good = update_of(&cases[0], 1, 4, &a, &a, &a, &a, NULL), bad;
    bad = good, bad.kind = 4;
    assert_int_equal(t->update(&bad), Z3E_ARG);
    bad = good, bad.m = NULL;
    assert_int_equal(t->update(&bad), Z3E_ARG);
    bad = good, bad.v = NULL;
    assert_int_equal(t->update(&bad), Z3E_ARG);
    bad = good, bad.grad = NULL;
    assert_int_equal(t->update(&bad), Z3E_ARG);
    assert_true(same_bits(&a, &before));
    drop_all(NULL);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    TEST(test_device_update_formulas), TEST(test_device_update_betas_are_doubles),
    TEST(test_device_update_same_bits_in_parts), TEST(test_device_update_nan_shows), TEST(test_device_update_refuses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
