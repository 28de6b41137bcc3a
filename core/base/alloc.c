/* alloc.c -- host memory for the library's own small structures: counted, and able to fail on demand. */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/base.h"

static atomic_llong live;
static atomic_llong fail_countdown;               /* 0: never */

static bool injected_failure(void)
{
  if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) <= 0) return false;
  return atomic_fetch_sub(&fail_countdown, 1) == 1;
}

void *z3i_alloc(size_t bytes)
{
  void *p = injected_failure() ? NULL : calloc(1, bytes ? bytes : 1);
  if (p == NULL) {
    (void)Z3I_FAIL(Z3E_OOM, "out of host memory: %zu bytes for a library structure", bytes);
    return NULL;
  }
  atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
  return p;
}

void *z3i_realloc(void *p, size_t bytes)
{
  void *q = injected_failure() ? NULL : realloc(p, bytes ? bytes : 1);
  if (q == NULL) {
    (void)Z3I_FAIL(Z3E_OOM, "out of host memory: %zu bytes for a library structure", bytes);
    return NULL;
  }
  if (p == NULL) atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
  return q;
}

char *z3i_strdup(const char *s)
{
  size_t bytes = strlen(s) + 1;
  char *copy = z3i_alloc(bytes);
  if (copy != NULL) memcpy(copy, s, bytes);
  return copy;
}

void z3i_free(void *p)
{
  if (p == NULL) return;
  free(p);
  atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
}

void z3i_alloc_fail_at(int64_t n) { atomic_store(&fail_countdown, n); }
int64_t z3i_alloc_live(void) { return atomic_load(&live); }
