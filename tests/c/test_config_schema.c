/* test_config_schema.c -- the table of configuration keys holds together; defaults, sizes, flags; memory, random
 * damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <cjson/cJSON.h>

#include "config/config_state.h"

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

/* In the tests' texts ' stands for ". */
static int parse(const char *text, int flags, z3_config **c)
{
  static char json[1 << 16];
  size_t n = strlen(text);
  assert_true(n < sizeof json);
  for (size_t i = 0; i <= n; i++) json[i] = text[i] == '\'' ? '"' : text[i];
  return z3_config_parse(json, (int64_t)n, "f.json", 1, flags, c);
}

static void test_config_schema_holds_together(void **state)
{
  (void)state;
  int keys = 0;
  for (int i = 0; i < z3i_schema_count(); i++) {
    const z3i_key *k = z3i_schema_at(i);
    char path[300];
    if (k->type == Z3I_CT_SECTION) {
      assert_int_equal(z3i_schema_find(k->name), i);              /* no section twice */
      if (k->name[0] != '\0') assert_true(z3i_schema_parent(i) >= 0);
      snprintf(path, sizeof path, "%s.%s", k->name, k->value);
      if (k->value[0] != '\0' && k->value[0] != '+' && k->value[0] != '*') assert_true(z3i_schema_find(path) > 0);
      continue;
    }
    snprintf(path, sizeof path, "%s%s%s", z3i_schema_at(z3i_schema_section(i))->name,
             z3i_schema_section(i) > 0 ? "." : "", k->name);
    if (z3i_schema_find(path) != i) fail_msg("%s stands twice", path);
    if (k->type == Z3I_CT_ALIAS || k->type == Z3I_CT_OLD) {
      if (k->value[0] != '\0' && z3i_schema_find(k->value) < 0) fail_msg("%s stands for %s", path, k->value);
      continue;
    }
    keys++;
    assert_true(k->doc[0] != '\0');
    if (k->type == Z3I_CT_GROUPS) {
      strcat(path, ".*");
      assert_true(z3i_schema_find(path) > 0);
    }
  }
  assert_int_equal(keys, z3_config_key_count());
  assert_true(keys > 500);
}

/* Every default is a value that its own key accepts. */
static void test_config_schema_defaults_are_accepted(void **state)
{
  (void)state;
  z3_config *c;
  assert_int_equal(parse("{'train_batch_size': 1}", 0, &c), Z3E_OK);
  for (int i = 0; i < z3i_schema_count(); i++) {
    const z3i_key *k = z3i_schema_at(i);
    if (k->type < Z3I_CT_BOOL || k->value[0] == '!' || strcmp(k->value, "null") == 0) continue;
    bool text = k->type == Z3I_CT_STR || k->type == Z3I_CT_PATH || k->type == Z3I_CT_ENUM || k->type == Z3I_CT_INTAUTO;
    char json[300], path[300];
    snprintf(json, sizeof json, text ? "\"%s\"" : "%s", k->value);
    z3_json *own = c->doc;
    assert_int_equal(z3_json_parse(json, (int64_t)strlen(json), NULL, Z3J_STRICT, &c->doc), Z3E_OK);
    if (z3i_config_value(c, i, 0, false) != Z3E_OK)
      fail_msg("%s: %s", z3i_schema_path(i, path, sizeof path), z3_last_error());
    z3_json_free(c->doc);
    c->doc = own;
  }
  z3_config_free(c);
}

/* What is printed reads back as itself: names, types and defaults of the dump are the schema's. */
static void test_config_schema_dump_reads_back(void **state)
{
  (void)state;
  static const char *const texts[] = {
    "{'train_batch_size': 8}",
    "{'train_batch_size': 8, 'optimizer': {'type': 'lion', 'params': {'lr': 3e-4}}, 'zero_optimization': {'stage': 3}}",
    "{'train_batch_size': 8, 'scheduler': {'type': 'OneCycle', 'params': {'cycle_min_lr': 0, 'cycle_max_lr': 1e-3}}}",
    "{'train_batch_size': 8, 'bf16': {'enabled': true}, 'optimizer': {'type': 'SGD'}}",
    "{'train_batch_size': 8, 'wandb': {'team': 'a\\'b\\u00e9'}, 'elasticity': {'micro_batch_sizes': [1, 2]}}",
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    z3_config *a, *b;
    assert_int_equal(parse(texts[i], 0, &a), Z3E_OK);
    if (parse(z3_config_dump(a), 0, &b) != Z3E_OK) fail_msg("%s", z3_last_error());
    assert_string_equal(z3_config_dump(a), z3_config_dump(b));
    assert_string_equal(z3_config_warnings(b), "");
    z3_config_free(a);
    z3_config_free(b);
  }
}

