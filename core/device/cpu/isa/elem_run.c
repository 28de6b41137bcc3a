/* elem_run.c -- walking strided views in blocks, and the engine of elementwise kernels (see elem.h). */
#include "device/cpu/isa/elem.h"

z3i_flat z3i_flatten(const z3i_view *v)
{
  z3i_flat f = { .data = v->data, .dtype = v->dtype, .bytes = z3i_dtype_bytes(v->dtype), .n = z3i_view_numel(v) };
  for (int i = 0; i < v->ndim; i++) {
    if (v->shape[i] == 1) continue;
    int last = f.ndim - 1;
    if (f.ndim > 0 && f.stride[last] == v->stride[i] * v->shape[i]) {
      f.shape[last] *= v->shape[i];
      f.stride[last] = v->stride[i];
    } else {
      f.shape[f.ndim] = v->shape[i];
      f.stride[f.ndim++] = v->stride[i];
    }
  }
  if (f.ndim == 0) {
    f.ndim = 1;
    f.shape[0] = f.stride[0] = 1;
  }
  f.dense = f.n == 0 || (f.ndim == 1 && f.stride[0] == 1);
  return f;
}

int64_t z3i_offset(const z3i_flat *f, int64_t i)
{
  if (f->ndim == 1) return i * f->stride[0];
  int64_t offset = 0;
  for (int d = f->ndim - 1; d >= 0; d--) {
    offset += i % f->shape[d] * f->stride[d];
    i /= f->shape[d];
  }
  return offset;
}

/* ---- pieces: runs of the innermost dim --------------------------------------------------------------- */
typedef struct walk {
  int64_t index[Z3_MAX_DIMS];
  int64_t offset;                               /* of the next element, in elements */
} walk;

static void walk_start(walk *w, const z3i_flat *f, int64_t lo)
{
  w->offset = 0;
  for (int d = f->ndim - 1; d >= 0; d--) {
    w->index[d] = lo % f->shape[d];
    w->offset += w->index[d] * f->stride[d];
    lo /= f->shape[d];
  }
}

/* Steps over n elements, which end within or at the end of the innermost run. */
static void walk_step(walk *w, const z3i_flat *f, int64_t n)
{
  int d = f->ndim - 1;
  w->index[d] += n;
  w->offset += n * f->stride[d];
  while (d > 0 && w->index[d] == f->shape[d]) {
    w->offset -= f->shape[d] * f->stride[d];
    w->index[d--] = 0;
    w->index[d]++;
    w->offset += f->stride[d];
  }
}

#define COPY_RUN(T)                                                                                 \
  do {                                                                                              \
    T *restrict d = (T *)dst;                                                                       \
    const T *restrict s = (const T *)src;                                                           \
    for (int64_t i = 0; i < n; i++) d[i * dst_stride] = s[i * src_stride];                          \
  } while (0)

static void copy_run(void *dst, int64_t dst_stride, const void *src, int64_t src_stride, int bytes, int64_t n)
{
  if (dst_stride == 1 && src_stride == 1) {
    memcpy(dst, src, (size_t)(n * bytes));
    return;
  }
  switch (bytes) {
  case 1: COPY_RUN(uint8_t); break;
  case 2: COPY_RUN(uint16_t); break;
  case 4: COPY_RUN(uint32_t); break;
  default: COPY_RUN(uint64_t);
  }
}

static void fill_run(void *dst, const void *src, int bytes, int64_t n)
{
#define FILL_RUN(T)                                                                                 \
  do {                                                                                              \
    T *restrict d = (T *)dst;                                                                       \
    const T value = *(const T *)src;                                                                \
    for (int64_t i = 0; i < n; i++) d[i] = value;                                                   \
  } while (0)
  switch (bytes) {
  case 1: FILL_RUN(uint8_t); break;
  case 2: FILL_RUN(uint16_t); break;
  case 4: FILL_RUN(uint32_t); break;
  default: FILL_RUN(uint64_t);
  }
#undef FILL_RUN
}

void z3i_gather(void *dst, const z3i_flat *f, int64_t lo, int64_t n)
{
  if (n <= 0) return;
  if (f->dense) {
    memcpy(dst, f->data + lo * f->bytes, (size_t)(n * f->bytes));
    return;
  }
  walk w;
  walk_start(&w, f, lo);
  int in = f->ndim - 1;
  for (int64_t done = 0; done < n;) {
    int64_t m = Z3I_MIN(n - done, f->shape[in] - w.index[in]);
    char *to = (char *)dst + done * f->bytes;
    const char *from = f->data + w.offset * f->bytes;
    if (f->stride[in] == 0) fill_run(to, from, f->bytes, m);
    else copy_run(to, 1, from, f->stride[in], f->bytes, m);
    walk_step(&w, f, m);
    done += m;
  }
}

