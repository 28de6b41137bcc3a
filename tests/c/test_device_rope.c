/* test_device_rope.c -- rotary embedding of every kernel table against plain loops in double.
 * Legend: B batch, H heads, T time, D head size, P positions in the table. */
#include "model_kernels.h"

typedef struct rope_case {
  int64_t B, H, T, D, P, first;
  buf table, positions;
  bool has_positions;
} rope_case;

static const int dtypes[] = { Z3T_F32, Z3T_BF16, Z3T_F16 };
static const int64_t shapes[][4] = { { 1, 1, 1, 2 },  { 2, 3, 5, 16 },   { 2, 2, 7, 64 },
                                     { 1, 3, 4, 10 }, { 2, 1, 3, 1030 }, { 2, 5, 90, 128 } };

static rope_case case_new(const int64_t *shape, bool has_positions)
{
  rope_case k = { .B = shape[0], .H = shape[1], .T = shape[2], .D = shape[3], .P = shape[2] + 9, .first = 4,
                  .has_positions = has_positions };
  k.table = buf_new(Z3T_F32, k.P * k.D);
  for (int64_t p = 0; p < k.P; p++)
    for (int64_t i = 0; i < k.D / 2; i++) {
      double angle = (double)p * pow(10000, -2 * (double)i / (double)k.D);
      set(&k.table, p * k.D + i, cos(angle));
      set(&k.table, p * k.D + k.D / 2 + i, sin(angle));
    }
  k.positions = buf_ids(Z3T_I32, k.B * k.T, 3, k.P);
  return k;
}

/* (B,H,T,D) over memory that lies (B,T,H,D) with room for `pad` more heads a position; or plain when pad < 0. */
static z3i_view heads(const rope_case *k, const buf *b, int64_t pad)
{
  z3i_view v = VIEW(b, k->B, k->H, k->T, k->D);
  if (pad < 0) return v;
  const int64_t row = (k->H + pad) * k->D, stride[4] = { k->T * row, k->D, row, 1 };
  memcpy(v.stride, stride, sizeof stride);
  return v;
}
static int64_t room(const rope_case *k, int64_t pad) { return k->B * k->T * (k->H + Z3I_MAX(pad, 0)) * k->D; }

static int run(const z3i_isa_table *t, const rope_case *k, z3i_view from, z3i_view to, bool backward, bool add)
{
  z3_attr attr = { .i = { k->first } };
  z3i_call c = { .op = Z3OP_rope, .attr = &attr, .dev = device(), .gin_add = add };
  c.in[1] = VIEW(&k->table, k->P, k->D);
  if (k->has_positions) c.in[2] = VIEW(&k->positions, k->B, k->T);
  if (!backward) {
    c.in[0] = from;
    c.out[0] = to;
    return t->forward[c.op](&c);
  }
  c.in[0] = bare(to);
  c.out[0] = bare(from);
  c.gout[0] = from;
  c.gin[0] = to;
  return t->backward[c.op](&c);
}

static int64_t offset(const z3i_view *v, int64_t b, int64_t h, int64_t t, int64_t i)
{
  return b * v->stride[0] + h * v->stride[1] + t * v->stride[2] + i;
}

/* Every element of the result against the rotation by +angle or -angle; the rest of the buffer keeps what it held. */
static void check_rotation(const rope_case *k, const buf *x, const z3i_view *from, const buf *y, const z3i_view *to,
                           const buf *was, bool inverse, bool add)
{
  bool *hit = keep_zero((size_t)y->n);
  for (int64_t b = 0; b < k->B; b++)
    for (int64_t h = 0; h < k->H; h++)
      for (int64_t t = 0; t < k->T; t++)
        for (int64_t i = 0; i < k->D; i++) {
          const int64_t half = k->D / 2, at = offset(to, b, h, t, i), j = i % half;
          const int64_t p = k->has_positions ? (int64_t)get(&k->positions, b * k->T + t) : k->first + t;
          const double c = get(&k->table, p * k->D + j), s = (inverse ? -1 : 1) * get(&k->table, p * k->D + half + j);
          const double a = get(x, offset(from, b, h, t, j)), z = get(x, offset(from, b, h, t, half + j));
          const double want = (i < half ? a * c - z * s : z * c + a * s) + (add ? get(was, at) : 0);
          hit[at] = true;
          assert_near(get(y, at), want, 1e-6, 1.01 * rounding(y->dtype) + 1e-6);
        }
  for (int64_t i = 0; i < y->n; i++) assert_true(hit[i] || get(y, i) == get(was, i));
}

