/* test_tape_backward.c -- gradients of composed operations against finite differences and exact values; what a second
 * backward, a change in place, a failing allocation and a very long chain do. */
#include "tape_help.h"

typedef z3_tensor *(*program)(z3_tensor *a, z3_tensor *b);

static z3_tensor *sum_free(z3_tensor *x)          /* sum of x * weights(x's position), and x is released */
{
  z3_tensor *w, *p;
  int64_t shape[Z3_MAX_DIMS];
  for (int i = 0; i < z3_tensor_ndim(x); i++) shape[i] = z3_tensor_dim(x, i);
  OK(z3_tensor_new(Z3D_CPU, Z3T_F32, z3_tensor_ndim(x), shape, Z3M_OTHER, &w));
  for (int64_t i = 0; i < z3_tensor_numel(w); i++) values(w)[i] = 0.3f + 0.1f * (float)(i % 7);
  p = op2(Z3OP_mul, x, w);
  z3_tensor *s = op1(Z3OP_sum, p);
  z3_tensor_release(w);
  z3_tensor_release(p);
  z3_tensor_release(x);
  return s;
}

static z3_tensor *then(z3_tensor *x, int op, z3_attr attr)   /* op on x, x released */
{
  z3_tensor *y = op3(op, x, NULL, NULL, attr);
  z3_tensor_release(x);
  return y;
}

/* a (6,4), b (6,4) in all programs */
static z3_tensor *p_mul_twice(z3_tensor *a, z3_tensor *b)
{
  z3_tensor *x = op2(Z3OP_mul, a, a), *y = op2(Z3OP_mul, x, b), *z = op2(Z3OP_add, y, a);
  z3_tensor_release(x);
  z3_tensor_release(y);
  return sum_free(z);
}
static z3_tensor *p_views(z3_tensor *a, z3_tensor *b)
{
  z3_tensor *x = op3(Z3OP_permute, a, NULL, NULL, (z3_attr){ .i = { 1, 0 } });
  x = then(x, Z3OP_view, (z3_attr){ .i = { 3, 2, 3, 4, [9] = 1 } });
  x = then(x, Z3OP_narrow, (z3_attr){ .i = { 1, 1, 2 } });
  z3_tensor *n = op3(Z3OP_narrow, b, NULL, NULL, (z3_attr){ .i = { 0, 2, 1 } });
  z3_tensor *y = op2(Z3OP_mul, x, n);
  z3_tensor_release(x);
  z3_tensor_release(n);
  return sum_free(y);
}
static z3_tensor *p_parts(z3_tensor *a, z3_tensor *b)       /* three parts of one result: gradients meet in place */
{
  z3_tensor *x = op2(Z3OP_add, a, b), *part[3];
  for (int i = 0; i < 3; i++) part[i] = op3(Z3OP_narrow, x, NULL, NULL, (z3_attr){ .i = { 0, 2 * i, 2 } });
  z3_tensor *m = op2(Z3OP_mul, part[0], part[1]), *s = op2(Z3OP_sub, m, part[2]);
  for (int i = 0; i < 3; i++) z3_tensor_release(part[i]);
  z3_tensor_release(x);
  z3_tensor_release(m);
  return sum_free(s);
}
static z3_tensor *p_reduce(z3_tensor *a, z3_tensor *b)
{
  z3_tensor *m = op3(Z3OP_mean, a, NULL, NULL, (z3_attr){ .i = { 1, 1 } });   /* (1,4), broadcast below */
  z3_tensor *d = op2(Z3OP_sub, b, m), *q = op2(Z3OP_mul, d, a);
  z3_tensor *s = op3(Z3OP_sum, q, NULL, NULL, (z3_attr){ .i = { 2, 0 } });
  z3_tensor_release(m);
  z3_tensor_release(d);
  z3_tensor_release(q);
  return sum_free(s);
}
static z3_tensor *p_cat(z3_tensor *a, z3_tensor *b)
{
  z3_tensor *in[3] = { a, b, a }, *c;
  OK(z3_apply(Z3OP_cat, in, 3, &(z3_attr){ .i = { 1 } }, &c));
  z3_tensor *t = op1(Z3OP_tanh, c), *r = op3(Z3OP_rsub_scalar, t, NULL, NULL, (z3_attr){ .f = { 2 } });
  z3_tensor_release(c);
  z3_tensor_release(t);
  return sum_free(r);
}
static z3_tensor *p_product(z3_tensor *a, z3_tensor *b)
{
  z3_tensor *l = op2(Z3OP_linear, a, b), *s = op1(Z3OP_softmax, l), *m = op2(Z3OP_matmul, s, a);
  z3_tensor_release(l);
  z3_tensor_release(s);
  return sum_free(m);
}
static z3_tensor *p_expand(z3_tensor *a, z3_tensor *b)
{
  z3_tensor *n = op3(Z3OP_narrow, b, NULL, NULL, (z3_attr){ .i = { 1, 0, 1 } });
  z3_tensor *e = op3(Z3OP_expand, n, NULL, NULL, (z3_attr){ .i = { 3, 2, 6, 4 } }), *m = op2(Z3OP_mul, e, a);
  z3_tensor_release(n);
  z3_tensor_release(e);
  return sum_free(m);
}

