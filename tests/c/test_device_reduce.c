/* test_device_reduce.c -- reductions, extremes and squares of every table against plain loops. */
#include "elem_refs.h"

/* ---- a reference for any mask: the elements that each output reduces, in order -------------------------------- */
typedef struct groups {
  int64_t k, r;
  double *x;                                    /* (k, r) */
  int64_t *index;                               /* (k, r): row-major index of each element in the input */
} groups;

static bool reduced(int64_t mask, int d) { return mask == 0 || (mask >> d & 1); }

static groups split(const z3i_view *v, int64_t mask)
{
  int64_t n = z3i_view_numel(v);
  groups g = { 1, 1, zeros(n), keep((size_t)n * sizeof(int64_t)) };
  for (int d = 0; d < v->ndim; d++) *(reduced(mask, d) ? &g.r : &g.k) *= v->shape[d];
  for (int64_t i = 0; i < n; i++) {
    int64_t rest = i, o = 0, e = 0, o_unit = 1, e_unit = 1;
    for (int d = v->ndim - 1; d >= 0; d--) {
      int64_t at_d = rest % v->shape[d];
      rest /= v->shape[d];
      if (reduced(mask, d)) e += at_d * e_unit, e_unit *= v->shape[d];
      else o += at_d * o_unit, o_unit *= v->shape[d];
    }
    g.x[o * g.r + e] = at(v, i);
    g.index[o * g.r + e] = i;
  }
  return g;
}

static double mean_of(const double *x, int64_t r)
{
  double sum = 0;
  for (int64_t i = 0; i < r; i++) sum += x[i];
  return sum / (double)r;
}
static double ref(int op, const double *x, int64_t r, int64_t correction)
{
  double mean = mean_of(x, r), sum = 0;
  if (op != Z3OP_var) return op == Z3OP_mean ? mean : r == 0 ? 0 : mean * (double)r;
  for (int64_t i = 0; i < r; i++) sum += (x[i] - mean) * (x[i] - mean);
  return sum / fmax(0, (double)(r - correction));
}
static int64_t ref_position(const double *x, int64_t r, bool smallest)
{
  int64_t best = 0;
  for (int64_t i = 0; i < r; i++) {
    if (isnan(x[i])) return i;
    if (smallest ? x[i] < x[best] : x[i] > x[best]) best = i;
  }
  return best;
}

/* buf_rnd is thorough, and slow for this many; these are spread evenly. */
static buf even(int dtype, int64_t n, uint64_t seed, double offset)
{
  buf b = buf_new(dtype, n);
  for (int64_t i = 0; i < n; i++)
    set(&b, i, offset + (double)(z3i_mix(seed, (uint64_t)i) >> 40) * 0x3p-24 - 1.5);
  return b;
}

/* Shapes that take each way through the kernels: along rows, along columns, in parts, short, long, empty. */
typedef struct shape_case {
  int ndim;
  int64_t shape[4], mask;
} shape_case;
static const shape_case cases[] = {
  { 1, { 1 }, 0 },          { 1, { 70 }, 0 },         { 1, { 40001 }, 0 },       { 2, { 5, 33 }, 2 },
  { 2, { 33, 5 }, 1 },      { 2, { 300, 40 }, 1 },    { 2, { 3, 11000 }, 2 },    { 2, { 11000, 3 }, 1 },
  { 2, { 2500, 20 }, 1 },   { 2, { 9000, 3 }, 2 },   { 3, { 4, 50, 17 }, 5 },   { 3, { 4, 50, 17 }, 2 },
  { 3, { 2, 50, 600 }, 3 }, { 4, { 3, 4, 5, 6 }, 10 }, { 4, { 3, 4, 5, 6 }, 5 }, { 2, { 0, 4 }, 1 },
  { 2, { 4, 0 }, 1 },       { 3, { 2, 1, 9 }, 2 },    { 0, { 0 }, 0 },           { 2, { 500, 7 }, 1 },
};

