/* test_device_matmul.c -- matmul and linear with their gradients against plain double loops: views of any strides,
 * repeated batches, zero sizes, bias, adding, gradients that nobody wants, memory. */
#include "device/cpu/cpu_kernels.h"
#include "products.h"

static const int types[3] = { Z3T_F32, Z3T_BF16, Z3T_F16 };

/* Element of a view by its flat index. */
static double view_at(const z3i_view *v, int64_t flat)
{
  int64_t at = 0;
  for (int d = v->ndim - 1; d >= 0; d--) {
    at += flat % v->shape[d] * v->stride[d];
    flat /= v->shape[d];
  }
  return (double)number_get(v->data, v->dtype, at);
}

static void compare(const z3i_view *got, const double *want, const double *size, const char *what)
{
  for (int64_t i = 0; i < z3i_view_numel(got); i++)
    close_to(view_at(got, i), want[i], 4e-7 * (size[i] + 1) + 1.01 * rounding(got->dtype) * fabs(want[i]), what, i);
}

/* ---- matmul ------------------------------------------------------------------------------------------ */
typedef struct operand {
  const char *order;                              /* of the dims in memory (products.h) */
  int64_t pad;
  const char *repeat;                             /* 'r' at a batch dim that is repeated (stride 0) */
} operand;

typedef struct problem {
  int64_t b0, b1, m, k, n;
  operand a, b;
  int dtype, grad_dtype;
  uint32_t add;
} problem;

static block operand_new(const operand *o, int dtype, const int64_t shape[4])
{
  int64_t own[4];
  memcpy(own, shape, sizeof own);
  for (int d = 0; d < 2; d++)
    if (o->repeat != NULL && o->repeat[d] == 'r') own[d] = 1;
  block b = block_new(dtype, o->order, o->pad, true, 4, own);
  for (int d = 0; d < 2; d++)
    if (o->repeat != NULL && o->repeat[d] == 'r') {
      b.v.shape[d] = shape[d];
      b.v.stride[d] = 0;
    }
  return b;
}

typedef struct sums {
  double *value, *size;                           /* the result, and the sum of absolute terms */
} sums;
static sums sums_new(int64_t n) { return (sums){ calloc((size_t)n + 1, 8), calloc((size_t)n + 1, 8) }; }
static void sums_add(sums *s, int64_t i, double term)
{
  s->value[i] += term;
  s->size[i] += fabs(term);
}
static void sums_free(sums *s)
{
  free(s->value); free(s->size);
}
static void sums_start(sums *s, const block *before)
{
  for (int64_t i = 0; i < z3i_view_numel(&before->v); i++) s->value[i] = view_at(&before->v, i);
}

static void run(problem p)
{
  const int64_t sa[4] = { p.b0, p.b1, p.m, p.k }, sb[4] = { p.b0, p.b1, p.k, p.n }, sc[4] = { p.b0, p.b1, p.m, p.n };
  block a = operand_new(&p.a, p.dtype, sa), b = operand_new(&p.b, p.dtype, sb);
  block c = block_new(p.dtype, NULL, 0, true, 4, sc), dc = block_new(p.dtype, NULL, 0, true, 4, sc);
  block da = block_new(p.grad_dtype, NULL, 0, true, 4, sa), db = block_new(p.grad_dtype, NULL, 0, true, 4, sb);
  sums want_c = sums_new(c.count), want_a = sums_new(da.count), want_b = sums_new(db.count);
  if (p.add & 1) sums_start(&want_a, &da);
  if (p.add & 2) sums_start(&want_b, &db);
  for (int64_t r = 0; r < p.b0 * p.b1 * p.m * p.n; r++) {
    int64_t j = r % p.n, i = r / p.n % p.m, batch = r / p.n / p.m;
    for (int64_t k = 0; k < p.k; k++) {
      int64_t at_a = (batch * p.m + i) * p.k + k, at_b = (batch * p.k + k) * p.n + j;
      double x = view_at(&a.v, at_a), y = view_at(&b.v, at_b), g = view_at(&dc.v, r);
      sums_add(&want_c, r, x * y);
      sums_add(&want_a, at_a, g * y);
      sums_add(&want_b, at_b, g * x);
    }
  }
  z3i_call call = { .op = Z3OP_matmul, .dev = &dev, .in = { a.v, b.v }, .out = { c.v }, .gout = { dc.v },
                    .gin = { da.v, db.v }, .gin_add = p.add };
  CHECK_OK(z3i_cpu_matmul_fwd(&call));
  compare(&c.v, want_c.value, want_c.size, "a b");
  CHECK_OK(z3i_cpu_matmul_bwd(&call));
  compare(&da.v, want_a.value, want_a.size, "da");
  compare(&db.v, want_b.value, want_b.size, "db");
  sums_free(&want_c); sums_free(&want_a); sums_free(&want_b);
  block *all[] = { &a, &b, &c, &dc, &da, &db };
  for (int i = 0; i < 6; i++) block_free(all[i]);
}