static void test_values(void **state)
{
  static const int64_t pads[] = { -1, 0, 2 };
  EACH_TABLE(t)
    for (int d = 0; d < LEN(dtypes); d++)
      for (int i = 0; i < LEN(shapes) - 1; i++)   /* the last is for threads */
        for (int variant = 0; variant < 18; variant++) {
          const bool has_positions = variant & 1, backward = variant / 2 % 3 > 0, add = variant / 2 % 3 == 2;
          const int64_t from_pad = pads[variant / 6], to_pad = pads[(variant / 6 + variant) % 3];
          rope_case k = case_new(shapes[i], has_positions);
          buf x = buf_rnd(dtypes[d], room(&k, from_pad), 1, 1, 0), y = buf_rnd(dtypes[d], room(&k, to_pad), 2, 1, 0);
          buf was = buf_rnd(dtypes[d], y.n, 2, 1, 0);
          z3i_view from = heads(&k, &x, from_pad), to = heads(&k, &y, to_pad);
          assert_int_equal(run(t, &k, from, to, backward, add), Z3E_OK);
          check_rotation(&k, &x, &from, &y, &to, &was, backward, add);
          drop_all(state);
        }
}

/* Turning back gives the input again; inner products are kept: a rotation's gradient is its inverse. */
static void test_inverse(void **state)
{
  EACH_TABLE(t) {
    rope_case k = case_new(shapes[2], true);
    buf x = buf_rnd(Z3T_F32, room(&k, -1), 1, 1, 0), y = buf_new(Z3T_F32, x.n), z = buf_new(Z3T_F32, x.n);
    buf g = buf_rnd(Z3T_F32, x.n, 2, 1, 0), gx = buf_new(Z3T_F32, x.n);
    assert_int_equal(run(t, &k, heads(&k, &x, -1), heads(&k, &y, -1), false, false), Z3E_OK);
    assert_int_equal(run(t, &k, heads(&k, &y, -1), heads(&k, &z, -1), true, false), Z3E_OK);
    assert_all_near(&z, doubles(&x), 1e-6);
    assert_int_equal(run(t, &k, heads(&k, &g, -1), heads(&k, &gx, -1), true, false), Z3E_OK);
    double yg = 0, xgx = 0;
    for (int64_t i = 0; i < x.n; i++) {
      yg += get(&y, i) * get(&g, i);
      xgx += get(&x, i) * get(&gx, i);
    }
    assert_near(yg, xgx, 1e-5, 1e-5);
    drop_all(state);
  }
}

static void test_add_and_threads(void **state)
{
  EACH_TABLE(t) {
    rope_case k = case_new(shapes[5], true);
    buf g = buf_rnd(Z3T_F32, room(&k, -1), 1, 1, 0), gx[2], before = buf_rnd(Z3T_F32, g.n, 3, 1, 0), out[2];
    buf x = buf_rnd(Z3T_BF16, g.n, 4, 1, 0);
    for (int j = 0; j < 2; j++) {
      omp_set_num_threads(j + 1);
      gx[j] = buf_rnd(Z3T_F32, g.n, 3, 1, 0);
      out[j] = buf_new(Z3T_BF16, g.n);
      assert_int_equal(run(t, &k, heads(&k, &g, -1), heads(&k, &gx[j], -1), true, j == 1), Z3E_OK);
      assert_int_equal(run(t, &k, heads(&k, &x, -1), heads(&k, &out[j], -1), false, false), Z3E_OK);
    }
    assert_true(same_bits(&out[0], &out[1]));
    assert_added(&gx[1], &before, &gx[0]);
    drop_all(state);
  }
}

static void test_errors(void **state)
{
  (void)state;
  EACH_TABLE(t)
    for (int i = 0; i < 2; i++) {
      rope_case k = case_new(shapes[1], true);
      buf x = buf_rnd(Z3T_F32, room(&k, -1), 1, 1, 0), y = buf_new(Z3T_F32, x.n), untouched = buf_new(Z3T_F32, x.n);
      char want[80];
      set(&k.positions, 8, i ? -1 : (double)k.P);
      assert_int_equal(run(t, &k, heads(&k, &x, -1), heads(&k, &y, -1), false, false), Z3E_ARG);
      snprintf(want, sizeof want, "rope: position at [1,3] is %d, wants 0 to %d", i ? -1 : (int)k.P, (int)k.P - 1);
      if (strstr(z3_last_error(), want) == NULL) fail_msg("message is \"%s\", wants \"%s\"", z3_last_error(), want);
      k.has_positions = false;
      k.first = i ? -1 : k.P - k.T + 1;
      assert_int_equal(run(t, &k, heads(&k, &x, -1), heads(&k, &y, -1), false, false), Z3E_ARG);
      assert_true(same_bits(&y, &untouched));
    }
}

static void test_empty(void **state)
{
  (void)state;
  static const int64_t empty[][4] = { { 0, 2, 3, 4 }, { 2, 0, 3, 4 }, { 2, 3, 0, 4 }, { 2, 3, 4, 0 } };
  EACH_TABLE(t)
    for (int i = 0; i < LEN(empty); i++) {
      rope_case k = case_new(empty[i], false);
      buf none = buf_new(Z3T_F32, 0);
      assert_int_equal(run(t, &k, heads(&k, &none, -1), heads(&k, &none, -1), false, false), Z3E_OK);
      assert_int_equal(run(t, &k, heads(&k, &none, -1), heads(&k, &none, -1), true, false), Z3E_OK);
    }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    TEST(test_values), TEST(test_inverse), TEST(test_add_and_threads), TEST(test_errors), TEST(test_empty),
  };
  return cmocka_run_group_tests_name("device/rope", tests, NULL, NULL);
}
