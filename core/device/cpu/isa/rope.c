/* rope.c -- rotary position embedding, half-rotation form, forward and backward (the inverse rotation).
 * Dimension i pairs with i + D/2: y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin; the table's row p holds cos, then sin.
 * x, out and their gradients may have any strides with the last dim contiguous: heads usually lie as (B,T,H,D).
 * Legend: B batch, H heads, T time, D head size, P positions in the table. Source: Su et al. 2021 (RoFormer). */
#include "device/cpu/isa/isa_kernels.h"
#include "device/cpu/isa/rows.h"

typedef struct rope {
  const z3i_view *from, *to, *table, *positions;
  int64_t first, half, H, T;
  float sign;                                   /* of the sine: -1 turns back */
  bool add;
} rope;

static int64_t position(const rope *f, int64_t b, int64_t t)
{
  const z3i_view *p = f->positions;
  if (p->data == NULL) return f->first + t;
  int64_t at = b * p->stride[0] + t * p->stride[1];
  return p->dtype == Z3T_I32 ? ((const int32_t *)p->data)[at] : ((const int64_t *)p->data)[at];
}

#define ROTATE(LOAD, STORE)                                                                         \
  for (int64_t i = 0; i < half; i++) {                                                              \
    float c = table[i], s = sign * table[half + i], a = LOAD(x1[i]), b = LOAD(x2[i]);               \
    y1[i] = STORE(z3i_fmaf(-b, s, a * c));                                                          \
    y2[i] = STORE(z3i_fmaf(a, s, b * c));                                                           \
  }
static void rotate(float *restrict y1, float *restrict y2, const float *restrict x1, const float *restrict x2,
                   const float *restrict table, int64_t half, float sign)
{
  ROTATE(, )
}
/* bf16 without a detour through buffers: heads are short, so calls would cost more than the work. */
static void rotate_bf16(uint16_t *restrict y1, uint16_t *restrict y2, const uint16_t *restrict x1,
                        const uint16_t *restrict x2, const float *restrict table, int64_t half, float sign)
{
  ROTATE(z3i_bf16_to_f32, z3i_f32_to_bf16)
}

/* A head of any size and dtype: pairs in pieces. */
static void rotate_any(const rope *f, void *y, const void *x, const float *table)
{
  enum { W = 256 };
  const int in = f->from->dtype, out = f->to->dtype, in_bytes = z3i_dtype_bytes(in), out_bytes = z3i_dtype_bytes(out);
  float a[2 * W], b[2 * W], t[2 * W];
  for (int64_t i = 0; i < f->half; i += W) {
    int64_t n = Z3I_MIN(f->half - i, (int64_t)W);
    z3i_load_f32(a, (const char *)x + i * in_bytes, in, n);
    z3i_load_f32(a + n, (const char *)x + (f->half + i) * in_bytes, in, n);
    memcpy(t, table + i, (size_t)n * sizeof *t);
    memcpy(t + n, table + f->half + i, (size_t)n * sizeof *t);
    rotate(b, b + n, a, a + n, t, n, f->sign);
    z3i_grad_f32((char *)y + i * out_bytes, out, b, n, f->add);
    z3i_grad_f32((char *)y + (f->half + i) * out_bytes, out, b + n, n, f->add);
  }
}

/* Heads lo..hi-1 in the order (b, t, h): one row of the table serves all heads of a position. */
static void rotate_heads(void *ctx, int64_t lo, int64_t hi)
{
  const rope *f = ctx;
  const z3i_view *from = f->from, *to = f->to;
  for (int64_t l = lo; l < hi; l++) {
    const int64_t h = l % f->H, t = l / f->H % f->T, b = l / f->H / f->T;
    const float *table = (const float *)f->table->data + position(f, b, t) * f->table->stride[0];
    const void *x = z3i_at(from, b * from->stride[0] + h * from->stride[1] + t * from->stride[2]);
    void *y = z3i_at(to, b * to->stride[0] + h * to->stride[1] + t * to->stride[2]);
    if (from->dtype != to->dtype || f->add || from->dtype == Z3T_F16) rotate_any(f, y, x, table);
    else if (from->dtype == Z3T_F32)
      rotate(y, (float *)y + f->half, x, (const float *)x + f->half, table, f->half, f->sign);
    else rotate_bf16(y, (uint16_t *)y + f->half, x, (const uint16_t *)x + f->half, table, f->half, f->sign);
  }
}

static int check_positions(const rope *f, int64_t B)
{
  const int64_t P = f->table->shape[0];
  for (int64_t b = 0; b < B; b++)
    for (int64_t t = 0; t < f->T; t++) {
      int64_t p = position(f, b, t);
      Z3I_REQUIRE((uint64_t)p < (uint64_t)P, "rope: position at [%" PRId64 ",%" PRId64 "] is %" PRId64
                  ", wants 0 to %" PRId64 ": the table has %" PRId64 " rows", b, t, p, P - 1, P);
    }
  return Z3E_OK;
}

static bool last_contiguous(const z3i_view *v) { return v->stride[3] == 1 || v->shape[3] <= 1; }

static int run(const z3i_call *c, const z3i_view *from, const z3i_view *to, bool inverse)
{
  const int64_t *shape = to->shape;
  rope f = { .from = from, .to = to, .table = &c->in[1], .positions = &c->in[2], .first = c->attr->i[0] };
  f.half = shape[3] / 2;
  f.H = shape[1];
  f.T = shape[2];
  f.sign = inverse ? -1 : 1;
  f.add = inverse && (c->gin_add & 1u);
  Z3I_REQUIRE(shape[3] % 2 == 0, "rope: head size is %" PRId64 ", wants an even number", shape[3]);
  Z3I_ASSERT(last_contiguous(from) && last_contiguous(to));
  const int64_t heads = shape[0] * shape[1] * shape[2];
  if (heads == 0) return Z3E_OK;
  Z3I_TRY(check_positions(&f, shape[0]));
  z3i_for_blocks(heads, z3i_rows_block(shape[3]), heads * shape[3], rotate_heads, &f);
  return Z3E_OK;
}

int Z3I_SYM(rope)(const z3i_call *c) { return run(c, &c->in[0], &c->out[0], false); }

int Z3I_SYM(rope_grad)(const z3i_call *c)
{
  return c->gin[0].data == NULL ? Z3E_OK : run(c, &c->gout[0], &c->gin[0], true);
}