/* The view of a case over a buffer; transposed: dims in reverse order in memory. */
static z3i_view view_of(const buf *b, const shape_case *s, bool transposed)
{
  z3i_view v = view(b, s->ndim, s->shape);
  int64_t stride = 1;
  for (int d = 0; transposed && d < s->ndim; d++) {
    v.stride[d] = stride;
    stride *= s->shape[d];
  }
  return v;
}
static int64_t numel(const shape_case *s)
{
  int64_t n = 1;
  for (int d = 0; d < s->ndim; d++) n *= s->shape[d];
  return n;
}

/* ---- sum, mean, var -------------------------------------------------------------------------------------------- */
static const int sums[] = { Z3OP_sum, Z3OP_mean, Z3OP_var };
static const int floats[] = { Z3T_F32, Z3T_BF16, Z3T_F16 };

static void check_sums(const z3i_isa_table *t, const shape_case *s, int op, int dtype, bool transposed)
{
  buf x = even(dtype, numel(s), 3, op == Z3OP_var ? 30 : 0.5);
  z3i_view in = view_of(&x, s, transposed);
  groups g = split(&in, s->mask);
  buf y = buf_new(dtype, g.k);
  z3_attr attr = { .i = { s->mask, 0, 1 } };
  z3i_call c = { .op = op, .attr = &attr, .dev = device(), .in = { in }, .out = { VIEW(&y, g.k) } };
  assert_int_equal(t->forward[op](&c), Z3E_OK);
  for (int64_t o = 0; o < g.k; o++) {
    double want = ref(op, g.x + o * g.r, g.r, 1), scale = op == Z3OP_sum ? sqrt((double)g.r) : 1;
    if (fabs(want) > 60000 && dtype == Z3T_F16) continue;
    if (!near(get(&y, o), want, 4e-7 * scale, 1.01 * rounding(dtype) + 2e-6))
      fail_msg("%s of case %d, output %" PRId64 ", is %.9g, wants %.9g (%s, transposed %d, %s)", z3_op_name(op),
               (int)(s - cases), o, get(&y, o), want, z3_dtype_name(dtype), transposed, t->name);
  }
}

static void test_device_reduce_sums(void **state)
{
  (void)state;
  EACH_TABLE(t)
  for (int k = 0; k < LEN(cases); k++)
    for (int op = 0; op < LEN(sums); op++)
      for (int d = 0; d < LEN(floats); d++)
        for (int transposed = 0; transposed < 2; transposed++) {
          if (d > 0 && numel(&cases[k]) > 35000) continue;
          check_sums(t, &cases[k], sums[op], floats[d], transposed);
          drop_all(NULL);
        }
}

/* Gradients in closed form: 1, 1/R, 2 (x - mean) / (R - 1). The result's gradient comes without the reduced dims, with
 * them of size 1, or repeated. */
static void check_sums_backward(const z3i_isa_table *t, const shape_case *s, int op, int dtype, int form, bool add)
{
  int64_t n = numel(s);
  buf x = even(dtype, n, 3, 2), gx = even(Z3T_F32, n, 4, 0);
  double *before = doubles(&gx);
  z3i_view in = view_of(&x, s, form == 1), gin = view_of(&gx, s, false), gv = { .ndim = 0 };
  groups g = split(&in, s->mask), places = split(&gin, s->mask);
  buf go = buf_rnd(dtype, g.k, 5, 1, 0);
  int64_t stride = 1;
  for (int d = s->ndim - 1; d >= 0; d--) gv.ndim += form > 0 || !reduced(s->mask, d);
  for (int d = s->ndim - 1, to = gv.ndim - 1; d >= 0; d--) {
    bool gone = reduced(s->mask, d);
    if (gone && form == 0) continue;
    gv.shape[to] = gone && form == 1 ? 1 : s->shape[d];
    gv.stride[to--] = gone ? form == 1 ? 1 : 0 : stride;
    if (!gone) stride *= s->shape[d];
  }
  gv.data = go.data;
  gv.dtype = dtype;
  z3_attr attr = { .i = { s->mask, form == 1, 1 } };
  z3i_call c = {
    .op = op, .attr = &attr, .dev = device(), .in = { in }, .gout = { gv }, .gin = { gin }, .gin_add = add
  };
  assert_int_equal(t->backward[op](&c), Z3E_OK);
  for (int64_t o = 0; o < g.k; o++)
    for (int64_t e = 0; e < g.r; e++) {
      double mean = mean_of(g.x + o * g.r, g.r), want = get(&go, o);
      if (op == Z3OP_mean) want /= (double)g.r;
      if (op == Z3OP_var) want *= 2 * (g.x[o * g.r + e] - mean) / fmax(0, (double)(g.r - 1));
      int64_t i = places.index[o * g.r + e];
      if (isnan(want) && g.r == 1) continue;
      assert_near(get(&gx, i), want + (add ? before[i] : 0), 2e-6, 4e-6);
      if (g.r > 100) e += g.r / 50;
    }
}

