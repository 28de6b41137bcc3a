/* test_config_json.c -- JSON text to nodes: values, positions, what is refused and where, memory, random damage. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <cjson/cJSON.h>

#include "config/json.h"

/* cJSON allocates through the counted allocator too, so that its failures are part of the sweep. */
static void *counted_alloc(size_t n) { return z3i_alloc(n); }

static int setup(void **state)
{
  (void)state;
  cJSON_InitHooks(&(cJSON_Hooks){ .malloc_fn = counted_alloc, .free_fn = z3i_free });
  return 0;
}

static int teardown(void **state)
{
  (void)state;
  assert_int_equal(z3i_alloc_live(), 0);
  return 0;
}

static z3_json *parse(const char *text, int flags)
{
  z3_json *doc = NULL;
  int rc = z3_json_parse(text, (int64_t)strlen(text), NULL, flags, &doc);
  if (rc != Z3E_OK) print_message("%s\n", z3_last_error());
  assert_int_equal(rc, Z3E_OK);
  return doc;
}

static void test_config_json_nodes_and_positions(void **state)
{
  (void)state;
  z3_json *doc = parse("{\n  \"a\": [1, \"\xC3\xA9\xC3\xA9\", {}],\n\t\"b\": true, \"c\": null\n}\n", Z3J_STRICT);
  const z3_json_node *n = z3_json_nodes(doc);
  static const struct { int kind, line, column, key_line, key_column; int64_t count, next; } expected[] = {
    { Z3J_OBJECT, 1, 1, 0, 0, 3, 7 }, { Z3J_ARRAY, 2, 8, 2, 3, 3, 5 },  { Z3J_NUMBER, 2, 9, 0, 0, 0, 3 },
    { Z3J_STRING, 2, 12, 0, 0, 0, 4 }, { Z3J_OBJECT, 2, 18, 0, 0, 0, 5 }, { Z3J_TRUE, 3, 7, 3, 2, 0, 6 },
    { Z3J_NULL, 3, 18, 3, 13, 0, 7 },
  };
  assert_int_equal(z3_json_count(doc), 7);
  for (int i = 0; i < 7; i++) {
    assert_int_equal(n[i].kind, expected[i].kind);
    assert_int_equal(n[i].line, expected[i].line);
    assert_int_equal(n[i].column, expected[i].column);    /* in characters: é is one */
    assert_int_equal(n[i].key_line, expected[i].key_line);
    assert_int_equal(n[i].key_column, expected[i].key_column);
    assert_int_equal(n[i].count, expected[i].count);
    assert_int_equal(n[i].next, expected[i].next);
  }
  assert_string_equal(n[1].key, "a");
  assert_string_equal(n[3].text, "\xC3\xA9\xC3\xA9");
  assert_int_equal(z3i_json_member(doc, 0, "c"), 6);
  assert_int_equal(z3i_json_member(doc, 0, "d"), -1);
  assert_int_equal(z3i_json_member(doc, 1, "a"), -1);
  z3_json_free(doc);
}

static void test_config_json_strings_keep_every_byte(void **state)
{
  (void)state;
  z3_json *doc = parse(
      "[\"\\u0000a\\u0000\", \"\\ud83d\\ude00\\u00e9\\n\\/\\\\\", \"\x7F\xF4\x8F\xBF\xBF\", {\"k\\u0000\": 1}]",
      Z3J_STRICT);
  const z3_json_node *n = z3_json_nodes(doc);
  assert_int_equal(n[1].text_bytes, 3);
  assert_memory_equal(n[1].text, "\0a\0", 4);
  assert_int_equal(n[2].text_bytes, 9);
  assert_string_equal(n[2].text, "\xF0\x9F\x98\x80\xC3\xA9\n/\\");
  assert_string_equal(n[3].text, "\x7F\xF4\x8F\xBF\xBF");
  assert_int_equal(n[5].key_bytes, 2);
  assert_memory_equal(n[5].key, "k\0", 3);
  z3_json_free(doc);
}