static void test_matmul_strides(void **state)
{
  (void)state;
  /* plain, transposed, heads side by side, padded, no contiguous dim, batches exchanged */
  static const operand forms[] = { { 0 }, { .order = "0132" }, { .order = "0213" }, { .pad = 5 }, { .order = "2301" },
                                   { .order = "1032", .pad = 3 } };
  for (size_t i = 0; i < 6; i++)
    for (size_t j = 0; j < 6; j++)
      run((problem){ .b0 = 2, .b1 = 3, .m = 17, .k = 9, .n = 12, .a = forms[i], .b = forms[j],
                     .dtype = types[(i + j) % 3], .grad_dtype = j & 1 ? Z3T_F32 : types[(i + j) % 3],
                     .add = (uint32_t)(i & 3) });
}

static void test_matmul_sizes(void **state)
{
  (void)state;
  static const int64_t sizes[][3] = { { 1, 1, 1 }, { 3, 1, 17 }, { 1, 65, 3 }, { 65, 17, 1 }, { 130, 65, 33 } };
  for (size_t s = 0; s < 5; s++)
    for (int t = 0; t < 3; t++)
      run((problem){ .b0 = 1, .b1 = 1 + (s == 1), .m = sizes[s][0], .k = sizes[s][1], .n = sizes[s][2],
                     .dtype = types[t], .grad_dtype = types[t] });
}

static void test_matmul_repeated_batches(void **state)
{
  (void)state;
  static const char *const repeats[] = { "rr", "r-", "-r", "--" };
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++)
      run((problem){ .b0 = 3, .b1 = 2, .m = 5, .k = 7, .n = 6, .dtype = types[i % 3], .grad_dtype = Z3T_F32,
                     .a = { .repeat = repeats[i], .order = i == 2 ? "2301" : NULL },
                     .b = { .repeat = repeats[j], .order = j == 1 ? "0132" : NULL } });
}

static void test_matmul_zero_sizes(void **state)
{
  (void)state;
  for (int zero = 0; zero < 5; zero++)
    for (uint32_t add = 0; add < 4; add += 3) {
      int64_t s[5] = { 2, 3, 4, 5, 6 };
      s[zero] = 0;
      run((problem){ .b0 = s[0], .b1 = s[1], .m = s[2], .k = s[3], .n = s[4], .a = { .order = "2301" },
                     .dtype = Z3T_BF16, .grad_dtype = Z3T_F32, .add = add });
    }
}

/* ---- linear ------------------------------------------------------------------------------------------ */
typedef struct layer {
  int64_t b, t, k, n;                             /* x (b,t,k) */
  int layout;
  bool bias;
  int64_t x_pad, w_pad;
  const char *x_order;
  int dtype, grad_dtype;
  uint32_t add;
  int unwanted;                                   /* an input without gradient, or -1 */
} layer;

