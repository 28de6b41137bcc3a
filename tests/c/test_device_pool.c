/* test_device_pool.c -- the caching allocator over a counting device: reuse, joining, budget, owners, failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device/pool.h"

static int64_t taken, calls, refuse_after = -1;

static int fake_alloc(size_t bytes, void **out)
{
  if (refuse_after >= 0 && calls >= refuse_after) return Z3I_FAIL(Z3E_OOM, "no more");
  calls++;
  *out = aligned_alloc(64, (bytes + 63) / 64 * 64);
  taken += (int64_t)bytes;
  return *out != NULL ? Z3E_OK : Z3E_OOM;
}

static void fake_free(void *p, size_t bytes)
{
  taken -= (int64_t)bytes;
  free(p);
}

static z3i_device dev;

static int setup(void **state)
{
  (void)state;
  taken = calls = 0;
  refuse_after = -1;
  dev = (z3i_device){ .name = "fake", .mem_alloc = fake_alloc, .mem_free = fake_free };
  dev.pool = z3i_pool_new(&dev);
  return dev.pool == NULL;
}

static int teardown(void **state)
{
  (void)state;
  z3i_pool_delete(dev.pool);
  assert_int_equal(taken, 0);
  assert_int_equal(z3i_alloc_live(), 0);
  return 0;
}

static void test_device_pool_reuses_what_was_freed(void **state)
{
  (void)state;
  static const size_t sizes[] = { 1, 64, 1000, 5000, 300000, 3 << 20, 40 << 20 };
  void *p[7];
  for (int round = 0; round < 5; round++) {
    for (int i = 0; i < 7; i++) assert_int_equal(z3i_pool_alloc(&dev, sizes[i], Z3M_ACTIVATION, &p[i]), Z3E_OK);
    for (int i = 0; i < 7; i++) {
      assert_int_equal((uintptr_t)p[i] % 64, 0);
      memset(p[i], round, sizes[i]);
    }
    int64_t system = dev.pool->stats.system_allocs;
    for (int i = 6; i >= 0; i--) z3i_pool_free(&dev, p[i]);
    if (round > 0) assert_int_equal(system, calls);
  }
  assert_int_equal(calls, 3);                     /* one small segment, one large, one huge */
  assert_int_equal(dev.pool->stats.current, 0);
  pthread_mutex_lock(&dev.pool->lock);
  z3i_pool_trim(dev.pool);                        /* every segment joined back into one free block */
  pthread_mutex_unlock(&dev.pool->lock);
  assert_int_equal(taken, 0);
  assert_int_equal(dev.pool->stats.reserved, 0);
}

/* Random traffic: blocks never overlap, accounting adds up, everything joins again. */
static void test_device_pool_random_traffic(void **state)
{
  (void)state;
  enum { SLOTS = 200, STEPS = 20000 };
  struct { unsigned char *p; size_t bytes; unsigned char mark; } slot[SLOTS] = { 0 };
  uint32_t x = 1;
  for (int step = 0; step < STEPS; step++) {
    x = x * 1664525u + 1013904223u;
    int i = (int)(x >> 8) % SLOTS;
    if (slot[i].p != NULL) {
      assert_int_equal(slot[i].p[0], slot[i].mark);
      assert_int_equal(slot[i].p[slot[i].bytes - 1], slot[i].mark);
      z3i_pool_free(&dev, slot[i].p);
      slot[i].p = NULL;
      continue;
    }
    slot[i].bytes = 1 + ((size_t)1 << ((x >> 24) % 22)) + (x >> 4) % 1000;
    slot[i].mark = (unsigned char)step;
    void *p;
    assert_int_equal(z3i_pool_alloc(&dev, slot[i].bytes, (int)(x % Z3M_COUNT), &p), Z3E_OK);
    slot[i].p = p;
    slot[i].p[0] = slot[i].p[slot[i].bytes - 1] = slot[i].mark;
  }
  int64_t by = 0, live = 0;
  for (int c = 0; c < Z3M_COUNT; c++) by += dev.pool->stats.by_current[c];
  for (int i = 0; i < SLOTS; i++)
    if (slot[i].p != NULL) live += (int64_t)(slot[i].bytes + 63) / 64 * 64;
  assert_int_equal(by, live);
  assert_int_equal(dev.pool->stats.current, live);
  for (int i = 0; i < SLOTS; i++) z3i_pool_free(&dev, slot[i].p);
  pthread_mutex_lock(&dev.pool->lock);
  z3i_pool_trim(dev.pool);
  pthread_mutex_unlock(&dev.pool->lock);
  assert_int_equal(taken, 0);
}