static void test_config_json_numbers_are_exact_or_marked(void **state)
{
  (void)state;
  static const struct { const char *text; double number; int digits, exact, whole_ok; int64_t whole; } rows[] = {
    { "0", 0, 1, 1, 1, 0 }, { "-0", -0.0, 1, 1, 1, 0 }, { "12", 12, 1, 1, 1, 12 }, { "-7", -7, 1, 1, 1, -7 },
    { "12.0", 12, 0, 1, 1, 12 }, { "5e8", 5e8, 0, 1, 1, 500000000 }, { "1.5", 1.5, 0, 1, 0, 0 },
    { "9007199254740992", 9007199254740992.0, 1, 1, 1, INT64_C(9007199254740992) },
    { "9007199254740993", 9007199254740992.0, 1, 0, 1, INT64_C(9007199254740993) },
    { "9223372036854775807", 9223372036854775808.0, 1, 0, 1, INT64_MAX },
    { "9223372036854775808", 9223372036854775808.0, 1, 1, 0, 0 },
    { "1000000000000000019884624838656", 1e30, 1, 1, 0, 0 }, { "1e30", 1e30, 0, 1, 0, 0 },
    { "0.1000000000000000055511151231257827021181583404541015625", 0.1, 0, 1, 0, 0 },
    { "123456789012345678901234567890123456789012345678901234567890123456789e-60", 123456789.01234567890, 0, 1, 0, 0 },
    { "1e-400", 0, 0, 1, 1, 0 }, { "2.2250738585072011e-308", 2.2250738585072011e-308, 0, 1, 0, 0 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    z3_json *doc = parse(rows[i].text, Z3J_STRICT);
    const z3_json_node *n = z3_json_nodes(doc);
    assert_memory_equal(&n->number, &rows[i].number, 8);
    assert_int_equal(n->digits, rows[i].digits);
    assert_int_equal(n->exact, rows[i].exact);
    assert_int_equal(n->whole_ok, rows[i].whole_ok);
    if (n->whole_ok) assert_int_equal(n->whole, rows[i].whole);
    z3_json_free(doc);
  }
}

static void test_config_json_numbers_ignore_the_locale(void **state)
{
  (void)state;
  static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "nl_NL.UTF-8" };
  bool found = false;
  for (int i = 0; i < 4 && !found; i++)
    found = setlocale(LC_NUMERIC, names[i]) != NULL && localeconv()->decimal_point[0] == ',';
  if (!found) {
    setlocale(LC_NUMERIC, "C");
    skip();                                       /* this machine has no locale with a decimal comma */
  }
  z3_json *doc = parse("[1.5, 0.25]", Z3J_STRICT);
  assert_true(z3_json_nodes(doc)[1].number == 1.5);
  z3i_text t = { 0 };
  z3i_json_write(&t, doc, 0);
  setlocale(LC_NUMERIC, "C");
  assert_string_equal(t.p, "[1.5, 0.25]");
  z3i_text_free(&t);
  z3_json_free(doc);
}