static void run_linear(layer p)
{
  int64_t sw[2] = { p.layout ? p.k : p.n, p.layout ? p.n : p.k };
  block x = block_new(p.dtype, p.x_order, p.x_pad, true, SHAPE(p.b, p.t, p.k));
  block w = block_new(p.dtype, NULL, p.w_pad, true, 2, sw), bias = block_new(p.dtype, NULL, 0, true, SHAPE(p.n));
  block y = block_new(p.dtype, NULL, 0, true, SHAPE(p.b, p.t, p.n));
  block dy = block_new(p.dtype, NULL, 0, true, SHAPE(p.b, p.t, p.n)), grad[3];
  grad[0] = block_new(p.grad_dtype, NULL, 0, true, SHAPE(p.b, p.t, p.k));
  grad[1] = block_new(p.grad_dtype, NULL, 0, true, 2, sw);
  grad[2] = block_new(p.grad_dtype, NULL, 0, true, SHAPE(p.n));
  sums want = sums_new(y.count), want_grad[3];
  for (int i = 0; i < 3; i++) {
    want_grad[i] = sums_new(grad[i].count);
    if ((p.add >> i) & 1) sums_start(&want_grad[i], &grad[i]);
  }
  for (int64_t r = 0; r < p.b * p.t * p.n; r++) {
    int64_t row = r / p.n, j = r % p.n;
    double g = view_at(&dy.v, r);
    if (p.bias) sums_add(&want, r, view_at(&bias.v, j));
    sums_add(&want_grad[2], j, g);
    for (int64_t k = 0; k < p.k; k++) {
      int64_t at_w = p.layout ? k * p.n + j : j * p.k + k, at_x = row * p.k + k;
      sums_add(&want, r, view_at(&x.v, at_x) * view_at(&w.v, at_w));
      sums_add(&want_grad[0], at_x, g * view_at(&w.v, at_w));
      sums_add(&want_grad[1], at_w, g * view_at(&x.v, at_x));
    }
  }
  z3_attr attr = { .i = { p.layout } };
  z3i_call call = { .op = Z3OP_linear, .attr = &attr, .dev = &dev, .in = { x.v, w.v }, .out = { y.v }, .gout = { dy.v },
                    .gin_add = p.add };
  if (p.bias) call.in[2] = bias.v;
  for (int i = 0; i < 3; i++) {
    bool none = i == p.unwanted || (i == 2 && !p.bias);
    call.gin[i] = none ? without_data(grad[i].v) : grad[i].v;
  }
  CHECK_OK(z3i_cpu_linear_fwd(&call));
  compare(&y.v, want.value, want.size, "y");
  /* Backward sees only what op.def saves: x and w, and of those only what the wanted gradients need. */
  call.in[2] = without_data(call.in[2]);
  if (p.unwanted == 0) call.in[1] = without_data(call.in[1]);
  if (p.unwanted == 1) call.in[0] = without_data(call.in[0]);
  CHECK_OK(z3i_cpu_linear_bwd(&call));
  static const char *const names[3] = { "dx", "dw", "db" };
  for (int i = 0; i < 3; i++)
    if (call.gin[i].data != NULL) compare(&grad[i].v, want_grad[i].value, want_grad[i].size, names[i]);
  sums_free(&want);
  block *all[] = { &x, &w, &bias, &y, &dy, &grad[0], &grad[1], &grad[2] };
  for (int i = 0; i < 8; i++) block_free(all[i]);
  for (int i = 0; i < 3; i++) sums_free(&want_grad[i]);
}

static void test_linear_layouts_and_strides(void **state)
{
  (void)state;
  static const char *const orders[] = { NULL, "102", "021" };
  for (int form = 0; form < 24; form++)
    run_linear((layer){ .b = 2, .t = 17, .k = 20, .n = 33, .layout = form & 1, .bias = form & 2,
                        .x_pad = form & 4 ? 3 : 0, .w_pad = form & 1 ? 5 : 0, .x_order = orders[form % 3],
                        .dtype = types[form / 8],
                        .grad_dtype = form & 2 ? Z3T_F32 : types[form / 8], .add = (uint32_t)(form % 8),
                        .unwanted = form % 5 - 2 });
}

