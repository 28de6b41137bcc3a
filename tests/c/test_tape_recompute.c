/* test_tape_recompute.c -- a recomputed region gives the same bits and holds less; script operations stop backward. */
#include "tape_help.h"

static z3_tensor *block(z3_tensor *x, z3_tensor *w, z3_tensor *w2)   /* a small block with a mask and a view in it */
{
  z3_tensor *in[3] = { x, NULL, NULL }, *n, *h, *g, *d, *o, *y;
  OK(z3_apply(Z3OP_layer_norm, in, 3, &(z3_attr){ .f = { 1e-5 } }, &n));
  h = op3(Z3OP_linear, n, w, NULL, (z3_attr){ 0 });
  g = op1(Z3OP_gelu_tanh, h);
  d = op3(Z3OP_dropout, g, NULL, NULL, (z3_attr){ .f = { 0.3 }, .i = { 12345 } });
  z3_tensor *p = op3(Z3OP_permute, d, NULL, NULL, (z3_attr){ .i = { 1, 0 } });
  z3_tensor *q = op3(Z3OP_permute, p, NULL, NULL, (z3_attr){ .i = { 1, 0 } });
  o = op3(Z3OP_linear, q, w2, NULL, (z3_attr){ 0 });
  y = op2(Z3OP_add, x, o);
  z3_tensor *all[] = { n, h, g, d, p, q, o };
  for (int i = 0; i < 7; i++) z3_tensor_release(all[i]);
  return y;
}

enum { ROWS = 16, WIDTH = 12, HIDDEN = 40, BLOCKS = 3 };

/* Forward and backward of BLOCKS blocks; gradients of x and the weights into out; returns bytes live before backward.
 */
static int64_t train(bool recompute, float *out)
{
  z3_memory_stats before, after;
  z3_tensor *x = matrix(ROWS, WIDTH, 1, true), *w = matrix(HIDDEN, WIDTH, 2, true),
            *w2 = matrix(WIDTH, HIDDEN, 3, true);
  OK(z3_memory_stats_get(Z3D_CPU, &before));
  z3_tensor *h = x;
  z3_tensor_retain(h);
  for (int i = 0; i < BLOCKS; i++) {
    if (recompute) OK(z3_checkpoint_begin());
    z3_tensor *y = block(h, w, w2);
    if (recompute) OK(z3_checkpoint_end(false));
    z3_tensor_release(h);
    h = y;
  }
  OK(z3_memory_stats_get(Z3D_CPU, &after));
  z3_tensor *t = op1(Z3OP_tanh, h), *loss = op1(Z3OP_sum, t);
  z3_tensor_release(h);
  z3_tensor_release(t);
  OK(z3_backward(loss, NULL));
  z3_tensor *leaf[3] = { x, w, w2 };
  for (int k = 0; k < 3; k++) {
    z3_tensor *g;
    OK(z3_grad_get(leaf[k], &g));
    memcpy(out, values(g), (size_t)z3_tensor_numel(g) * sizeof *out);
    out += z3_tensor_numel(g);
    z3_tensor_release(g);
    z3_tensor_release(leaf[k]);
  }
  z3_tensor_release(loss);
  return after.current - before.current;
}

static void test_tape_recompute_has_the_same_bits(void **state)
{
  (void)state;
  enum { N = ROWS * WIDTH + 2 * HIDDEN * WIDTH };
  static float plain[N], again[N];
  int64_t live = z3_tensor_live();
  int64_t saved = train(false, plain), held = train(true, again);
  assert_memory_equal(plain, again, sizeof plain);
  if (held * 3 > saved) fail_msg("recompute holds %d bytes, without it %d", (int)held, (int)saved);
  assert_int_equal(z3_tensor_live(), live);
}

static void test_tape_recompute_without_backward_leaks_nothing(void **state)
{
  (void)state;
  int64_t live = z3_tensor_live();
  z3_tensor *x = matrix(ROWS, WIDTH, 1, true), *w = matrix(HIDDEN, WIDTH, 2, true),
            *w2 = matrix(WIDTH, HIDDEN, 3, true);
  OK(z3_checkpoint_begin());
  OK(z3_checkpoint_begin());                      /* one inside the other */
  z3_tensor *y = block(x, w, w2);
  OK(z3_checkpoint_end(false));
  OK(z3_checkpoint_end(true));
  assert_int_equal(z3_checkpoint_end(false), Z3E_ARG);
  z3_tensor_release(y);
  z3_tensor_release(x);
  z3_tensor_release(w);
  z3_tensor_release(w2);
  assert_int_equal(z3_tensor_live(), live);
}

static void test_tape_recompute_notices_changes(void **state)
{
  (void)state;
  z3_tensor *x = matrix(ROWS, WIDTH, 1, true), *w = matrix(HIDDEN, WIDTH, 2, true),
            *w2 = matrix(WIDTH, HIDDEN, 3, true);
  OK(z3_checkpoint_begin());
  z3_tensor *y = block(x, w, w2);
  OK(z3_checkpoint_end(false));
  z3_tensor *loss = op1(Z3OP_sum, y);
  OK(z3_tensor_fill(w, 1));
  assert_int_equal(z3_backward(loss, NULL), Z3E_STALE);
  z3_tensor *all[] = { x, w, w2, y, loss };
  for (int i = 0; i < 5; i++) z3_tensor_release(all[i]);
}

/* double = script operation y = 2 x in the middle of a graph; its backward is computed here, as a script would. */
static void test_tape_script_operation(void **state)
{
  (void)state;
  int64_t live = z3_tensor_live();
  z3_tensor *a = matrix(3, 3, 1, true), *b = op2(Z3OP_mul, a, a);
  bool before = z3_grad_enable(false);
  z3_tensor *y = op3(Z3OP_mul_scalar, b, NULL, NULL, (z3_attr){ .f = { 2 } });
  z3_grad_enable(before);
  OK(z3_script_record(&b, 1, &y, 1, 77));
  assert_true(z3_requires_grad(y));
  z3_tensor *loss = op1(Z3OP_sum, y), *g, *gin;
  assert_int_equal(z3_backward(loss, NULL), Z3E_SCRIPT);
  int64_t tag;
  OK(z3_backward_script_tag(&tag));
  assert_int_equal(tag, 77);
  OK(z3_backward_script_grad(0, &g));
  /* a whole other backward while this one waits */
  z3_tensor *c = matrix(2, 2, 5, true), *d = op1(Z3OP_sum, c);
  OK(z3_backward(d, NULL));
  gin = op3(Z3OP_mul_scalar, g, NULL, NULL, (z3_attr){ .f = { 2 } });
  OK(z3_backward_resume(&gin, 1));
  z3_tensor *ga;
  OK(z3_grad_get(a, &ga));
  for (int i = 0; i < 9; i++) assert_true(values(ga)[i] == 4 * values(a)[i]);
  z3_tensor *all[] = { a, b, y, loss, g, gin, c, d, ga };
  for (int i = 0; i < 9; i++) z3_tensor_release(all[i]);
  assert_int_equal(z3_backward_resume(NULL, 0), Z3E_ARG);
  assert_int_equal(z3_tensor_live(), live);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_tape_recompute_has_the_same_bits),
    cmocka_unit_test(test_tape_recompute_without_backward_leaks_nothing),
    cmocka_unit_test(test_tape_recompute_notices_changes),
    cmocka_unit_test(test_tape_script_operation),
  };
  return cmocka_run_group_tests_name("tape_recompute", tests, NULL, NULL);
}