static void test_config_json_refuses_and_says_where(void **state)
{
  (void)state;
  static const struct { const char *text, *message;
  } rows[] = {
    { "", "1:1: there is no value" },
    { "  \n ", "2:2: there is no value" },
    { "{", "1:2: the text ends" },
    { "[1,]", "1:4: ']'" },
    { "{\"a\":1,}", "1:8: '}'" },
    { "[1 2]", "1:4: '2'" },
    { "[1] x", "1:5: 'x'" },
    { "{\"a\" 1}", "1:6: '1' where ':'" },
    { "{a:1}", "1:2: 'a' where a name" },
    { "[01]", "1:2: a number starts" },
    { "[1.]", "1:4: ']' where a digit" },
    { "[.5]", "1:2: '.'" },
    { "[+1]", "1:2: '+'" },
    { "[-]", "1:3: ']' where a digit" },
    { "[1e]", "1:4: ']'" },
    { "[1e999]", "1:2: this number is beyond" },
    { "[0x10]", "1:3: 'x'" },
    { "[NaN]", "1:2: 'NaN' is no JSON value" },
    { "[True]", "'True' is no JSON value: write true" },
    { "nul", "'nul'" },
    { "['a']", "1:2: ''' where a value (text stands in double quotes)" },
    { "\"abc", "1:1: this string has no end" },
    { "\"a\nb\"", "1:1: this string has no end on its line" },
    { "\"a\tb\"", "1:3: a control character" },
    { "\"\\x\"", "1:2: unknown escape" },
    { "\"\\u12g4\"", "1:2: \\u wants four" },
    { "\"\\ud800\"", "a high surrogate" },
    { "\"\\ud800\\u0041\"", "a high surrogate" },
    { "\"\\udc00\"", "a low surrogate" },
    { "\"\xFF\"", "not valid UTF-8" },
    { "\"\xC0\x80\"", "not valid UTF-8" },
    { "\"\xED\xA0\x80\"", "not valid UTF-8" },
    { "\"\xF4\x90\x80\x80\"", "not valid UTF-8" },
    { "\"\xE2\x82\"", "not valid UTF-8" },
    { "\xEF\xBB\xBF{}", "byte 0xEF" },
    { "// c\n1", "'/'" },
    { "# c\n1", "'#'" },
    { "{\"a\": 1,\n \"b\": {\"x\": 1, \"x\": 2}}", "2:16: duplicate key 'x' (first on line 2)" },
    { "{\"a\": 1, \"\\u0061\": 2}", "1:10: duplicate key 'a'" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    z3_json *doc = (z3_json *)1;
    int rc = z3_json_parse(rows[i].text, (int64_t)strlen(rows[i].text), "f.json", Z3J_STRICT, &doc);
    if (rc != Z3E_CORRUPT || strstr(z3_last_error(), rows[i].message) == NULL)
      fail_msg("%s: status %d, \"%s\" lacks \"%s\"", rows[i].text, rc, z3_last_error(), rows[i].message);
    assert_memory_equal(z3_last_error(), "f.json:", 7);
    assert_null(doc);
  }
  z3_json *doc;
  assert_int_equal(z3_json_parse("a\0b", 3, NULL, Z3J_STRICT, &doc), Z3E_CORRUPT);
  assert_memory_equal(z3_last_error(), "line 1, column 1: ", 18);
  assert_int_equal(z3_json_parse(NULL, 3, NULL, Z3J_STRICT, &doc), Z3E_ARG);
}

static void test_config_json_relaxed_takes_what_people_write(void **state)
{
  (void)state;
  static const char *const texts[] = {
    "\xEF\xBB\xBF{\"a\": 1, \"b\": [2, 3]}",
    "{ // x\n \"a\": 1, # y\n /* z\n\n */ \"b\": [2, 3,],\n}",
    "{a: 1\n b: [2\n3]\n}",
    "{a:1,b:[2,3]}// end",
    "/**/{\"a\":/* / * */1,\"b\":[2,3]}#",
    "{\r\n  \"a\": 1,\r\n  \"b\": [2, 3],\r\n}\r\n",
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    z3_json *doc = parse(texts[i], Z3J_RELAXED);
    z3i_text t = { 0 };
    z3i_json_write(&t, doc, 0);
    assert_string_equal(t.p, "{\"a\": 1, \"b\": [2, 3]}");
    z3i_text_free(&t);
    z3_json_free(doc);
  }
  static const char *const wrong[] = { "{a:1 b:2}", "{a:1,,b:2}", "[,]",    "/* open",
                                       "{a:1}}",    "// only\n",  "{1a:2}", "{a:x}" };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    z3_json *doc;
    assert_int_equal(z3_json_parse(wrong[i], (int64_t)strlen(wrong[i]), NULL, Z3J_RELAXED, &doc), Z3E_CORRUPT);
  }
}

