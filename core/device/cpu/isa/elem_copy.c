/* elem_copy.c -- copying with conversion, filling, ranges.
 * The same dtype moves as it is; integers convert through 64 bits; everything else through f32, rounded once. */
#include "device/cpu/isa/elem.h"
#include "device/cpu/isa/isa_kernels.h"

typedef struct copy_task {
  z3i_flat dst, src;
  bool add;
} copy_task;

/* The same dtype. */
static void move_block(void *ctx, int64_t lo, int64_t hi)
{
  const copy_task *t = ctx;
  if (t->dst.dense) {
    z3i_gather(t->dst.data + lo * t->dst.bytes, &t->src, lo, hi - lo);
    return;
  }
  if (t->src.dense) {
    z3i_scatter(&t->dst, lo, hi - lo, t->src.data + lo * t->src.bytes);
    return;
  }
  uint64_t raw[Z3I_BLOCK];
  z3i_gather(raw, &t->src, lo, hi - lo);
  z3i_scatter(&t->dst, lo, hi - lo, raw);
}

static void integer_block(void *ctx, int64_t lo, int64_t hi)
{
  const copy_task *t = ctx;
  int64_t buf[Z3I_BLOCK];
  z3i_put_i64(&t->dst, lo, hi - lo, z3i_get_i64(buf, &t->src, lo, hi - lo));
}

static void float_block(void *ctx, int64_t lo, int64_t hi)
{
  const copy_task *t = ctx;
  float buf[Z3I_BLOCK];
  z3i_put_f32(&t->dst, lo, hi - lo, z3i_get_f32(buf, &t->src, lo, hi - lo), t->add);
}

/* src shown with dst's shape: stride 0 where it is repeated. */
static z3i_view broadcast(const z3i_view *src, const z3i_view *dst)
{
  z3i_view v = *src;
  v.ndim = dst->ndim;
  for (int d = 0; d < dst->ndim; d++) {
    int from = d - (dst->ndim - src->ndim);
    v.shape[d] = dst->shape[d];
    v.stride[d] = from < 0 || src->shape[from] != dst->shape[d] ? 0 : src->stride[from];
  }
  return v;
}

static void copy_view(const z3i_view *dst, const z3i_view *src, bool add)
{
  z3i_view shown = broadcast(src, dst);
  copy_task t = { z3i_flatten(dst), z3i_flatten(&shown), add };
  if (t.dst.n == 0 || (!add && z3i_transpose(&t.dst, &t.src))) return;
  void (*block)(void *, int64_t, int64_t) = float_block;
  if (dst->dtype == src->dtype && !add) block = move_block;
  else if (!add && !z3i_dtype_float(dst->dtype) && !z3i_dtype_float(src->dtype)) block = integer_block;
  z3i_for_blocks(t.dst.n, Z3I_BLOCK, t.dst.n, block, &t);
}

int Z3I_SYM(copy)(const z3i_view *dst, const z3i_view *src)
{
  copy_view(dst, src, false);
  return Z3E_OK;
}

int Z3I_SYM(copy_op)(const z3i_call *c)
{
  copy_view(&c->out[0], &c->in[0], false);
  return Z3E_OK;
}

int Z3I_SYM(copy_grad)(const z3i_call *c)
{
  if (c->gin[0].data != NULL) copy_view(&c->gin[0], &c->gout[0], c->gin_add & 1u);
  return Z3E_OK;
}

/* ---- values from a formula ---------------------------------------------------------------------------- */
typedef struct line_task {
  z3i_flat dst;
  double start, step;
} line_task;

static void line_block(void *ctx, int64_t lo, int64_t hi)
{
  const line_task *t = ctx;
  int64_t n = hi - lo;
  if (z3i_dtype_float(t->dst.dtype)) {
    float buf[Z3I_BLOCK];
    for (int64_t i = 0; i < n; i++) buf[i] = (float)(t->start + (double)(lo + i) * t->step);
    z3i_put_f32(&t->dst, lo, n, buf, false);
    return;
  }
  int64_t buf[Z3I_BLOCK];
  for (int64_t i = 0; i < n; i++) buf[i] = z3i_whole(t->start + (double)(lo + i) * t->step);
  z3i_put_i64(&t->dst, lo, n, buf);
}

int Z3I_SYM(arange)(const z3i_view *dst, double start, double step)
{
  line_task t = { z3i_flatten(dst), start, step };
  z3i_for_blocks(t.dst.n, Z3I_BLOCK, t.dst.n, line_block, &t);
  return Z3E_OK;
}

/* A copy of one converted element, repeated. */
int Z3I_SYM(fill)(const z3i_view *dst, double value)
{
  uint64_t element = 0;
  if (z3i_dtype_float(dst->dtype)) {
    float f = (float)value;
    z3i_store_f32(&element, dst->dtype, &f, 1);
  } else {
    int64_t i = z3i_whole(value);
    if (dst->dtype == Z3T_I32) i = Z3I_MAX(Z3I_MIN(i, (int64_t)INT32_MAX), (int64_t)INT32_MIN);
    z3i_store_i64(&element, dst->dtype, &i, 1);
  }
  z3i_view one = { .data = &element, .dtype = dst->dtype };
  copy_view(dst, &one, false);
  return Z3E_OK;
}
