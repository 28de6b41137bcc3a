/* test_device_cpu.c -- the CPU and null devices: memory, kernel tables, the choice of an instruction set. */
#include <sys/wait.h>
#include <unistd.h>

#include "device/backends.h"
#include "device/cpu/isa_pick.h"
#include "model_kernels.h"
#include "zero3/device.h"

static void test_device_cpu_memory(void **state)
{
  (void)state;
  int rc;
  z3i_device *dev = z3i_cpu_device(&rc);
  assert_int_equal(rc, Z3E_OK);
  static const size_t sizes[] = { 1, 4096, 5000, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 9 << 20 };
  for (int k = 0; k < LEN(sizes); k++) {
    void *p;
    assert_int_equal(dev->mem_alloc(sizes[k], &p), Z3E_OK);
    assert_int_equal((uintptr_t)p % (sizes[k] >= 2 << 20 ? 2 << 20 : 4096), 0);
    for (size_t i = 0; i < sizes[k]; i += 4096) assert_int_equal(((char *)p)[i], 0);
    memset(p, 1, sizes[k]);
    dev->mem_free(p, sizes[k]);
  }
  void *p = &rc;
  assert_int_equal(dev->mem_alloc((size_t)1 << 62, &p), Z3E_OOM);
  assert_null(p);
  assert_non_null(strstr(z3_last_error(), "bytes"));
}

/* Every operation that has a kernel of its own has one in the device's table, and a backward unless it has none. */
static void test_device_cpu_tables_are_full(void **state)
{
  (void)state;
  int rc;
  z3i_device *dev = z3i_cpu_device(&rc);
  enum { V = 1, C = 2, E = 4, N = 8, H = 16, I0 = 0, I1 = 0, I2 = 0, I3 = 0, O0 = 0, X0 = 0, X1 = 0 };
  static const int flags[] = {
#define Z3OP(name, min_in, max_in, n_out, n_aux, save, flags) (flags),
#include "zero3/op.def"
#undef Z3OP
  };
  for (int op = 0; op < Z3OP_COUNT; op++) {
    bool own = !(flags[op] & (V | H));
    if (own && dev->forward[op] == NULL) fail_msg("%s has no forward kernel", z3_op_name(op));
    if (own && !(flags[op] & N) && dev->backward[op] == NULL) fail_msg("%s has no backward kernel", z3_op_name(op));
    EACH_TABLE(t) assert_int_equal(t->forward[op] == NULL, all_tables[0]->forward[op] == NULL);
  }
  EACH_TABLE(t) {
    assert_true(t->copy && t->fill && t->random && t->arange && t->update && t->sumsq && t->to_f32 && t->from_f32);
    assert_true(t->row_lse && t->row_ce_grad);
  }
  (void)I0, (void)I1, (void)I2, (void)I3, (void)O0, (void)X0, (void)X1, (void)C, (void)E;
}

static void test_device_cpu_null_memory_is_fake(void **state)
{
  (void)state;
  int rc;
  z3i_device *dev = z3i_null_device(&rc);
  assert_int_equal(rc, Z3E_OK);
  assert_false(dev->computes);
  void *a, *b, *c;
  assert_int_equal(dev->mem_alloc((size_t)1 << 50, &a), Z3E_OK);
  assert_int_equal(dev->mem_alloc(1, &b), Z3E_OK);
  assert_int_equal(dev->mem_alloc(1, &c), Z3E_OK);
  assert_true(a != NULL && b != a && c != b);
  assert_true((uintptr_t)b - (uintptr_t)a >= (uintptr_t)1 << 50);
  assert_int_equal((uintptr_t)b % 64, 0);
  assert_int_equal(dev->mem_alloc((size_t)1 << 61, &c), Z3E_OOM);
  dev->mem_free(a, (size_t)1 << 50);
  assert_int_equal(dev->fill(NULL, 0), Z3E_BUG);
}

static void test_device_cpu_threads(void **state)
{
  (void)state;
  int before = z3_threads(0);
  assert_true(before >= 1);
  assert_int_equal(z3_threads(2), 2);
  assert_int_equal(z3_threads(0), 2);
  assert_int_equal(z3_threads(before), before);
}

/* The choice is made once per process, so each value is tried in a child, which reports through its exit code. */
static int child_with(const char *value, const char *want_isa)
{
  pid_t pid = fork();
  if (pid == 0) {
    if (value != NULL) setenv("Z3_CPU", value, 1);
    else unsetenv("Z3_CPU");
    int rc;
    z3i_device *dev = z3i_cpu_device(&rc);
    bool fits = rc == Z3E_OK ? dev != NULL && strncmp(z3_cpu_isa(), want_isa, strlen(want_isa)) == 0 : dev == NULL;
    if (rc != Z3E_OK && strstr(z3_last_error(), "Z3_CPU") == NULL) fits = false;
    if (rc != Z3E_OK && strstr(z3_last_error(), value) == NULL) fits = false;
    _exit(fits ? rc : 99);
  }
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

#ifdef __x86_64__
static void test_device_cpu_choice(void **state)
{
  (void)state;
  const z3i_isa_table *all[4];
  int n = tables(all);
  static const char *const levels[] = { "v2", "v3", "v4" }, *const names[] = { "sse4.2", "avx2", "avx512" };
  for (int k = 0; k < 3; k++) assert_int_equal(child_with(levels[k], names[k]), k < n ? Z3E_OK : Z3E_ARG);
  static const char *const bad[] = { "v1", "v5", "v22", "avx2", "V3", "3" };
  for (int k = 0; k < LEN(bad); k++) assert_int_equal(child_with(bad[k], ""), Z3E_ARG);
  assert_int_equal(child_with("", names[n - 1]), Z3E_OK);
  assert_int_equal(child_with(NULL, names[n - 1]), Z3E_OK);
}
#else
static void test_device_cpu_choice(void **state)
{
  (void)state;
  assert_int_equal(child_with("base", "base"), Z3E_OK);
  assert_int_equal(child_with("v3", ""), Z3E_ARG);
}
#endif

int main(void)
{
  /* First: its children must make the choice themselves, before this process has. */
  const struct CMUnitTest tests[] = {
    TEST(test_device_cpu_choice),  TEST(test_device_cpu_memory),          TEST(test_device_cpu_null_memory_is_fake),
    TEST(test_device_cpu_threads), TEST(test_device_cpu_tables_are_full),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