static double number(const z3_config *c, const char *key)
{
  double value = -12345;
  assert_int_equal(z3_config_number(c, key, &value), Z3E_OK);
  return value;
}

static void test_config_schema_values_by_path(void **state)
{
  (void)state;
  z3_config *c;
  const char *text;
  double value;
  static const char given[] =
    "{'train_batch_size': 8, 'optimizer': {'type': 'adam', 'params': {'torch_adam': true, 'lr': '0.5'}},"
    " 'zero_optimization': {'max_live_bytes': '1.5GiB', 'prefetch_bytes': '16 MB',"
    " 'stage3_model_persistence_threshold': 9223372036854775807}}";
  assert_int_equal(parse(given, 0, &c), Z3E_OK);
  assert_true(number(c, "optimizer.params.lr") == 0.5);
  assert_true(number(c, "optimizer.params.weight_decay") == 0.01);   /* PyTorch's AdamW */
  assert_true(number(c, "zero_optimization.max_live_bytes") == 1610612736.0);
  assert_true(number(c, "zero_optimization.prefetch_bytes") == 16e6);
  assert_true(number(c, "zero_optimization.stage3_model_persistence_threshold") == 9007199254740992.0);
  assert_true(number(c, "zero_optimization.sub_group_size") == 1e9);
  assert_true(number(c, "bf16.check_grad_overflow") == 1);
  assert_int_equal(z3_config_string(c, "optimizer.type", &text), Z3E_OK);
  assert_string_equal(text, "Adam");
  assert_int_equal(z3_config_string(c, "zero_optimization.gather", &text), Z3E_OK);
  assert_string_equal(text, "auto");
  assert_true(z3_config_given(c, "optimizer.params.lr"));
  assert_false(z3_config_given(c, "gradient_clipping"));
  assert_false(z3_config_given(c, "nonsense"));
  assert_int_equal(z3_config_number(c, "steps_per_print", &value), Z3E_ARG);      /* null */
  assert_int_equal(z3_config_number(c, "optimizer.type", &value), Z3E_ARG);
  assert_int_equal(z3_config_number(c, "gradient_cliping", &value), Z3E_ARG);
  assert_non_null(strstr(z3_last_error(), "'gradient_clipping'"));
  assert_string_equal(z3_config_derived(c),
                      "train_micro_batch_size_per_gpu = 8, gradient_accumulation_steps = 1 (8 = 8 x 1 x 1 rank)");
  z3_config_free(c);
}

static void test_config_schema_caller_brings_optimizer_and_schedule(void **state)
{
  (void)state;
  static const char text[] =
    "{'train_batch_size': 8, 'optimizer': {'type': 'Lamb', 'params': {'lr': 'auto', 'max_grad_norm': 3}},"
    " 'scheduler': {}}";
  z3_config *c;
  assert_int_equal(parse(text, 0, &c), Z3E_CONFIG);
  assert_int_equal(parse(text, Z3CFG_OWN_OPTIMIZER, &c), Z3E_CONFIG);
  assert_int_equal(parse(text, Z3CFG_OWN_OPTIMIZER | Z3CFG_OWN_SCHEDULE, &c), Z3E_OK);
  assert_true(number(c, "gradient_clipping") == 1);                                /* the section is overridden whole */
  assert_non_null(strstr(z3_config_dump(c), "\"optimizer\": null"));
  z3_config_free(c);
}

static void test_config_schema_empty_is_all_defaults(void **state)
{
  (void)state;
  z3_config *c;
  double value;
  assert_int_equal(parse("{}", 0, &c), Z3E_OK);
  assert_int_equal(z3_config_number(c, "train_batch_size", &value), Z3E_ARG);
  assert_true(number(c, "gradient_accumulation_steps") == 1);
  assert_true(number(c, "gradient_clipping") == 1);
  assert_string_equal(z3_config_derived(c), "");
  z3_config_free(c);
}

static void test_config_schema_lists_its_keys(void **state)
{
  (void)state;
  z3_config_key k;
  bool found = false;
  for (int i = 0; i < z3_config_key_count(); i++) {
    assert_int_equal(z3_config_key_get(i, &k), Z3E_OK);
    if (strcmp(k.section, "zero_optimization") != 0 || strcmp(k.name, "reduce_bucket_size") != 0) continue;
    found = true;
    assert_string_equal(k.type, "int");
    assert_string_equal(k.value, "500000000");
    assert_string_equal(k.unit, "elements");
    assert_string_equal(k.status, "hint");
  }
  assert_true(found);
  assert_int_equal(z3_config_key_get(-1, &k), Z3E_ARG);
  assert_int_equal(z3_config_key_get(z3_config_key_count(), &k), Z3E_ARG);
}