static void test_device_reduce_sums_backward(void **state)
{
  (void)state;
  EACH_TABLE(t)
  for (int k = 0; k < LEN(cases); k++)
    for (int op = 0; op < LEN(sums); op++)
      for (int form = 0; form < 3; form++)
        for (int add = 0; add < 2 && numel(&cases[k]) < 35000; add++) {
          check_sums_backward(t, &cases[k], sums[op], form == 2 ? Z3T_BF16 : Z3T_F32, form, add);
          drop_all(NULL);
        }
}

static void test_device_reduce_keeps_precision(void **state)
{
  (void)state;
  enum { N = 1 << 20 };
  EACH_TABLE(t) {
    buf x = buf_new(Z3T_F32, N), y = buf_new(Z3T_F32, 1);
    for (int64_t i = 0; i < N; i++) set(&x, i, 0.1);
    z3_attr attr = { .i = { 0, 0, 0 } };
    z3i_call c = { .op = Z3OP_sum, .attr = &attr, .in = { VIEW(&x, N) }, .out = { VIEW(&y, 1) } };
    assert_int_equal(t->forward[Z3OP_sum](&c), Z3E_OK);
    assert_near(get(&y, 0), N * (double)0.1f, 0, 5e-7);
    /* A mean far above the spread: one pass of squares would leave nothing. */
    for (int64_t i = 0; i < N; i++) set(&x, i, i & 1 ? 10001 : 10000);
    c.op = Z3OP_var;
    assert_int_equal(t->forward[Z3OP_var](&c), Z3E_OK);
    assert_near(get(&y, 0), 0.25, 0, 1e-6);
    drop_all(NULL);
  }
}

static void test_device_reduce_empty_and_single(void **state)
{
  (void)state;
  EACH_TABLE(t) {
    buf x = buf_new(Z3T_F32, 1), y = buf_new(Z3T_F32, 1);
    static const struct { int op; int64_t n, correction; double want; } few[] = {
      { Z3OP_sum, 0, 0, 0 },   { Z3OP_mean, 0, 0, NAN }, { Z3OP_var, 0, 0, NAN },
      { Z3OP_var, 1, 1, NAN }, { Z3OP_var, 1, 0, 0 },    { Z3OP_mean, 1, 0, 3 },
    };
    set(&x, 0, 3);
    for (int k = 0; k < LEN(few); k++) {
      z3_attr attr = { .i = { 1, 0, few[k].correction } };
      z3i_call c = { .op = few[k].op, .attr = &attr, .in = { VIEW(&x, few[k].n) }, .out = { view(&y, 0, NULL) } };
      assert_int_equal(t->forward[few[k].op](&c), Z3E_OK);
      assert_near(get(&y, 0), few[k].want, 0, 0);
    }
    drop_all(NULL);
  }
}

static void test_device_reduce_integers(void **state)
{
  (void)state;
  static const int dtypes[] = { Z3T_U8, Z3T_I32, Z3T_I64 };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(cases); k++)
    for (int d = 0; d < LEN(dtypes); d++)
      for (int transposed = 0; transposed < 2; transposed++) {
        buf x = buf_ids(dtypes[d], numel(&cases[k]), 9, 200);
        z3i_view in = view_of(&x, &cases[k], transposed);
        groups g = split(&in, cases[k].mask);
        buf y = buf_new(Z3T_I64, g.k);
        z3_attr attr = { .i = { cases[k].mask } };
        z3i_call c = { .op = Z3OP_sum, .attr = &attr, .in = { in }, .out = { VIEW(&y, g.k) } };
        assert_int_equal(t->forward[Z3OP_sum](&c), Z3E_OK);
        for (int64_t o = 0; o < g.k; o++) assert_near(get(&y, o), ref(Z3OP_sum, g.x + o * g.r, g.r, 0), 0, 1e-12);
        drop_all(NULL);
      }
}

