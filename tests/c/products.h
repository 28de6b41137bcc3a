/* products.h -- what the tests of products share: a device of its own whose memory can run out, matrices of any dtype
 * and strides filled with fixed random numbers, and comparison with sums in double. */
#ifndef TEST_PRODUCTS_H
#define TEST_PRODUCTS_H
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device/pool.h"

static int test_mem_alloc(size_t bytes, void **out)
{
  *out = aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *out != NULL ? Z3E_OK : Z3I_FAIL(Z3E_OOM, "no more");
}
static void test_mem_free(void *p, size_t bytes)
{
  (void)bytes;
  free(p);
}
static z3i_device dev;

static int setup(void **state)
{
  (void)state;
  dev = (z3i_device){ .name = "test", .computes = true, .mem_alloc = test_mem_alloc, .mem_free = test_mem_free };
  dev.pool = z3i_pool_new(&dev);
  return dev.pool == NULL;
}
static int teardown(void **state)
{
  (void)state;
  assert_int_equal(dev.pool->stats.current, 0);   /* every kernel gave its scratch back */
  z3i_pool_delete(dev.pool);
  return 0;
}

#define CHECK_OK(call)                                                                              \
  do {                                                                                              \
    int rc_ = (call);                                                                               \
    if (rc_ != Z3E_OK) fail_msg("%s: %s\n%s", #call, z3_last_error(), z3_error_chain());            \
  } while (0)

/* ---- numbers ----------------------------------------------------------------------------------------- */
static uint64_t random_state;
static float random_float(void)                   /* uniform in [-1, 1) */
{
  random_state = z3i_mix(random_state, 1);
  return (float)((int64_t)(random_state >> 40) - (1 << 23)) / (1 << 23);
}
static float number_get(const void *p, int dtype, int64_t i)
{
  if (dtype == Z3T_F32) return ((const float *)p)[i];
  if (dtype == Z3T_U8) return ((const uint8_t *)p)[i];
  uint16_t h = ((const uint16_t *)p)[i];
  return dtype == Z3T_BF16 ? z3i_bf16_to_f32(h) : z3i_f16_to_f32(h);
}
static void number_set(void *p, int dtype, int64_t i, float x)
{
  if (dtype == Z3T_F32) ((float *)p)[i] = x;
  else if (dtype == Z3T_U8) ((uint8_t *)p)[i] = (uint8_t)x;
  else ((uint16_t *)p)[i] = dtype == Z3T_BF16 ? z3i_f32_to_bf16(x) : z3i_f32_to_f16(x);
}
/* Half a unit in the last place, relative: what rounding to the dtype may cost. */
static inline double rounding(int dtype)
{
  return dtype == Z3T_F32 ? 6e-8 : dtype == Z3T_BF16 ? 1.0 / 256 : 1.0 / 2048;
}

static void *numbers(int dtype, int64_t count, bool random)
{
  void *p = calloc((size_t)Z3I_MAX(count, (int64_t)1), (size_t)z3i_dtype_bytes(dtype));
  assert_non_null(p);
  for (int64_t i = 0; random && i < count; i++) number_set(p, dtype, i, random_float());
  return p;
}

static inline void close_to(double got, double want, double tolerance, const char *what, int64_t at)
{
  if (!(fabs(got - want) <= tolerance) && got != want && !(isnan(got) && isnan(want)))
    fail_msg("%s [%" PRId64 "]: got %.9g, want %.9g within %.3g", what, at, got, want, tolerance);
}

/* ---- views ------------------------------------------------------------------------------------------- */
/* A view of its own memory. order: dims from outermost to innermost in memory ("0213"); pad: elements between lines. */
typedef struct block {
  z3i_view v;
  void *memory;
  int64_t count;                                  /* elements of memory */
} block;

static inline block block_new(int dtype, const char *order, int64_t pad, bool random, int ndim, const int64_t *shape)
{
  block b = { .v = { .dtype = dtype, .ndim = ndim } };
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    int d = order != NULL ? order[i] - '0' : i;
    b.v.shape[d] = shape[d];
    b.v.stride[d] = stride;
    stride *= shape[d];
    if (i == ndim - 1) stride += pad;
  }
  b.count = ndim == 0 ? 1 : stride;
  b.memory = numbers(dtype, b.count, random);
  b.v.data = b.memory;
  return b;
}
#define SHAPE(...) (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (const int64_t[]){ __VA_ARGS__ }
static inline void block_free(block *b) { free(b->memory); }

/* A view of the same shape and dtype without data: what backward sees of values that aren't saved. */
static inline z3i_view without_data(z3i_view v)
{
  v.data = NULL;
  return v;
}
static inline float at4(const z3i_view *v, int64_t a, int64_t b, int64_t c, int64_t d)
{
  return number_get(v->data, v->dtype, a * v->stride[0] + b * v->stride[1] + c * v->stride[2] + d * v->stride[3]);
}

/* Runs a kernel under a growing memory limit until it succeeds: each failure must be Z3E_OOM and give everything back.
 * Returns how often it failed. */
static inline int out_of_memory_sweep(z3i_kernel kernel, const z3i_call *c)
{
  int failures = 0;
  for (int64_t limit = 64;; limit += limit / 4 + 64) {
    assert_true(limit < (int64_t)1 << 40);
    z3i_pool_trim(dev.pool);
    dev.pool->stats.limit = limit;
    int rc = kernel(c);
    assert_int_equal(dev.pool->stats.current, 0);
    if (rc == Z3E_OK) break;
    assert_int_equal(rc, Z3E_OOM);
    failures++;
  }
  dev.pool->stats.limit = 0;
  return failures;
}
#endif
