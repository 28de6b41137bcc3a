/* model_kernels.h -- what the tests of kernels share: the tables that this machine can run, typed buffers read and
 * written as doubles, views, and a device that only owns memory. Buffers have their exact size, so that sanitizers see
 * a step outside. */
#ifndef TEST_MODEL_KERNELS_H
#define TEST_MODEL_KERNELS_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include "device/cpu/isa/isa.h"
#include "device/pool.h"

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

/* ---- tables ---- */
const z3i_isa_table *z3i_isa_table_v2(void);
const z3i_isa_table *z3i_isa_table_v3(void);
const z3i_isa_table *z3i_isa_table_v4(void);
const z3i_isa_table *z3i_isa_table_base(void);
static inline int tables(const z3i_isa_table *out[4])
{
  int n = 0;
#ifdef __x86_64__
  __builtin_cpu_init();
  out[n++] = z3i_isa_table_v2();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[n++] = z3i_isa_table_v3();
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    out[n++] = z3i_isa_table_v4();
#else
  out[n++] = z3i_isa_table_base();
#endif
  return n;
}
#define EACH_TABLE(t)                                                                               \
  const z3i_isa_table *all_tables[4];                                                               \
  for (int table_i = 0, table_n = tables(all_tables); table_i < table_n; table_i++)                 \
    for (const z3i_isa_table *t = all_tables[table_i]; t != NULL; t = NULL)

/* ---- a device for scratch memory ---- */
static inline int host_alloc(size_t bytes, void **out) { return (*out = aligned_alloc(64, bytes)) ? Z3E_OK : Z3E_OOM; }
static inline void host_free(void *p, size_t bytes)
{
  (void)bytes;
  free(p);
}
static inline z3i_device *device(void)
{
  static z3i_device dev = { .name = "test", .computes = true, .mem_alloc = host_alloc, .mem_free = host_free };
  if (dev.pool == NULL) dev.pool = z3i_pool_new(&dev);
  return &dev;
}
/* Every kernel gave its scratch back. */
static inline void assert_no_scratch(void)
{
  assert_int_equal(device()->pool->stats.current, 0);
}

/* ---- buffers: freed together by the test's end ---- */
typedef struct buf {
  void *data;
  int dtype;
  int64_t n;
} buf;

static void *kept[4096];
static int kept_n;
static __attribute__((noinline, unused)) void *keep(size_t bytes)
{
  assert_true(kept_n < LEN(kept));
  void *p = malloc(bytes ? bytes : 1);
  assert_non_null(p);
  memset(p, 0x55, bytes);                       /* what nobody wrote shows */
  return kept[kept_n++] = p;
}
static inline int drop_all(void **state)
{
  (void)state;
  while (kept_n > 0) free(kept[--kept_n]);
  return 0;
}
static __attribute__((noinline, unused)) void *keep_zero(size_t bytes) { return memset(keep(bytes), 0, bytes); }

static inline buf buf_new(int dtype, int64_t n)
{
  return (buf){ keep((size_t)(n * z3i_dtype_bytes(dtype))), dtype, n };
}
static inline double get(const buf *b, int64_t i)
{
  switch (b->dtype) {
  case Z3T_F32: return ((float *)b->data)[i];
  case Z3T_BF16: return z3i_bf16_to_f32(((uint16_t *)b->data)[i]);
  case Z3T_F16: return z3i_f16_to_f32(((uint16_t *)b->data)[i]);
  case Z3T_I32: return ((int32_t *)b->data)[i];
  case Z3T_I64: return (double)((int64_t *)b->data)[i];
  default: return ((uint8_t *)b->data)[i];
  }
}
static inline void set(const buf *b, int64_t i, double v)
{
  switch (b->dtype) {
  case Z3T_F32: ((float *)b->data)[i] = (float)v; break;
  case Z3T_BF16: ((uint16_t *)b->data)[i] = z3i_f32_to_bf16((float)v); break;
  case Z3T_F16: ((uint16_t *)b->data)[i] = z3i_f32_to_f16((float)v); break;
  case Z3T_I32: ((int32_t *)b->data)[i] = (int32_t)v; break;
  case Z3T_I64: ((int64_t *)b->data)[i] = (int64_t)v; break;
  default: ((uint8_t *)b->data)[i] = (uint8_t)v;
  }
}
static inline bool same_bits(const buf *a, const buf *b)
{
  return a->n == b->n && memcmp(a->data, b->data, (size_t)(a->n * z3i_dtype_bytes(a->dtype))) == 0;
}
static inline void copy_into(const buf *dst, const buf *src)
{
  memcpy(dst->data, src->data, (size_t)(src->n * z3i_dtype_bytes(src->dtype)));
}

