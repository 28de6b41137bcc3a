/* test_prof_prof.c -- what the profiler counts: kinds, phases, flops and bytes, calls around kernels, the ring. */
#include "prof/prof.h"

#include "tape_help.h"

enum { ROWS = 8, WIDTH = 6, HIDDEN = 10 };

static z3_prof_total total(int kind, int object)
{
  z3_prof_total t;
  OK(z3_prof_total_get(kind, object, &t));
  return t;
}

/* y = sum(gelu(x w^T)), forward and backward, with the middle recomputed where asked. */
static void train(bool recompute)
{
  z3_tensor *x = matrix(ROWS, WIDTH, 1, true), *w = matrix(HIDDEN, WIDTH, 2, true);
  if (recompute) OK(z3_checkpoint_begin());
  z3_tensor *h = op2(Z3OP_linear, x, w), *g = op1(Z3OP_gelu_tanh, h), *y = op1(Z3OP_sum, g);
  if (recompute) OK(z3_checkpoint_end(false));
  OK(z3_backward(y, NULL));
  z3_tensor *all[] = { x, w, h, g, y };
  for (int i = 0; i < 5; i++) z3_tensor_release(all[i]);
}

static void test_prof_counts_each_kind(void **state)
{
  (void)state;
  OK(z3_prof_enable(0));
  assert_true(z3_prof_enabled());
  train(false);
  z3_prof_disable();
  assert_false(z3_prof_enabled());
  z3_prof_total f = total(Z3P_FORWARD, Z3OP_linear), b = total(Z3P_BACKWARD, Z3OP_linear);
  assert_int_equal(f.count, 1);
  assert_int_equal(b.count, 1);
  double product = 2.0 * ROWS * WIDTH * HIDDEN;
  assert_true(f.flops == product);
  assert_true(b.flops == 2 * product);
  int64_t x = ROWS * WIDTH * 4, w = HIDDEN * WIDTH * 4, y = ROWS * HIDDEN * 4;
  assert_int_equal(f.bytes, x + w + y);
  assert_int_equal(b.bytes, x + w + y + x + w);
  assert_int_equal(total(Z3P_FORWARD, Z3OP_gelu_tanh).count, 1);
  assert_int_equal(total(Z3P_BACKWARD, Z3OP_gelu_tanh).count, 1);
  assert_int_equal(total(Z3P_RECOMPUTE, Z3OP_linear).count, 0);
  assert_true(f.ns > 0 && b.ns > 0);
  train(false);                                   /* off: nothing more is counted */
  assert_int_equal(total(Z3P_FORWARD, Z3OP_linear).count, 1);
}

static void test_prof_recompute_is_its_own_kind(void **state)
{
  (void)state;
  OK(z3_prof_enable(0));
  train(true);
  z3_prof_disable();
  assert_int_equal(total(Z3P_FORWARD, Z3OP_linear).count, 1);
  assert_int_equal(total(Z3P_RECOMPUTE, Z3OP_linear).count, 1);
  assert_int_equal(total(Z3P_BACKWARD, Z3OP_linear).count, 1);
}

static void test_prof_calls_hold_their_kernels(void **state)
{
  (void)state;
  static z3_prof_total all[Z3P_KINDS][Z3OP_COUNT];
  z3_tensor *t = matrix(ROWS, WIDTH, 1, false);
  OK(z3_prof_enable(0));
  train(false);
  OK(z3_tensor_fill(t, 1));                       /* a kernel outside of apply and backward */
  z3_prof_disable();
  z3_prof_totals(&all[0][0]);
  int64_t kernels = 0, calls = 0;
  for (int kind = 0; kind < Z3P_CALL; kind++)
    for (int i = 0; i < Z3OP_COUNT; i++) kernels += all[kind][i].ns;
  for (int i = 0; i < 3; i++) calls += all[Z3P_CALL][i].ns;
  assert_true(kernels > 0 && kernels <= calls);
  assert_int_equal(all[Z3P_CALL][Z3P_CALL_APPLY].count, 3);
  assert_int_equal(all[Z3P_CALL][Z3P_CALL_BACKWARD].count, 1);
  assert_int_equal(all[Z3P_CALL][Z3P_CALL_OTHER].count, 1);
  assert_true(all[Z3P_DATA][Z3P_FILL].count >= 1);
  z3_tensor_release(t);
}

/* What broadcasting repeats is in memory once. */
static void test_prof_bytes_of_broadcast(void **state)
{
  (void)state;
  z3_tensor *x = matrix(ROWS, WIDTH, 1, false), *row = matrix(1, WIDTH, 2, false);
  OK(z3_prof_enable(0));
  z3_tensor *y = op2(Z3OP_add, x, row);
  z3_prof_disable();
  assert_int_equal(total(Z3P_FORWARD, Z3OP_add).bytes, 4 * (2 * ROWS * WIDTH + WIDTH));
  z3_tensor *all[] = { x, row, y };
  for (int i = 0; i < 3; i++) z3_tensor_release(all[i]);
}

static void test_prof_ring_drops_the_oldest(void **state)
{
  (void)state;
  z3_event e[8];
  int64_t dropped = -1;
  OK(z3_prof_enable(4));
  for (int i = 0; i < 6; i++) z3_prof_mark(i, z3_now_ns());
  assert_int_equal(z3_prof_drain(e, 2, &dropped), 2);
  assert_int_equal(dropped, 2);
  assert_int_equal(e[0].object, 2);
  assert_int_equal(e[0].kind, Z3P_MARK);
  assert_true(e[0].start_ns > 0 && e[0].end_ns >= e[0].start_ns && e[1].end_ns >= e[0].end_ns);
  z3_prof_mark(6, z3_now_ns());
  assert_int_equal(z3_prof_drain(e, 8, NULL), 3);
  assert_int_equal(e[0].object, 4);
  assert_int_equal(e[2].object, 6);
  assert_int_equal(z3_prof_drain(e, 8, &dropped), 0);
  train(false);                                   /* events of kernels know their module; calls make none */
  int n = z3_prof_drain(e, 8, NULL);
  z3_prof_disable();
  assert_int_equal(n, 4);
  for (int i = 0; i < n; i++) assert_true(e[i].kind < Z3P_CALL && e[i].owner != NULL);
}

static void test_prof_refuses(void **state)
{
  (void)state;
  z3_prof_total t;
  assert_int_equal(z3_prof_enable(-1), Z3E_ARG);
  assert_int_equal(z3_prof_total_get(-1, 0, &t), Z3E_ARG);
  assert_int_equal(z3_prof_total_get(Z3P_KINDS, 0, &t), Z3E_ARG);
  assert_int_equal(z3_prof_total_get(0, Z3OP_COUNT, &t), Z3E_ARG);
  z3i_alloc_fail_at(1);
  assert_int_equal(z3_prof_enable(16), Z3E_OOM);
  z3i_alloc_fail_at(0);
  assert_false(z3_prof_enabled());
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_prof_counts_each_kind),     cmocka_unit_test(test_prof_recompute_is_its_own_kind),
    cmocka_unit_test(test_prof_calls_hold_their_kernels), cmocka_unit_test(test_prof_bytes_of_broadcast),
    cmocka_unit_test(test_prof_ring_drops_the_oldest), cmocka_unit_test(test_prof_refuses),
  };
  return cmocka_run_group_tests_name("prof_prof", tests, NULL, NULL);
}