void z3i_scatter(const z3i_flat *f, int64_t lo, int64_t n, const void *src)
{
  if (n <= 0) return;
  if (f->dense) {
    memcpy(f->data + lo * f->bytes, src, (size_t)(n * f->bytes));
    return;
  }
  walk w;
  walk_start(&w, f, lo);
  int in = f->ndim - 1;
  for (int64_t done = 0; done < n;) {
    int64_t m = Z3I_MIN(n - done, f->shape[in] - w.index[in]);
    copy_run(f->data + w.offset * f->bytes, f->stride[in], (const char *)src + done * f->bytes, 1, f->bytes, m);
    walk_step(&w, f, m);
    done += m;
  }
}

/* ---- blocks converted -------------------------------------------------------------------------------- */
const float *z3i_get_f32(float *buf, const z3i_flat *f, int64_t lo, int64_t n)
{
  if (f->dense) return z3i_block_f32(buf, f->data + lo * f->bytes, f->dtype, n);
  if (f->dtype == Z3T_F32) {
    z3i_gather(buf, f, lo, n);
    return buf;
  }
  uint64_t raw[Z3I_BLOCK];
  z3i_gather(raw, f, lo, n);
  z3i_load_f32(buf, raw, f->dtype, n);
  return buf;
}

const int64_t *z3i_get_i64(int64_t *buf, const z3i_flat *f, int64_t lo, int64_t n)
{
  if (f->dense && f->dtype == Z3T_I64) return (const int64_t *)(const void *)f->data + lo;
  if (f->dense) {
    z3i_load_i64(buf, f->data + lo * f->bytes, f->dtype, n);
    return buf;
  }
  if (f->dtype == Z3T_I64) {
    z3i_gather(buf, f, lo, n);
    return buf;
  }
  uint32_t raw[Z3I_BLOCK];
  z3i_gather(raw, f, lo, n);
  z3i_load_i64(buf, raw, f->dtype, n);
  return buf;
}

void z3i_put_f32(const z3i_flat *f, int64_t lo, int64_t n, const float *src, bool add)
{
  if (f->dense) {
    z3i_grad_f32(f->data + lo * f->bytes, f->dtype, src, n, add);
    return;
  }
  uint64_t raw[Z3I_BLOCK];
  if (add) z3i_gather(raw, f, lo, n);
  z3i_grad_f32(raw, f->dtype, src, n, add);
  z3i_scatter(f, lo, n, raw);
}

void z3i_put_i64(const z3i_flat *f, int64_t lo, int64_t n, const int64_t *src)
{
  if (f->dense) {
    z3i_store_i64(f->data + lo * f->bytes, f->dtype, src, n);
    return;
  }
  uint64_t raw[Z3I_BLOCK];
  z3i_store_i64(raw, f->dtype, src, n);
  z3i_scatter(f, lo, n, raw);
}

/* ---- engine ------------------------------------------------------------------------------------------ */
typedef struct elem_task {
  z3i_elem_f32 f32;
  z3i_elem_i64 i64;
  const z3_attr *attr;
  bool add;
  int n_in;
  z3i_flat out, in[Z3I_ELEM_IN];
} elem_task;

static void block_f32(void *ctx, int64_t lo, int64_t hi)
{
  const elem_task *t = ctx;
  int64_t n = hi - lo;
  float buf[Z3I_ELEM_IN][Z3I_BLOCK], result[Z3I_BLOCK];
  const float *in[Z3I_ELEM_IN] = { 0 };
  for (int i = 0; i < t->n_in; i++) in[i] = z3i_get_f32(buf[i], &t->in[i], lo, n);
  if (t->out.dense && t->out.dtype == Z3T_F32 && !t->add) {
    t->f32((float *)(void *)t->out.data + lo, in, t->attr, n);
    return;
  }
  t->f32(result, in, t->attr, n);
  z3i_put_f32(&t->out, lo, n, result, t->add);
}

static void block_i64(void *ctx, int64_t lo, int64_t hi)
{
  const elem_task *t = ctx;
  int64_t n = hi - lo;
  int64_t buf[Z3I_ELEM_IN][Z3I_BLOCK], result[Z3I_BLOCK];
  const int64_t *in[Z3I_ELEM_IN] = { 0 };
  for (int i = 0; i < t->n_in; i++) in[i] = z3i_get_i64(buf[i], &t->in[i], lo, n);
  t->i64(result, in, t->attr, n);
  z3i_put_i64(&t->out, lo, n, result);
}

void z3i_elem_run(z3i_elem_f32 f, const z3_attr *attr, const z3i_view *out, bool add, int n_in,
                  const z3i_view *const *in)
{
  elem_task t = { .f32 = f, .attr = attr, .add = add, .n_in = n_in, .out = z3i_flatten(out) };
  for (int i = 0; i < n_in; i++) t.in[i] = z3i_flatten(in[i]);
  z3i_for_blocks(t.out.n, Z3I_BLOCK, t.out.n, block_f32, &t);
}

void z3i_elem_run_i64(z3i_elem_i64 f, const z3_attr *attr, const z3i_view *out, int n_in, const z3i_view *const *in)
{
  elem_task t = { .i64 = f, .attr = attr, .n_in = n_in, .out = z3i_flatten(out) };
  for (int i = 0; i < n_in; i++) t.in[i] = z3i_flatten(in[i]);
  z3i_for_blocks(t.out.n, Z3I_BLOCK, t.out.n, block_i64, &t);
}
