/* test_embed_host.c -- a program with an interpreter inside: scripts run, functions are called with C values, and no
 * script error ends the program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "z3lua.h"

static char program[] = "host", word[] = "word";
static char *host_argv[] = { program, word, NULL };

static int open_vm(void **state)
{
  z3lua *vm = NULL;
  int rc = z3lua_open(&vm, 2, host_argv);
  if (rc != 0) fprintf(stderr, "%s\n", z3lua_error(vm));
  *state = vm;
  return rc;
}

static int close_vm(void **state)
{
  z3lua_close(*state);
  return 0;
}

/* Writes a script to a temporary file; the name is valid until the next call. */
static const char *script(const char *code)
{
  static char path[64];
  snprintf(path, sizeof path, "%s", "/tmp/z3lua_embed_XXXXXX");
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, code, strlen(code)), (int)strlen(code));
  close(fd);
  return path;
}

static void test_embed_calls_with_every_type(void **state)
{
  z3lua *vm = *state;
  int i = 0, b = -1;
  int64_t l = 0;
  double d = 0;
  const char *s = NULL;
  const char *code = "function f(i, l, d, b, s) return i + 1, l * 2, d / 2, not b, s .. '!' end";
  int64_t half = INT64_C(1) << 52;
  assert_int_equal(z3lua_run_string(vm, code, NULL), 0);
  assert_int_equal(z3lua_call(vm, "f", "ildbs>ildbs", 41, half, 3.0, 0, "ok", &i, &l, &d, &b, &s), 0);
  assert_int_equal(i, 42);
  assert_true(l == INT64_C(9007199254740992));
  assert_true(d == 1.5);
  assert_int_equal(b, 1);
  assert_string_equal(s, "ok!");
  assert_int_equal(z3lua_call(vm, "collectgarbage", ""), 0);
  assert_int_equal(z3lua_call(vm, "f", "ildbs", 1, INT64_C(1), 1.0, 1, "x"), 0);
}

static void test_embed_result_string_lives_until_next_call(void **state)
{
  z3lua *vm = *state;
  const char *s = NULL;
  assert_int_equal(z3lua_run_string(vm, "function fresh() return ('ab'):rep(500) end", NULL), 0);
  assert_int_equal(z3lua_call(vm, "fresh", ">s", &s), 0);
  assert_int_equal(z3lua_run_string(vm, "for _ = 1, 4 do collectgarbage() end", NULL), 0);
  assert_int_equal(strlen(s), 1000);
  assert_memory_equal(s + 996, "abab", 4);
}

static void test_embed_runs_file_with_arguments(void **state)
{
  z3lua *vm = *state;
  const char *s = NULL;
  const char *path = script("local a = ...\nfunction got() return arg[0] .. ',' .. arg[1] .. ',' .. a end\n");
  assert_int_equal(z3lua_run_file(vm, path), 0);
  unlink(path);
  assert_int_equal(z3lua_call(vm, "got", ">s", &s), 0);
  assert_string_equal(s, "host,word,word");
}

static void test_embed_error_names_file_and_line(void **state)
{
  z3lua *vm = *state;
  char expected[96];
  const char *path = script("local function inner()\n  error('broken on purpose')\nend\ninner()\n");
  assert_int_not_equal(z3lua_run_file(vm, path), 0);
  snprintf(expected, sizeof expected, "%s:2: broken on purpose", path);
  assert_string_equal(z3lua_error(vm), expected);
  assert_non_null(strstr(z3lua_traceback(vm), ":2: in function 'inner'"));
  assert_non_null(strstr(z3lua_traceback(vm), ":4: in main chunk"));
  unlink(path);
  /* and the interpreter goes on */
  assert_int_equal(z3lua_run_string(vm, "x = 1", NULL), 0);
}

static void test_embed_survives_every_kind_of_error(void **state)
{
  z3lua *vm = *state;
  static const struct { const char *code, *text; } CASES[] = {
    { "x y", "=' expected" },
    { "error()", "a script threw nil that has no text" },
    { "error({})", "a script threw a table that has no text" },
    { "error(setmetatable({}, { __tostring = function() return 'own text' end }))", "own text" },
    { "error(setmetatable({}, { __tostring = function() error 'twice' end }))", "whose text failed" },
    { "local function f() return 1 + f() end f()", "stack overflow" },
    { "os.exit(3)", "os.exit(3): the script wants to end the program" },
    { "coroutine.wrap(function() error('inside') end)()", "inside" },
    { "local t = {} t[nil] = 1", "index is nil" },
    { "require 'no.such.module'", "no.such.module" },
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    assert_int_not_equal(z3lua_run_string(vm, CASES[i].code, "=case"), 0);
    if (strstr(z3lua_error(vm), CASES[i].text) == NULL) {
      fail_msg("case %zu: \"%s\" does not contain \"%s\"", i, z3lua_error(vm), CASES[i].text);
    }
    assert_int_equal(z3lua_run_string(vm, "assert(true)", NULL), 0);
  }
}