static void test_linear_sizes(void **state)
{
  (void)state;
  static const int64_t sizes[][3] = { { 1, 1, 1 }, { 3, 65, 1 }, { 1, 17, 130 }, { 130, 1, 65 }, { 300, 65, 260 } };
  for (size_t s = 0; s < 5; s++)
    for (int t = 0; t < 3; t++)
      run_linear((layer){ .b = 1, .t = sizes[s][0], .k = sizes[s][1], .n = sizes[s][2], .bias = true, .dtype = types[t],
                          .grad_dtype = types[t], .unwanted = -1 });
}

static void test_linear_zero_sizes(void **state)
{
  (void)state;
  for (int zero = 0; zero < 3; zero++)
    for (int layout = 0; layout < 2; layout++)
      for (uint32_t add = 0; add < 8; add += 7)
        run_linear((layer){ .b = 2, .t = zero == 0 ? 0 : 3, .k = zero == 1 ? 0 : 4, .n = zero == 2 ? 0 : 5,
                            .layout = layout, .bias = true, .dtype = Z3T_F32, .grad_dtype = Z3T_F32, .add = add,
                            .unwanted = -1 });
}

static void test_matmul_and_linear_out_of_memory(void **state)
{
  (void)state;
  block a = block_new(Z3T_BF16, "10", 0, true, SHAPE(70, 80));
  block t = block_new(Z3T_BF16, "2301", 0, true, SHAPE(2, 2, 70, 80));
  block b = block_new(Z3T_BF16, NULL, 0, true, SHAPE(80, 60));
  block c = block_new(Z3T_BF16, NULL, 0, true, SHAPE(2, 2, 70, 60));
  block db = block_new(Z3T_F32, NULL, 0, true, SHAPE(2, 2, 80, 60));
  block gx = block_new(Z3T_F32, NULL, 0, true, SHAPE(70, 80)), dy = block_new(Z3T_BF16, NULL, 0, true, SHAPE(70, 60));
  z3i_view b4 = { .data = b.memory, .dtype = Z3T_BF16, .ndim = 4, .shape = { 2, 2, 80, 60 }, .stride = { 0, 0, 60,
                                                                                                         1 } };
  z3i_call call = { .op = Z3OP_matmul, .dev = &dev, .in = { t.v, b4 }, .out = { c.v }, .gout = { c.v },
                    .gin = { { 0 }, db.v }, .gin_add = 2 };
  assert_true(out_of_memory_sweep(z3i_cpu_matmul_fwd, &call) > 0);
  assert_true(out_of_memory_sweep(z3i_cpu_matmul_bwd, &call) > 0);
  z3_attr attr = { .i = { 1 } };
  z3i_call linear = { .op = Z3OP_linear, .attr = &attr, .dev = &dev, .in = { a.v, b.v }, .out = { c.v },
                      .gout = { dy.v }, .gin = { gx.v }, .gin_add = 1 };
  assert_true(out_of_memory_sweep(z3i_cpu_linear_fwd, &linear) > 0);
  assert_true(out_of_memory_sweep(z3i_cpu_linear_bwd, &linear) > 0);
  block *all[] = { &a, &t, &b, &c, &db, &gx, &dy };
  for (int i = 0; i < 7; i++) block_free(all[i]);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_matmul_strides, setup, teardown),
    cmocka_unit_test_setup_teardown(test_matmul_sizes, setup, teardown),
    cmocka_unit_test_setup_teardown(test_matmul_repeated_batches, setup, teardown),
    cmocka_unit_test_setup_teardown(test_matmul_zero_sizes, setup, teardown),
    cmocka_unit_test_setup_teardown(test_linear_layouts_and_strides, setup, teardown),
    cmocka_unit_test_setup_teardown(test_linear_sizes, setup, teardown),
    cmocka_unit_test_setup_teardown(test_linear_zero_sizes, setup, teardown),
    cmocka_unit_test_setup_teardown(test_matmul_and_linear_out_of_memory, setup, teardown),
  };
  return cmocka_run_group_tests_name("device_matmul", tests, NULL, NULL);
}
