/* test_config_refusals.c -- what is wrong in a configuration is refused with place, key, value and what is allowed;
 * what isn't built with "not supported yet". In the texts ' stands for ". */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "zero3/config.h"

enum { C = Z3E_CONFIG, U = Z3E_UNSUPPORTED };
static const struct { int code; const char *text, *message;
} rows[] = {
  { C, "", "f.json:1:1: there is no value" },
  { C, "// only a comment\n", "f.json:2:1: there is no value" },
  { C, "{'stage': 3}", "f.json:1:2: unknown key 'stage'; the nearest known one is 'zero_optimization.stage'" },
  { C, "{'bf16': {'enable': true}}",
    "f.json:1:11: unknown key 'bf16.enable'; the nearest known one is 'bf16.enabled'" },
  { C, "{'checkpoint': {'writer': {'typ': 1}}}",
    "'checkpoint.writer.typ'; the nearest known one is 'checkpoint.writer.type'" },
  { C, "{'train_batch_size': 8, 'gradient_clipping': null}",
    "gradient_clipping is null; wants a number; leave the key out" },
  { C, "{'train_batch_size': '8x'}", "train_batch_size is \"8x\"; wants a whole number >= 1 (samples)" },
  { C, "{'train_batch_size': 1e16}", "train_batch_size is 1e+16; wants" },
  { C, "{'bf16': {'enabled': 'yes'}}", "f.json:1:22: bf16.enabled is \"yes\"; wants true or false" },
  { C, "{'bf16': true}", "bf16 is true; wants an object" },
  { C, "{'bf16': {}, 'bfloat16': {}}", "bfloat16 and bf16 are one key" },
  { C, "{'bfloat16': {}, 'bf16': {}}", "bf16 and bfloat16 are one key" },
  { C, "{'zero_optimization': {'max_live_parameters': 1, 'stage3_max_live_parameters': 1}}", "are one key" },
  { C, "{'zero_optimization': {'legacy_stage1': true}}", "legacy_stage1 is gone" },
  { C, "{'zero_optimization': {'gather': 'maps'}}", "wants one of \"auto\", \"map\", \"copy\"" },
  { C, "{'zero_optimization': {'max_live_bytes': '12 parsecs'}}",
    "wants bytes: a whole number, or text like \"64MiB\"" },
  { C, "{'aio': {'block_size': 0.5}}", "aio.block_size is 0.5" },
  { C, "{'gradient_allreduce_op': 'sum', 'zero_optimization': {'stage': 3}}", "stage 3 wants \"mean\"" },
  { C, "{'prescale_gradients': true, 'zero_optimization': {'stage': 3}}", "want their defaults at stage 3" },
  { C, "{'optimizer': {'type': 'AdamW', 'params': {'betas': [0.9]}}}", "wants a list of two numbers >= 0, < 1" },
  { C, "{'optimizer': {'type': 'AdamW', 'params': {'betas': [0.9, 1]}}}", "betas is [0.9, 1]" },
  { C, "{'optimizer': {'type': 'AdamW', 'params': {'lrr': 1}}}",
    "'optimizer.params.lrr'; the nearest known one is 'optimizer.params.lr'" },
  { C, "{'optimizer': {'type': 'AdamW', 'params': {'lr': -1}}}", "optimizer.params.lr is -1; wants a number >= 0" },
  { C, "{'optimizer': {'type': 'SGD', 'params': {'nesterov': true}}}", "momentum is 0" },
  { C, "{'optimizer': {'type': 'Adam', 'params': {'max_grad_norm': 1}}, 'gradient_clipping': 2}", "are one key" },
  { C, "{'scheduler': {'type': 'WarmupDecayLR'}}",
    "scheduler.params.total_num_steps is missing; wants a whole number >= 1 (steps)" },
  { C, "{'scheduler': {'type': 'OneCycle', 'params': {'cycle_min_lr': 1}}}", "cycle_max_lr is missing" },
  { C, "{'scheduler': {'type': 'WarmupLR', 'params': {'warmup_num_steps': 0}}}", "warmup_num_steps is 0" },
  { C, "{'scheduler': {'type': 'WarmupLR', 'params': {'warmup_num_steps': 'auto'}}}", "is \"auto\", and nothing here" },
  { C, "{'scheduler': {'type': 'WarmupLR', 'params': {'warmup_type': 'cubic'}}}", "wants one of \"log\", \"linear\"" },
  { C, "{'fp16': {'enabled': true, 'loss_scale_window': 0}}", "fp16.loss_scale_window is 0; wants > 0" },
  { C, "{'bf16': {'enabled': true}, 'data_types': {'param_dtype': 'fp32'}}", "param_dtype contradicts" },
  { C, "{'bf16': {'enabled': true}}", "f.json: the batch is not determined" },
  { C, "{'train_batch_size': 10, 'train_micro_batch_size_per_gpu': 4}",
    "is not a multiple of train_micro_batch_size_per_gpu 4 x 1 rank = 4" },
  { C, "{'train_micro_batch_size_per_gpu': 4503599627370496, 'gradient_accumulation_steps': 4}", "beyond 2^53" },
  { U, "{'train_batch_size': 1, 'optimizer': {'type': 'lamb'}}", "not supported yet: optimizer.type \"Lamb\"" },
  { U, "{'train_batch_size': 1, 'optimizer': {'type': 'RMSprop', 'params': {'rho': 1}}}",
    "optimizer.type \"RMSprop\"" },
  { U, "{'train_batch_size': 1, 'scheduler': {'type': 'StepLR'}}", "not supported yet: scheduler.type \"StepLR\"" },
  { U, "{'train_batch_size': 1, 'optimizer': {'type': 'AdamW', 'params': {'lr': [1, 2]}}}",
    "optimizer.params.lr as a list" },
  { U, "{'train_batch_size': 1, 'optimizer': {'type': 'AdamW', 'params': {'amsgrad': true}}}",
    "not supported yet: optimizer.params.amsgrad = true" },
  { U, "{'train_batch_size': 1, 'activation_checkpointing': {'cpu_checkpointing': true}}",
    "f.json:1:54: not supported yet: activation_checkpointing.cpu_checkpointing = true" },
  { U, "{'train_batch_size': 1, 'sparse_attention': {}}", "not supported yet: sparse_attention" },
  { U, "{'train_batch_size': 1, 'checkpoint': {'save_on_signal': 'd'}}",
    "not supported yet: checkpoint.save_on_signal = \"d\"" },
  { U, "{'train_batch_size': 1, 'elasticity': {'enabled': true, 'version': 0.1}}",
    "not supported yet: elasticity.enabled = true" },
  { U, "{'train_batch_size': 1, 'wandb': {'enabled': 1}, 'comet': {'enabled': true}}",
    "wandb.enabled = true; nor comet.enabled" },
  { U, "{'train_batch_size': 1, 'data_types': {'grad_accum_dtype': 'bf16'}}", "data_types.grad_accum_dtype" },
  { U, "{'train_batch_size': 1, 'compression_training': {'row_pruning': {'shared_parameters': {'enabled': true}}}}",
    "row_pruning.shared_parameters.enabled" },
  { C,
    "{'train_batch_size': 1, 'compression_training': {'row_pruning': {'different_groups': {'rp1': {'params': {'dense': "
    "1}}}}}}",
    "'compression_training.row_pruning.different_groups.*.params.dense'" },
};