static const struct { const char *name; program run; } programs[] = {
  { "mul twice", p_mul_twice }, { "views", p_views }, { "parts", p_parts }, { "reduce", p_reduce },
  { "cat", p_cat },             { "product", p_product }, { "expand", p_expand },
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

static double run_value(program p, z3_tensor *a, z3_tensor *b)
{
  bool before = z3_grad_enable(false);
  z3_tensor *loss = p(a, b);
  double v = item(loss);
  z3_tensor_release(loss);
  z3_grad_enable(before);
  return v;
}

static void check_grad(const char *name, program p, z3_tensor *a, z3_tensor *b, z3_tensor *x)
{
  z3_tensor *g;
  OK(z3_grad_get(x, &g));
  assert_non_null(g);
  for (int64_t i = 0; i < z3_tensor_numel(x); i++) {
    float keep = values(x)[i];
    values(x)[i] = keep + 1e-2f;
    double up = run_value(p, a, b);
    values(x)[i] = keep - 1e-2f;
    double down = run_value(p, a, b);
    values(x)[i] = keep;
    double want = (up - down) / 2e-2, got = values(g)[i];
    if (fabs(want - got) > 2e-3 * (1 + fabs(want))) fail_msg("%s: element %d: %g, wants %g", name, (int)i, got, want);
  }
  z3_tensor_release(g);
}

static void test_tape_gradients_match_finite_differences(void **state)
{
  (void)state;
  for (int k = 0; k < PROGRAMS; k++) {
    int64_t live = z3_tensor_live();
    z3_tensor *a = matrix(6, 4, 1, true), *b = matrix(6, 4, 2, true), *loss = programs[k].run(a, b);
    OK(z3_backward(loss, NULL));
    check_grad(programs[k].name, programs[k].run, a, b, a);
    check_grad(programs[k].name, programs[k].run, a, b, b);
    z3_tensor_release(loss);
    z3_tensor_release(a);
    z3_tensor_release(b);
    assert_int_equal(z3_tensor_live(), live);
  }
}

/* Backward twice (of two forwards) gives exactly twice the gradient, in a leaf's own gradient and in a buffer. */
static void test_tape_gradients_accumulate_exactly(void **state)
{
  (void)state;
  for (int k = 0; k < PROGRAMS; k++)
    for (int buffer = 0; buffer < 2; buffer++) {
      z3_tensor *a = matrix(6, 4, 3, true), *b = matrix(6, 4, 4, true), *g, *room = matrix(6, 4, 9, false);
      if (buffer) OK(z3_grad_buffer(a, room));
      float once[24];
      for (int round = 0; round < 2; round++) {
        z3_tensor *loss = programs[k].run(a, b);
        assert_int_equal(z3_grad_touched(a), round > 0);
        OK(z3_backward(loss, NULL));
        z3_tensor_release(loss);
        OK(z3_grad_get(a, &g));
        for (int i = 0; i < 24; i++) {
          if (round == 0) once[i] = values(g)[i];
          else assert_true(fabsf(values(g)[i] - 2 * once[i]) <= 1e-6f * fabsf(once[i]) + 1e-7f);
        }
        z3_tensor_release(g);
      }
      z3_grad_clear(a);
      assert_false(z3_grad_touched(a));
      z3_tensor_release(a);
      z3_tensor_release(b);
      z3_tensor_release(room);
    }
}

static void test_tape_second_backward_is_stale(void **state)
{
  (void)state;
  z3_tensor *a = matrix(6, 4, 1, true), *b = matrix(6, 4, 2, true), *loss = p_mul_twice(a, b);
  OK(z3_backward(loss, NULL));
  assert_int_equal(z3_backward(loss, NULL), Z3E_STALE);
  assert_non_null(strstr(z3_last_error(), "run forward again"));
  z3_tensor_release(loss);
  z3_tensor_release(a);
  z3_tensor_release(b);
}

static void test_tape_change_in_place_is_stale(void **state)
{
  (void)state;
  z3_tensor *a = matrix(6, 4, 1, true), *b = matrix(6, 4, 2, false);
  z3_module_enter(z3_module_id("h.3.attn"));
  z3_tensor *y = op2(Z3OP_mul, a, b), *loss = op1(Z3OP_sum, y);
  z3_module_leave();
  OK(z3_tensor_fill(b, 1));
  assert_int_equal(z3_backward(loss, NULL), Z3E_STALE);
  assert_non_null(strstr(z3_last_error(), "h.3.attn"));
  assert_non_null(strstr(z3_last_error(), "mul"));
  z3_tensor *g;
  OK(z3_grad_get(a, &g));
  assert_null(g);
  z3_tensor_release(loss);
  z3_tensor_release(y);
  z3_tensor_release(a);
  z3_tensor_release(b);
}

static void test_tape_needs_a_history(void **state)
{
  (void)state;
  z3_tensor *a = matrix(2, 2, 1, false), *s = op1(Z3OP_sum, a);
  assert_int_equal(z3_backward(s, NULL), Z3E_ARG);
  z3_tensor *b = matrix(2, 2, 1, true), *y = op2(Z3OP_mul, b, b);
  assert_int_equal(z3_backward(y, NULL), Z3E_SHAPE);
  assert_int_equal(z3_requires_grad_set(y, true), Z3E_ARG);
  z3_tensor_release(a);
  z3_tensor_release(s);
  z3_tensor_release(b);
  z3_tensor_release(y);
  assert_int_equal(z3_backward(y, NULL), Z3E_STALE);
}

static void test_tape_long_chain(void **state)
{
  (void)state;
  enum { LENGTH = 200000 };
  int64_t live = z3_tensor_live();
  for (int backward = 0; backward < 2; backward++) {
    z3_tensor *a = matrix(1, 1, 1, true), *x = op1(Z3OP_neg, a);
    for (int i = 1; i < LENGTH; i++) x = then(x, Z3OP_neg, (z3_attr){ 0 });
    if (backward) {
      z3_tensor *g;
      OK(z3_backward(x, NULL));
      OK(z3_grad_get(a, &g));
      assert_true(item(g) == 1.0);
      z3_tensor_release(g);
    }
    z3_tensor_release(x);
    z3_tensor_release(a);
  }
  assert_int_equal(z3_tensor_live(), live);
}

/* The n-th allocation of forward and backward fails, for every n: an error, nothing lost, and it works afterwards. */
static void test_tape_survives_every_failed_allocation(void **state)
{
  (void)state;
  z3_tensor *a = matrix(6, 4, 1, true), *b = matrix(6, 4, 2, true);
  int64_t live = z3_tensor_live();
  bool succeeded = false;
  for (int n = 1; n < 500 && !succeeded; n++) {
    z3_tensor *in[2] = { a, b }, *x = NULL, *y = NULL, *loss = NULL;
    z3i_alloc_fail_at(n);
    int rc = z3_apply(Z3OP_mul, in, 2, NULL, &x);
    in[0] = x;
    if (rc == Z3E_OK) rc = z3_apply(Z3OP_linear, in, 2, NULL, &y);
    in[0] = y;
    if (rc == Z3E_OK) rc = z3_apply(Z3OP_sum, in, 1, NULL, &loss);
    if (rc == Z3E_OK) rc = z3_backward(loss, NULL);
    z3i_alloc_fail_at(0);
    assert_true(rc == Z3E_OK || rc == Z3E_OOM);
    succeeded = rc == Z3E_OK;
    z3_tensor_release(loss);
    z3_tensor_release(y);
    z3_tensor_release(x);
    z3_grad_clear(a);
    z3_grad_clear(b);
    assert_int_equal(z3_tensor_live(), live);
  }
  assert_true(succeeded);
  z3_tensor_release(a);
  z3_tensor_release(b);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_tape_gradients_match_finite_differences),
    cmocka_unit_test(test_tape_gradients_accumulate_exactly),
    cmocka_unit_test(test_tape_second_backward_is_stale),
    cmocka_unit_test(test_tape_change_in_place_is_stale),
    cmocka_unit_test(test_tape_needs_a_history),
    cmocka_unit_test(test_tape_long_chain),
    cmocka_unit_test(test_tape_survives_every_failed_allocation),
  };
  return cmocka_run_group_tests_name("tape_backward", tests, NULL, NULL);
}
