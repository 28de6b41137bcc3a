/* null.c -- the device that computes nothing: programs run on it with ids, shapes and byte counts, without data.
 * Its memory is addresses handed out by a counter, from a range that no x86-64 or arm64 process can map: each is
 * distinct, and touching one is a fault, not a wrong result. */
#include "device/backends.h"

#define FIRST_ADDRESS ((uint64_t)3 << 55)         /* bit 56 faults on x86-64, bit 55 on arm64, whose top byte is free */

static int take(size_t bytes, void **out)
{
  static uint64_t next = FIRST_ADDRESS;
  uint64_t size = ((uint64_t)bytes + 4095) / 4096 * 4096;
  *out = NULL;
  if (bytes > (size_t)1 << 60) return Z3I_FAIL(Z3E_OOM, "null device: %zu bytes in one piece, more than 2^60", bytes);
  *out = (void *)(uintptr_t)__atomic_fetch_add(&next, size, __ATOMIC_RELAXED);
  return Z3E_OK;
}

static void give(void *p, size_t bytes) { (void)p, (void)bytes; }

/* Callers ask `computes` first; who doesn't has a bug. */
#define NEVER(name, ...)                                                                            \
  static int name(__VA_ARGS__) { return Z3I_FAIL(Z3E_BUG, "null device was asked to compute: " #name); }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
NEVER(copy, const z3i_view *dst, const z3i_view *src)
NEVER(fill, const z3i_view *dst, double value)
NEVER(random_fill, const z3i_view *dst, int kind, double a, double b, uint64_t key, int64_t first)
NEVER(arange, const z3i_view *dst, double start, double step)
NEVER(update, const z3i_update *u)
NEVER(sumsq, const z3i_view *x, double *sum, int64_t *nonfinite)
#pragma GCC diagnostic pop

z3i_device *z3i_null_device(int *rc)
{
  static const z3i_kernel none[Z3OP_COUNT];       /* registry.c gives it those that count scratch */
  static z3i_device device = {
    .name = "null", .id = Z3D_NULL, .computes = false, .mem_alloc = take, .mem_free = give, .forward = none,
    .backward = none, .copy = copy, .fill = fill, .random = random_fill, .arange = arange, .update = update,
    .sumsq = sumsq,
  };
  *rc = Z3E_OK;
  return &device;
}