/* ---- max, min, argmax -------------------------------------------------------------------------------------------- */
static void check_extremes(const z3i_isa_table *t, const shape_case *s, int dtype, bool transposed, bool nans)
{
  static const int ops[] = { Z3OP_max, Z3OP_min, Z3OP_argmax };
  int64_t n = numel(s);
  buf x = buf_ids(dtype, n, 9, 50);             /* many ties */
  for (int64_t i = 0; nans && i < n; i += 37) set(&x, i, NAN);
  z3i_view in = view_of(&x, s, transposed);
  groups g = split(&in, s->mask);
  if (g.r == 0) return;
  for (int k = 0; k < LEN(ops); k++) {
    buf y = buf_new(dtype, g.k), p = buf_new(Z3T_I64, g.k), go = even(Z3T_F32, g.k, 1, 0), gx = buf_new(Z3T_F32, n);
    z3_attr attr = { .i = { s->mask } };
    z3i_call c = { .op = ops[k], .attr = &attr, .in = { in }, .out = { VIEW(&y, g.k) }, .aux = { VIEW(&p, g.k) } };
    if (ops[k] == Z3OP_argmax) c.out[0] = c.aux[0];
    assert_int_equal(t->forward[ops[k]](&c), Z3E_OK);
    for (int64_t o = 0; o < g.k; o++) {
      int64_t want = ref_position(g.x + o * g.r, g.r, ops[k] == Z3OP_min);
      assert_int_equal((int64_t)get(&p, o), want);
      if (ops[k] != Z3OP_argmax) assert_near(get(&y, o), g.x[o * g.r + want], 0, 0);
    }
    if (ops[k] == Z3OP_argmax || !z3i_dtype_float(dtype)) continue;
    for (int add = 0; add < 2; add++) {
      z3i_view gin = view_of(&gx, s, false);
      groups places = split(&gin, s->mask);
      c.gout[0] = VIEW(&go, g.k);
      c.gin[0] = gin;
      c.gin_add = (uint32_t)add;
      assert_int_equal(t->backward[ops[k]](&c), Z3E_OK);
      for (int64_t o = 0; o < g.k; o++)
        for (int64_t e = 0; e < g.r; e++)
          assert_near(get(&gx, places.index[o * g.r + e]), e == (int64_t)get(&p, o) ? (1 + add) * get(&go, o) : 0, 0,
                      0);
    }
  }
}

/* amax, amin: the values of max and min; equal parts of the gradient to all that equal them. */
static void check_shared(const z3i_isa_table *t, const shape_case *s, int op, bool transposed, bool nans)
{
  int64_t n = numel(s);
  buf x = buf_ids(Z3T_F32, n, 9, 50);
  for (int64_t i = 0; nans && i < n; i += 37) set(&x, i, NAN);
  z3i_view in = view_of(&x, s, transposed);
  groups g = split(&in, s->mask);
  if (g.r == 0) return;
  buf y = buf_new(Z3T_F32, g.k), go = even(Z3T_F32, g.k, 1, 0), gx = buf_new(Z3T_F32, n);
  z3_attr attr = { .i = { s->mask } };
  z3i_call c = { .op = op, .attr = &attr, .in = { in }, .out = { VIEW(&y, g.k) } };
  assert_int_equal(t->forward[op](&c), Z3E_OK);
  z3i_view gin = view_of(&gx, s, false);
  groups places = split(&gin, s->mask);
  c.gout[0] = VIEW(&go, g.k);
  c.gin[0] = gin;
  for (int add = 0; add < 2; add++) {
    c.gin_add = (uint32_t)add;
    assert_int_equal(t->backward[op](&c), Z3E_OK);
    for (int64_t o = 0; o < g.k; o++) {
      const double *row = g.x + o * g.r;
      double top = row[ref_position(row, g.r, op == Z3OP_amin)];
      int64_t count = 0;
      assert_near(get(&y, o), top, 0, 0);
      for (int64_t e = 0; e < g.r; e++) count += row[e] == top || row[e] != row[e];
      for (int64_t e = 0; e < g.r; e++) {
        bool hit = row[e] == top || row[e] != row[e];
        assert_near(get(&gx, places.index[o * g.r + e]), hit ? (1 + add) * get(&go, o) / (double)count : 0, 0, 1e-6);
      }
    }
  }
}