static void test_embed_refuses_wrong_results(void **state)
{
  z3lua *vm = *state;
  int i = 7;
  double d = 7;
  assert_int_equal(z3lua_run_string(vm, "function f() return 1.5, 'x' end", NULL), 0);
  assert_int_not_equal(z3lua_call(vm, "f", ">i", &i), 0);
  assert_string_equal(z3lua_error(vm), "f: result 1 is 1.5, wants a whole number that fits an int (i)");
  assert_int_not_equal(z3lua_call(vm, "f", ">dd", &d, &d), 0);
  assert_string_equal(z3lua_error(vm), "f: result 2 is string, wants a number (d)");
  assert_int_not_equal(z3lua_call(vm, "f", ">dsd", &d, &d, &d), 0);
  assert_string_equal(z3lua_error(vm), "f: result 3 is nil, wants a number (d)");
  assert_int_equal(i, 7);
  assert_true(d == 7);
}

static void test_embed_refuses_wrong_calls(void **state)
{
  z3lua *vm = *state;
  assert_int_not_equal(z3lua_call(vm, "nowhere", "i", 1), 0);
  assert_non_null(strstr(z3lua_error(vm), "nowhere: the scripts define no global function"));
  assert_int_not_equal(z3lua_call(vm, "print", "x", 1), 0);
  assert_non_null(strstr(z3lua_error(vm), "signature \"x\" has 'x'"));
  assert_int_not_equal(z3lua_call(vm, "print", "i>d>d", 1), 0);
  assert_non_null(strstr(z3lua_error(vm), "has '>'"));
  assert_int_not_equal(z3lua_run_file(vm, "/no/such/file.lua"), 0);
  assert_non_null(strstr(z3lua_error(vm), "/no/such/file.lua"));
  assert_int_not_equal(z3lua_run_string(NULL, "x = 1", NULL), 0);
  z3lua_close(NULL);
}

static void test_embed_two_interpreters(void **state)
{
  (void)state;
  z3lua *a = NULL, *b = NULL;
  int x = 0;
  assert_int_equal(z3lua_open(&a, 0, NULL), 0);
  assert_int_equal(z3lua_open(&b, 0, NULL), 0);
  assert_int_equal(z3lua_run_string(a, "function f() return 1 end", NULL), 0);
  assert_int_equal(z3lua_run_string(b, "function f() return 2 end", NULL), 0);
  z3lua_close(b);
  assert_int_equal(z3lua_call(a, "f", ">i", &x), 0);
  assert_int_equal(x, 1);
  z3lua_close(a);
}

/* The library is loaded, used, and closed with its interpreter; a second one loads it again. */
static void test_embed_computes(void **state)
{
  (void)state;
  for (int round = 0; round < 2; round++) {
    z3lua *vm = NULL;
    double sum = 0;
    assert_int_equal(z3lua_open(&vm, 0, NULL), 0);
    if (z3lua_run_string(vm, "local z3 = require 'z3'\n"
                             "function f(n) return z3.arange(n):sum():item() end", "=host") != 0 ||
        z3lua_call(vm, "f", "i>d", 1000, &sum) != 0) {
      fail_msg("%s", z3lua_error(vm));
    }
    assert_true(sum == 499500.0);
    assert_int_not_equal(z3lua_run_string(vm, "require('z3').zeros{2,3}:matmul(require('z3').zeros{2,3})", "=host"), 0);
    assert_non_null(strstr(z3lua_error(vm), "host:1: "));
    assert_non_null(strstr(z3lua_error(vm), "[SHAPE]"));
    z3lua_close(vm);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_embed_calls_with_every_type, open_vm, close_vm),
    cmocka_unit_test_setup_teardown(test_embed_result_string_lives_until_next_call, open_vm, close_vm),
    cmocka_unit_test_setup_teardown(test_embed_runs_file_with_arguments, open_vm, close_vm),
    cmocka_unit_test_setup_teardown(test_embed_error_names_file_and_line, open_vm, close_vm),
    cmocka_unit_test_setup_teardown(test_embed_survives_every_kind_of_error, open_vm, close_vm),
    cmocka_unit_test_setup_teardown(test_embed_refuses_wrong_results, open_vm, close_vm),
    cmocka_unit_test_setup_teardown(test_embed_refuses_wrong_calls, open_vm, close_vm),
    cmocka_unit_test(test_embed_two_interpreters),
    cmocka_unit_test(test_embed_computes),
  };
  return cmocka_run_group_tests_name("embed", tests, NULL, NULL);
}
