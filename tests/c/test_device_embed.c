/* test_device_embed.c -- embedding, index_select and gather of every kernel table against plain loops. */
#include "model_kernels.h"

static const int dtypes[] = { Z3T_F32, Z3T_BF16, Z3T_F16 };

static int embed(const z3i_isa_table *t, const buf *ids, const buf *w, const buf *out, int64_t V, int64_t C)
{
  z3_attr attr = { 0 };
  z3i_call c = { .op = Z3OP_embedding, .attr = &attr, .dev = device() };
  c.in[0] = VIEW(ids, 1, ids->n);
  c.in[1] = VIEW(w, V, C);
  c.out[0] = VIEW(out, 1, ids->n, C);
  return t->forward[c.op](&c);
}
static int embed_grad(const z3i_isa_table *t, const buf *ids, const buf *g, const buf *gw, int64_t V, int64_t C,
                      bool add)
{
  z3_attr attr = { 0 };
  z3i_call c = { .op = Z3OP_embedding, .attr = &attr, .dev = device(), .gin_add = add ? 2 : 0 };
  c.in[0] = VIEW(ids, 1, ids->n);
  c.in[1] = bare(VIEW(gw, V, C));
  c.gout[0] = VIEW(g, 1, ids->n, C);
  c.gin[1] = VIEW(gw, V, C);
  return t->backward[c.op](&c);
}

/* Sums in index order in f32, as the kernel promises: the bits must agree. */
static float *ref_sums(const buf *ids, const buf *g, int64_t V, int64_t C)
{
  float *sum = keep_zero((size_t)(V * C) * sizeof *sum);
  bool *seen = keep_zero((size_t)V);
  for (int64_t j = 0; j < ids->n; j++) {
    int64_t id = (int64_t)get(ids, j);
    for (int64_t i = 0; i < C; i++) {
      float v = (float)get(g, j * C + i);
      sum[id * C + i] = seen[id] ? sum[id * C + i] + v : v;
    }
    seen[id] = true;
  }
  return sum;
}

typedef struct dims {
  int64_t N, V, C;
} dims;
static const dims shapes[] = { { 1, 1, 1 },    { 9, 5, 1 },       { 33, 7, 15 },   { 200, 40, 64 },
                               { 70, 1, 700 }, { 129, 5000, 33 }, { 300, 90, 513 } };

static void test_embedding(void **state)
{
  EACH_TABLE(t)
    for (int d = 0; d < LEN(dtypes); d++)
      for (int i = 0; i < LEN(shapes); i++) {
        const dims s = shapes[i];
        buf ids = buf_ids(i % 2 ? Z3T_I32 : Z3T_I64, s.N, 1, s.V), w = buf_rnd(dtypes[d], s.V * s.C, 2, 1, 0);
        buf out = buf_new(dtypes[d], s.N * s.C), g = buf_rnd(dtypes[d], s.N * s.C, 3, 1, 0);
        assert_int_equal(embed(t, &ids, &w, &out, s.V, s.C), Z3E_OK);
        for (int64_t j = 0; j < out.n; j++)
          assert_true(get(&out, j) == get(&w, (int64_t)get(&ids, j / s.C) * s.C + j % s.C));
        float *sum = ref_sums(&ids, &g, s.V, s.C);
        for (int gd = 0; gd < 2; gd++) {
          buf gw = buf_new(gd ? Z3T_F32 : dtypes[d], s.V * s.C), want = buf_new(gw.dtype, gw.n);
          for (int64_t j = 0; j < want.n; j++) set(&want, j, (double)sum[j]);
          assert_int_equal(embed_grad(t, &ids, &g, &gw, s.V, s.C, false), Z3E_OK);
          assert_true(same_bits(&gw, &want));
        }
        assert_no_scratch();
        drop_all(state);
      }
}

/* Into a buffer: each row gets its finished sum, rows without an id keep their bits, whatever the thread count. The ids
 * are one very long run, all different, or skewed. */
static void test_add_and_threads(void **state)
{
  const int64_t N = 700, V = 750, C = 600;
  EACH_TABLE(t)
    for (int kind = 0; kind < 3; kind++)
      for (int threads = 1; threads <= 2; threads++) {
        buf ids = buf_new(Z3T_I64, N), g = buf_rnd(Z3T_F32, N * C, 5, 1, 0), gw = buf_rnd(Z3T_F32, V * C, 6, 1, 0);
        buf before = buf_rnd(Z3T_F32, V * C, 6, 1, 0);
        for (int64_t j = 0; j < N; j++)
          set(&ids, j, kind == 0 ? 749 : kind == 1 ? (double)(N - j) : 10 / (0.014 + fmod((double)j * 0.618, 1)));
        float *sum = ref_sums(&ids, &g, V, C);
        bool *hit = keep_zero((size_t)V);
        for (int64_t j = 0; j < N; j++) hit[(int64_t)get(&ids, j)] = true;
        omp_set_num_threads(threads);
        assert_int_equal(embed_grad(t, &ids, &g, &gw, V, C, true), Z3E_OK);
        for (int64_t j = 0; j < V * C; j++) {
          float was = ((float *)before.data)[j], want = hit[j / C] ? was + sum[j] : was;
          assert_true(((float *)gw.data)[j] == want);
        }
        drop_all(state);
      }
}