static void test_config_schema_spelling_distance(void **state)
{
  (void)state;
  assert_int_equal(z3i_edit_distance("stage", "stage"), 0);
  assert_int_equal(z3i_edit_distance("stgae", "stage"), 1);
  assert_int_equal(z3i_edit_distance("", "abc"), 3);
  assert_int_equal(z3i_edit_distance("kitten", "sitting"), 3);
  assert_true(z3i_range_holds(">= 0, < 1", 0) && !z3i_range_holds(">= 0, < 1", 1) && !z3i_range_holds("> 0", 0));
  assert_true(z3i_range_holds("0 .. 3", 3) && !z3i_range_holds("0 .. 3", 3.5) && z3i_range_holds("", -1));
}

/* ---- memory and damage --------------------------------------------------------------------------- */
static const char sample[] =
  "{ 'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 'auto', 'gradient_accumulation_steps': 4,\n"
  "  'bfloat16': {'enabled': true}, 'optimizer': {'type': 'adam', 'params': {'betas': [0, 0.5], 'max_grad_norm': 2}},\n"
  "  'scheduler': {'type': 'WarmupDecayLR', 'params': {'total_num_steps': 10}}, // c\n"
  "  'zero_optimization': {'stage': 2, 'cpu_offload': false, 'leaf_module': {'names': ['a', 'b']}},\n"
  "  'compression_training': {'row_pruning': {'different_groups': {'g': {'modules': '*'}}}}, }";

static void test_config_schema_survives_every_failed_allocation(void **state)
{
  (void)state;
  int rc = Z3E_OOM;
  for (int n = 1; rc == Z3E_OOM; n++) {
    assert_true(n < 2000);
    z3_config *c = NULL;
    z3i_alloc_fail_at(n);
    rc = parse(sample, 0, &c);
    z3i_alloc_fail_at(0);
    assert_true((rc == Z3E_OK) == (c != NULL));
    if (c != NULL) assert_non_null(strstr(z3_config_dump(c), "\"gradient_clipping\": 2"));
    z3_config_free(c);
    assert_int_equal(z3i_alloc_live(), 0);
  }
  assert_int_equal(rc, Z3E_OK);
}

/* Whatever the text, the answer is a status, and what is accepted can be printed and read again. */
static void test_config_schema_survives_random_damage(void **state)
{
  (void)state;
  static const char *const pieces[] = { "null", "true", "'auto'", "-1", "1e9", "{}", "[]", "'x'", "[1, 2]", "8" };
  char text[sizeof sample + 64];
  uint32_t random[4];
  int accepted = 0;
  for (uint64_t round = 0; round < 1500; round++) {
    size_t n = strlen(sample);
    memcpy(text, sample, n + 1);
    z3i_philox(11, 0, round, random);
    size_t at = random[0] % n;
    if (random[1] % 3 == 0) {                     /* one letter of a name or value */
      text[at] = (char)('a' + random[2] % 26);
    } else {                                      /* another value behind some colon */
      const char *colon = strchr(text + at, ':');
      if (colon == NULL) continue;
      const char *piece = pieces[random[2] % (sizeof pieces / sizeof *pieces)];
      size_t from = (size_t)(colon - text) + 1, skip_bytes = strcspn(colon + 1, ",}]\n");
      memmove(text + from + strlen(piece), text + from + skip_bytes, n - from - skip_bytes + 1);
      memcpy(text + from, piece, strlen(piece));
    }
    z3_config *c = NULL, *again = NULL;
    int rc = parse(text, 0, &c);
    assert_true(rc == Z3E_OK || rc == Z3E_CONFIG || rc == Z3E_UNSUPPORTED);
    if (rc == Z3E_OK && number(c, "gradient_accumulation_steps") > 0) {
      if (parse(z3_config_dump(c), 0, &again) != Z3E_OK) fail_msg("%s\n%s", text, z3_last_error());
      assert_string_equal(z3_config_dump(c), z3_config_dump(again));
      accepted++;
    }
    z3_config_free(c);
    z3_config_free(again);
    assert_int_equal(z3i_alloc_live(), 0);
  }
  assert_true(accepted > 100);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_config_schema_holds_together), T(test_config_schema_defaults_are_accepted),
    T(test_config_schema_dump_reads_back), T(test_config_schema_values_by_path),
    T(test_config_schema_caller_brings_optimizer_and_schedule), T(test_config_schema_empty_is_all_defaults),
    T(test_config_schema_lists_its_keys), T(test_config_schema_spelling_distance),
    T(test_config_schema_survives_every_failed_allocation), T(test_config_schema_survives_random_damage),
  };
  return cmocka_run_group_tests_name("config_schema", tests, NULL, NULL);
}