static void test_config_json_depth_is_bounded(void **state)
{
  (void)state;
  for (int over = 0; over < 2; over++) {
    char text[2 * Z3I_JSON_DEPTH + 8];
    int depth = Z3I_JSON_DEPTH + over;
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    z3_json *doc;
    int rc = z3_json_parse(text, 2 * depth, NULL, Z3J_STRICT, &doc);
    assert_int_equal(rc, over ? Z3E_CORRUPT : Z3E_OK);
    if (over) assert_non_null(strstr(z3_last_error(), "512 levels"));
    z3_json_free(doc);
  }
  /* An open bracket per byte must not cost a stack frame per byte. */
  char *open = malloc(1 << 20);
  assert_non_null(open);
  memset(open, '[', 1 << 20);
  z3_json *doc;
  assert_int_equal(z3_json_parse(open, 1 << 20, NULL, Z3J_STRICT, &doc), Z3E_CORRUPT);
  free(open);
}

static const char sample[] =
    "{ \"name\": \"a\\u0000b\", \"list\": [1, 2.5, -3e2, true, null], \"in\": { \"x\": \"\\ud83d\\ude00\" },"
    " // note\n  more: { \"deep\": [[[{}]]] }, }";

static void test_config_json_survives_every_failed_allocation(void **state)
{
  (void)state;
  int rc = Z3E_OOM;
  for (int n = 1; rc == Z3E_OOM; n++) {
    assert_true(n < 1000);
    z3_json *doc = NULL;
    z3i_alloc_fail_at(n);
    rc = z3_json_parse(sample, (int64_t)strlen(sample), NULL, Z3J_RELAXED, &doc);
    z3i_alloc_fail_at(0);
    assert_true((rc == Z3E_OK) == (doc != NULL));
    z3_json_free(doc);
    assert_int_equal(z3i_alloc_live(), 0);
    if (n == 1) assert_int_equal(rc, Z3E_OOM);
  }
  assert_int_equal(rc, Z3E_OK);
}

/* Whatever the text, the answer is a status; what was accepted reads back as the same tree. */
static void test_config_json_survives_random_damage(void **state)
{
  (void)state;
  static const char alphabet[] = "{}[]\",:\\/*#\n 0123456789.eE+-utrfalsn_\xC3\xA9\xF0\xFF";
  char text[sizeof sample + 16];
  uint32_t random[4];
  int accepted = 0;
  for (uint64_t round = 0; round < 40000; round++) {
    size_t n = strlen(sample);
    memcpy(text, sample, n + 1);
    z3i_philox(7, 0, round, random);
    for (uint32_t edit = 0; edit <= random[0] % 3; edit++) {
      z3i_philox(7, 1 + edit, round, random);
      size_t at = random[1] % n;
      char c = alphabet[random[2] % (sizeof alphabet - 1)];
      if (random[3] % 3 == 0) text[at] = c;
      else if (random[3] % 3 == 1) memmove(text + at, text + at + 1, n - at), n--;
      else memmove(text + at + 1, text + at, n - at + 1), text[at] = c, n++;
    }
    z3_json *doc = NULL, *again = NULL;
    int rc = z3_json_parse(text, (int64_t)n, NULL, random[0] % 2 ? Z3J_RELAXED : Z3J_STRICT, &doc);
    assert_true(rc == Z3E_OK || rc == Z3E_CORRUPT);
    if (rc == Z3E_OK) {
      z3i_text t = { 0 };
      z3i_json_write(&t, doc, 0);
      assert_int_equal(z3_json_parse(t.p, (int64_t)t.used, NULL, Z3J_STRICT, &again), Z3E_OK);
      assert_int_equal(z3_json_count(doc), z3_json_count(again));
      z3i_text_free(&t);
      accepted++;
    }
    z3_json_free(doc);
    z3_json_free(again);
  }
  assert_true(accepted > 1000);                   /* the loop reaches both outcomes */
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_config_json_nodes_and_positions), T(test_config_json_strings_keep_every_byte),
    T(test_config_json_numbers_are_exact_or_marked), T(test_config_json_numbers_ignore_the_locale),
    T(test_config_json_refuses_and_says_where), T(test_config_json_relaxed_takes_what_people_write),
    T(test_config_json_depth_is_bounded), T(test_config_json_survives_every_failed_allocation),
    T(test_config_json_survives_random_damage),
  };
  return cmocka_run_group_tests_name("config_json", tests, NULL, NULL);
}