/* More than one digit of the sort, and ids in a table of more than 2^22 rows. */
static void test_many_rows(void **state)
{
  const int64_t N = 4000, V = 5000011, C = 1;
  EACH_TABLE(t) {
    buf ids = buf_ids(Z3T_I32, N, 9, V), g = buf_rnd(Z3T_F32, N, 8, 1, 0), gw = buf_new(Z3T_F32, V);
    for (int64_t j = 0; j < N; j += 3) set(&ids, j, get(&ids, j / 2));
    float *sum = ref_sums(&ids, &g, V, C);
    assert_int_equal(embed_grad(t, &ids, &g, &gw, V, C, false), Z3E_OK);
    assert_memory_equal(gw.data, sum, (size_t)V * sizeof *sum);
    drop_all(state);
  }
}

static void test_empty(void **state)
{
  (void)state;
  EACH_TABLE(t) {
    buf none = buf_new(Z3T_I64, 0), w = buf_rnd(Z3T_F32, 12, 1, 1, 0), out = buf_new(Z3T_F32, 0);
    buf ids = buf_ids(Z3T_I64, 4, 1, 3);
    assert_int_equal(embed(t, &none, &w, &out, 3, 4), Z3E_OK);
    assert_int_equal(embed_grad(t, &none, &out, &w, 3, 4, true), Z3E_OK);
    assert_true(get(&w, 0) != 0);
    assert_int_equal(embed_grad(t, &none, &out, &w, 3, 4, false), Z3E_OK);
    for (int64_t i = 0; i < 12; i++) assert_true(get(&w, i) == 0);
    assert_int_equal(embed(t, &ids, &out, &out, 3, 0), Z3E_OK);      /* rows of no elements */
    assert_int_equal(embed_grad(t, &ids, &out, &out, 3, 0, false), Z3E_OK);
  }
}

static void wants_message(const char *want)
{
  if (strstr(z3_last_error(), want) == NULL) fail_msg("message is \"%s\", wants \"%s\" in it", z3_last_error(), want);
}

static void test_bad_ids(void **state)
{
  (void)state;
  EACH_TABLE(t)
    for (int i = 0; i < 2; i++) {
      buf ids = buf_ids(i ? Z3T_I32 : Z3T_I64, 6, 1, 3), w = buf_rnd(Z3T_F32, 12, 1, 1, 0), out = buf_new(Z3T_F32, 24);
      buf untouched = buf_new(Z3T_F32, 24);
      set(&ids, 4, i ? -1 : 3);
      assert_int_equal(embed(t, &ids, &w, &out, 3, 4), Z3E_ARG);
      wants_message(i ? "embedding: id at [0,4] is -1, wants 0 to 2" : "embedding: id at [0,4] is 3, wants 0 to 2");
      assert_true(same_bits(&out, &untouched));
    }
}

/* ---- index_select and gather: any dtype, any dim ---- */
static int pick(const z3i_isa_table *t, int op, int dim, z3i_view x, z3i_view ids, z3i_view out, bool backward,
                bool add)
{
  z3_attr attr = { .i = { dim } };
  z3i_call c = { .op = op, .attr = &attr, .dev = device(), .gin_add = add };
  c.in[0] = backward ? bare(x) : x;
  c.in[1] = ids;
  if (!backward) c.out[0] = out;
  else {
    c.gout[0] = out;
    c.gin[0] = x;
  }
  return backward ? t->backward[op](&c) : t->forward[op](&c);
}

/* Where element `flat` of out comes from: the same index with the id in place of dim's. */
static int64_t source(int op, int dim, const z3i_view *x, const buf *id, const z3i_view *out, int64_t flat)
{
  int64_t at = 0, rest = flat;
  for (int d = out->ndim - 1; d >= 0; d--) {
    int64_t index = rest % out->shape[d];
    rest /= out->shape[d];
    if (d == dim) index = (int64_t)get(id, op == Z3OP_gather ? flat : index);
    at += index * x->stride[d];
  }
  return at;
}