static void test_device_pool_budget_is_hard(void **state)
{
  (void)state;
  dev.pool->stats.limit = 10 << 20;
  void *p[64];
  int n = 0;
  const char *before = z3i_owner_set("h.3.attn");
  while (z3i_pool_alloc(&dev, 1 << 20, Z3M_GRAD, &p[n]) == Z3E_OK) {
    n++;
    assert_true(taken <= 10 << 20);
  }
  assert_int_equal(n, 10);
  assert_int_equal(z3_last_oom()->requested_bytes, 1 << 20);
  assert_int_equal(z3_last_oom()->limit_bytes, 10 << 20);
  assert_string_equal(z3_last_oom()->category, "grad");
  assert_non_null(strstr(z3_last_error(), "h.3.attn"));
  z3i_pool_free(&dev, p[--n]);
  assert_int_equal(z3i_pool_alloc(&dev, 1 << 20, Z3M_GRAD, &p[n++]), Z3E_OK);
  /* A cached segment of the wrong size is given back rather than counted against the budget. */
  while (n > 0) z3i_pool_free(&dev, p[--n]);
  void *all;
  assert_int_equal(z3i_pool_alloc(&dev, 10 << 20, Z3M_GRAD, &all), Z3E_OK);
  assert_true(taken <= 10 << 20);
  z3i_pool_free(&dev, all);
  z3i_owner_set(before);
}

/* A budget below what segments hold already: what is in use counts, the rest of a segment may be used up to it. */
static void test_device_pool_budget_set_later(void **state)
{
  (void)state;
  void *p[3];
  assert_int_equal(z3i_pool_alloc(&dev, 4 << 20, Z3M_OTHER, &p[0]), Z3E_OK);
  assert_true(dev.pool->stats.reserved > 10 << 20);
  int64_t reserved = dev.pool->stats.reserved;
  dev.pool->stats.limit = 10 << 20;
  assert_int_equal(z3i_pool_alloc(&dev, 4 << 20, Z3M_OTHER, &p[1]), Z3E_OK);
  assert_int_equal(z3i_pool_alloc(&dev, 4 << 20, Z3M_OTHER, &p[2]), Z3E_OOM);
  assert_int_equal(z3_last_oom()->current_bytes, 8 << 20);
  assert_int_equal(dev.pool->stats.reserved, reserved);
  z3i_pool_free(&dev, p[0]);
  z3i_pool_free(&dev, p[1]);
}

static void test_device_pool_survives_every_failure(void **state)
{
  (void)state;
  for (int n = 1; n < 20; n++) {
    void *p = NULL;
    z3i_alloc_fail_at(n);
    int rc = z3i_pool_alloc(&dev, (size_t)n << 20, Z3M_OTHER, &p);
    z3i_alloc_fail_at(0);
    if (rc == Z3E_OK) z3i_pool_free(&dev, p);
    else assert_null(p);
    assert_int_equal(dev.pool->stats.current, 0);
  }
  refuse_after = calls;
  void *p;
  assert_int_equal(z3i_pool_alloc(&dev, (size_t)1 << 30, Z3M_OTHER, &p), Z3E_OOM);
  assert_null(p);
  assert_int_equal(z3_last_oom()->limit_bytes, 0);
  assert_int_equal(z3i_pool_alloc(&dev, ((size_t)1 << 62) + 1, Z3M_OTHER, &p), Z3E_ARG);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_device_pool_reuses_what_was_freed, setup, teardown),
    cmocka_unit_test_setup_teardown(test_device_pool_random_traffic, setup, teardown),
    cmocka_unit_test_setup_teardown(test_device_pool_budget_is_hard, setup, teardown),
    cmocka_unit_test_setup_teardown(test_device_pool_budget_set_later, setup, teardown),
    cmocka_unit_test_setup_teardown(test_device_pool_survives_every_failure, setup, teardown),
  };
  return cmocka_run_group_tests_name("device_pool", tests, NULL, NULL);
}