static int parse(const char *text, const char *name, int world, z3_config **c)
{
  char json[400];
  size_t n = strlen(text);
  assert_true(n < sizeof json);
  for (size_t i = 0; i <= n; i++) json[i] = text[i] == '\'' ? '"' : text[i];
  return z3_config_parse(json, (int64_t)n, name, world, 0, c);
}

static void test_config_refusals_name_key_value_and_place(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    z3_config *c = (z3_config *)1;
    int rc = parse(rows[i].text, "f.json", 1, &c);
    if (rc != rows[i].code || strstr(z3_last_error(), rows[i].message) == NULL)
      fail_msg("%s: status %d, \"%s\" lacks \"%s\"", rows[i].text, rc, z3_last_error(), rows[i].message);
    assert_memory_equal(z3_last_error(), "f.json:", 7);
    assert_null(c);
  }
  assert_int_equal(z3i_alloc_live(), 0);
}

/* A table has no file: the key alone says where. */
static void test_config_refusals_without_a_file(void **state)
{
  (void)state;
  z3_config *c;
  assert_int_equal(parse("{'train_batch_size': 0}", NULL, 1, &c), Z3E_CONFIG);
  assert_string_equal(z3_last_error(), "config: train_batch_size is 0; wants a whole number >= 1 (samples)");
  assert_int_equal(parse("{'train_batch_size': 8}", NULL, 0, &c), Z3E_ARG);
  assert_int_equal(z3_config_load("tests/no/such/file.json", 1, 0, &c), Z3E_IO);
  assert_non_null(strstr(z3_last_error(), "tests/no/such/file.json"));
  assert_int_equal(z3_config_load("tests", 1, 0, &c), Z3E_IO);
}

/* What only matters between ranks is accepted on one, and refused on two until it is built. */
static void test_config_refusals_between_ranks(void **state)
{
  (void)state;
  static const char *const texts[] = {
    "{'train_batch_size': 2, 'zero_optimization': {'stage': 3}}", "{'train_batch_size': 2, 'prescale_gradients': true}",
    "{'train_batch_size': 2, 'zero_optimization': {'reduce_per_micro_batch': true}}",
    "{'train_batch_size': 2, 'communication_data_type': 'fp16'}",
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    z3_config *c;
    assert_int_equal(parse(texts[i], NULL, 1, &c), Z3E_OK);
    z3_config_free(c);
    assert_int_equal(parse(texts[i], NULL, 2, &c), Z3E_UNSUPPORTED);
    assert_non_null(strstr(z3_last_error(), "on more than one rank"));
  }
  assert_int_equal(z3i_alloc_live(), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_config_refusals_name_key_value_and_place),
    cmocka_unit_test(test_config_refusals_without_a_file),
    cmocka_unit_test(test_config_refusals_between_ranks),
  };
  return cmocka_run_group_tests_name("config_refusals", tests, NULL, NULL);
}