static void test_device_reduce_extremes(void **state)
{
  (void)state;
  static const int dtypes[] = { Z3T_F32, Z3T_BF16, Z3T_I64, Z3T_U8 };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(cases); k++)
    for (int d = 0; d < LEN(dtypes); d++)
      for (int i = 0; i < 4; i++) {
        if ((i & 2) && !z3i_dtype_float(dtypes[d])) continue;
        if (numel(&cases[k]) > 35000) continue;
        check_extremes(t, &cases[k], dtypes[d], i & 1, i & 2);
        if (d == 0) check_shared(t, &cases[k], Z3OP_amax, i & 1, i & 2);
        if (d == 0) check_shared(t, &cases[k], Z3OP_amin, i & 1, i & 2);
        drop_all(NULL);
      }
}

/* ---- squares, threads ----------------------------------------------------------------------------------------------
 */
static void test_device_reduce_squares(void **state)
{
  (void)state;
  static const int64_t counts[] = { 0, 1, 15, 16, 17, 2047, 2049, 131073, 300000 };
  EACH_TABLE(t)
  for (int k = 0; k < LEN(counts); k++)
    for (int d = 0; d < LEN(floats); d++) {
      int64_t n = counts[k], bad;
      buf x = even(floats[d], n, 5, 0);
      for (int64_t i = 0; i < n && floats[d] != Z3T_F16; i++) set(&x, i, 1e25 * get(&x, i));
      z3i_view v = VIEW(&x, n);
      double want = 0, got;
      for (int64_t i = 0; i < n; i++) want += get(&x, i) * get(&x, i);
      assert_int_equal(t->sumsq(&v, &got, &bad), Z3E_OK);
      assert_near(got, want, 0, 1e-12);
      assert_int_equal(bad, 0);
      if (n > 10) set(&x, 3, NAN), set(&x, n - 1, INFINITY), set(&x, n / 2, -INFINITY);
      assert_int_equal(t->sumsq(&v, &got, &bad), Z3E_OK);
      assert_int_equal(bad, n > 10 ? 3 : 0);
      drop_all(NULL);
    }
}

static void test_device_reduce_threads(void **state)
{
  (void)state;
  int before = omp_get_max_threads();
  EACH_TABLE(t)
  for (int k = 0; k < LEN(cases); k++) {
    buf x = even(Z3T_F32, numel(&cases[k]), 1, 0), y[2][3];
    double squares[2];
    for (int threads = 1; threads <= 2; threads++) {
      omp_set_num_threads(threads);
      z3i_view in = view_of(&x, &cases[k], false);
      int64_t outputs = split(&in, cases[k].mask).k, bad;
      for (int op = 0; op < LEN(sums); op++) {
        buf *out = &y[threads - 1][op];
        *out = buf_new(Z3T_F32, outputs);
        z3_attr attr = { .i = { cases[k].mask, 0, 1 } };
        z3i_call c = { .op = sums[op], .attr = &attr, .in = { in }, .out = { VIEW(out, outputs) } };
        assert_int_equal(t->forward[sums[op]](&c), Z3E_OK);
      }
      assert_int_equal(t->sumsq(&in, &squares[threads - 1], &bad), Z3E_OK);
    }
    for (int op = 0; op < LEN(sums); op++) assert_true(same_bits(&y[0][op], &y[1][op]));
    assert_true(squares[0] == squares[1]);
    drop_all(NULL);
  }
  omp_set_num_threads(before);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    TEST(test_device_reduce_sums), TEST(test_device_reduce_sums_backward), TEST(test_device_reduce_keeps_precision),
    TEST(test_device_reduce_empty_and_single), TEST(test_device_reduce_integers), TEST(test_device_reduce_extremes),
    TEST(test_device_reduce_squares), TEST(test_device_reduce_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
