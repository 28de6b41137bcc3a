/* test_base_version.c -- the library says which one it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "zero3/zero3.h"

static void test_base_version_has_three_numbers(void **state)
{
  (void)state;
  int major = -1, minor = -1, patch = -1;
  char rest = 0;
  assert_int_equal(sscanf(z3_version(), "%d.%d.%d%c", &major, &minor, &patch, &rest), 3);
  assert_true(major >= 0 && minor >= 0 && patch >= 0);
}

static void test_base_version_lists_features(void **state)
{
  (void)state;
  const char *features = z3_build_features();
  assert_non_null(strstr(features, "onednn="));
  assert_non_null(strstr(features, "openmp=1"));
  assert_non_null(strstr(features, "mpi="));
  assert_null(strchr(features, '\n'));
}

/* The hash that Lua compares is the one in the generated declarations. */
static void test_base_version_hash_is_that_of_the_headers(void **state)
{
  (void)state;
  char path[256], expected[32];
  const char *build = getenv("Z3_BUILD");
  snprintf(path, sizeof path, "%s/lua/z3/cdef.hash", build != NULL ? build : "build");
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  assert_non_null(fgets(expected, sizeof expected, f));
  fclose(f);
  char got[32];
  snprintf(got, sizeof got, "%016llx\n", (unsigned long long)z3_abi_hash());
  assert_string_equal(got, expected);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_base_version_has_three_numbers),
    cmocka_unit_test(test_base_version_lists_features),
    cmocka_unit_test(test_base_version_hash_is_that_of_the_headers),
  };
  return cmocka_run_group_tests_name("base version", tests, NULL, NULL);
}