/* ---- numbers: about normal, the same for a seed on every machine ---- */
static inline double rnd(uint64_t seed, int64_t i)
{
  double sum = -6;
  for (uint64_t k = 0; k < 12; k++) sum += (double)(z3i_mix(z3i_mix(seed, (uint64_t)i), k) >> 11) * 0x1p-53;
  return sum;
}
static inline buf buf_rnd(int dtype, int64_t n, uint64_t seed, double scale, double offset)
{
  buf b = buf_new(dtype, n);
  for (int64_t i = 0; i < n; i++) set(&b, i, offset + scale * rnd(seed, i));
  return b;
}
static inline buf buf_ids(int dtype, int64_t n, uint64_t seed, int64_t limit)
{
  buf b = buf_new(dtype, n);
  for (int64_t i = 0; i < n; i++) set(&b, i, (double)(z3i_mix(seed, (uint64_t)i) % (uint64_t)limit));
  return b;
}
static inline double *doubles(const buf *b)
{
  double *d = keep((size_t)b->n * sizeof *d);
  for (int64_t i = 0; i < b->n; i++) d[i] = get(b, i);
  return d;
}
static inline double *zeros(int64_t n)
{
  return keep_zero((size_t)n * sizeof(double));
}

/* ---- views ---- */
static inline z3i_view view(const buf *b, int ndim, const int64_t *shape)
{
  z3i_view v = { .data = b->data, .dtype = b->dtype, .ndim = ndim };
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    v.shape[i] = shape[i];
    v.stride[i] = stride;
    stride *= shape[i];
  }
  return v;
}
#define VIEW(b, ...)                                                                                \
  view((b), (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (const int64_t[]){ __VA_ARGS__ })
/* The same shape and dtype without data: what an optional input or an unsaved value looks like. */
static inline z3i_view bare(z3i_view v)
{
  v.data = NULL;
  return v;
}

/* ---- comparing ---- */
/* Half a unit in the last place, relative: what rounding the result to dtype costs (24, 8 and 11 bits). */
static inline double rounding(int dtype) { return dtype == Z3T_F32 ? 0x1p-24 : dtype == Z3T_BF16 ? 0x1p-8 : 0x1p-11; }
static inline bool near(double got, double want, double atol, double rtol)
{
  if (isnan(want)) return isnan(got);
  if (isinf(want)) return got == want;
  return fabs(got - want) <= atol + rtol * fabs(want);
}
#define assert_near(got, want, atol, rtol)                                                          \
  do {                                                                                              \
    double got_ = (got), want_ = (want);                                                            \
    if (!near(got_, want_, (atol), (rtol)))                                                         \
      fail_msg("%s is %.9g, wants %.9g within %g + %g relative", #got, got_, want_, (double)(atol), (double)(rtol)); \
  } while (0)
/* All of b against doubles: atol for the arithmetic in f32 (and f16's subnormals), plus the rounding of b's dtype. */
#define assert_all_near(b, want, atol)                                                              \
  do {                                                                                              \
    for (int64_t i_ = 0; i_ < (b)->n; i_++)                                                         \
      if (!near(get((b), i_), (want)[i_], (atol) + 3e-8, 1.01 * rounding((b)->dtype) + 1e-6))              \
        fail_msg("%s[%" PRId64 "] is %.9g, wants %.9g (%s, atol %g)", #b, i_, get((b), i_), (want)[i_],                \
                 z3_dtype_name((b)->dtype), (double)(atol));                                        \
  } while (0)
/* Adding equals the finished value added: written (f32) + before, rounded once. */
static inline void assert_added(const buf *after, const buf *before, const buf *written)
{
  for (int64_t i = 0; i < after->n; i++) {
    float want = ((float *)before->data)[i] + ((float *)written->data)[i], got = ((float *)after->data)[i];
    if (memcmp(&want, &got, 4) != 0) fail_msg("added[%" PRId64 "] is %.9g, wants %.9g", i, (double)got, (double)want);
  }
}
#define TEST(f) cmocka_unit_test_teardown(f, drop_all)
#endif