static void check_pick(const z3i_isa_table *t, int op, int dim, int dtype, int ndim, const int64_t *shape, int64_t N,
                       bool smaller)
{
  int64_t out_shape[4], n = 1, out_n = 1;
  for (int d = 0; d < ndim; d++) {
    out_shape[d] = d == dim ? N : shape[d] - (smaller && shape[d] > 1);
    n *= shape[d];
    out_n *= out_shape[d];
  }
  buf x = buf_rnd(dtype, n, 3, 30, 40), out = buf_new(dtype, out_n);
  buf id = buf_ids(Z3T_I64, op == Z3OP_gather ? out_n : N, 4, shape[dim]);
  z3i_view xv = view(&x, ndim, shape), ov = view(&out, ndim, out_shape);
  z3i_view iv = op == Z3OP_gather ? view(&id, ndim, out_shape) : VIEW(&id, N);
  assert_int_equal(pick(t, op, dim, xv, iv, ov, false, false), Z3E_OK);
  for (int64_t i = 0; i < out_n; i++) assert_true(get(&out, i) == get(&x, source(op, dim, &xv, &id, &ov, i)));
  if (!z3i_dtype_float(dtype)) return;
  buf g = buf_rnd(dtype, out_n, 5, 1, 0), before = buf_rnd(dtype, n, 6, 1, 0);
  float *sum = keep_zero((size_t)n * sizeof *sum);
  for (int64_t i = 0; i < out_n; i++) sum[source(op, dim, &xv, &id, &ov, i)] += (float)get(&g, i);
  for (int add = 0; add < 2; add++)
    for (int threads = 1; threads <= 2; threads++) {
      buf gx = buf_rnd(dtype, n, 6, 1, 0), want = buf_new(dtype, n);
      for (int64_t i = 0; i < n; i++) set(&want, i, (double)(add ? (float)get(&before, i) + sum[i] : sum[i]));
      omp_set_num_threads(threads);
      assert_int_equal(pick(t, op, dim, view(&gx, ndim, shape), iv, view(&g, ndim, out_shape), true, add), Z3E_OK);
      for (int64_t i = 0; i < n; i++) assert_true(get(&gx, i) == get(&want, i));
    }
  assert_no_scratch();
}

static void test_index(void **state)
{
  static const int64_t shapes3[][3] = { { 5, 4, 7 }, { 1, 1, 1 }, { 3, 9, 17 }, { 40, 30, 50 } };
  static const int all[] = { Z3T_F32, Z3T_BF16, Z3T_F16, Z3T_I32, Z3T_I64, Z3T_U8 };
  EACH_TABLE(t)
    for (int d = 0; d < LEN(all); d++)
      for (int i = 0; i < LEN(shapes3); i++)
        for (int dim = 0; dim < 3; dim++)
          for (int64_t N = 1; N < 30; N += 13) {
            if (i == LEN(shapes3) - 1 && (d > 1 || N != 14)) continue;   /* the one that runs on two threads */
            check_pick(t, Z3OP_index_select, dim, all[d], 3, shapes3[i], N, false);
            check_pick(t, Z3OP_gather, dim, all[d], 3, shapes3[i], N, false);
            check_pick(t, Z3OP_gather, dim, all[d], 3, shapes3[i], N, true);
            drop_all(state);
          }
}

static void test_index_one_dim(void **state)
{
  (void)state;
  static const int64_t shape[] = { 11 };
  EACH_TABLE(t) {
    check_pick(t, Z3OP_index_select, 0, Z3T_F32, 1, shape, 25, false);
    check_pick(t, Z3OP_gather, 0, Z3T_BF16, 1, shape, 25, false);
    buf x = buf_rnd(Z3T_F32, 12, 1, 1, 0), none = buf_new(Z3T_I64, 0), out = buf_new(Z3T_F32, 0);
    for (int op = 0; op < 2; op++) {
      const int which = op ? Z3OP_gather : Z3OP_index_select;
      z3i_view iv = op ? VIEW(&none, 3, 0) : VIEW(&none, 0);
      assert_int_equal(pick(t, which, 1, VIEW(&x, 3, 4), iv, VIEW(&out, 3, 0), false, false), Z3E_OK);
      assert_int_equal(pick(t, which, 1, VIEW(&x, 3, 4), iv, VIEW(&out, 3, 0), true, true), Z3E_OK);
      assert_true(get(&x, 11) != 0);
      assert_int_equal(pick(t, which, 1, VIEW(&x, 3, 4), iv, VIEW(&out, 3, 0), true, false), Z3E_OK);
      for (int64_t i = 0; i < 12; i++) assert_true(get(&x, i) == 0);
      x = buf_rnd(Z3T_F32, 12, 1, 1, 0);
    }
  }
}

static void test_index_errors(void **state)
{
  (void)state;
  EACH_TABLE(t) {
    buf x = buf_rnd(Z3T_F32, 12, 1, 1, 0), id = buf_ids(Z3T_I32, 6, 1, 3);
    buf out = buf_new(Z3T_F32, 12), untouched = buf_new(Z3T_F32, 12);
    set(&id, 5, 4);
    assert_int_equal(pick(t, Z3OP_gather, 1, VIEW(&x, 3, 4), VIEW(&id, 3, 2), VIEW(&out, 3, 2), false, false), Z3E_ARG);
    wants_message("gather: id at [2,1] is 4, wants 0 to 3");
    id.n = 3;
    set(&id, 1, -2);
    assert_int_equal(pick(t, Z3OP_index_select, 1, VIEW(&x, 3, 4), VIEW(&id, 3), VIEW(&out, 3, 3), false, false),
                     Z3E_ARG);
    wants_message("index_select: id at [1] is -2, wants 0 to 3");
    assert_true(same_bits(&out, &untouched));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    TEST(test_embedding), TEST(test_add_and_threads), TEST(test_many_rows), TEST(test_empty), TEST(test_bad_ids),
    TEST(test_index), TEST(test_index_one_dim), TEST(test_index_errors),
  };
  return cmocka_run_group_tests_name("device/embed", tests, NULL, NULL);
}
