/* test_config_deepspeed.c -- configuration files as DeepSpeed's users write them are read as DeepSpeed reads them.
 * Files: tests/parity/data/config; manifest.json there has what DeepSpeed 0.19.8 made of each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "config/json.h"
#include "zero3/config.h"

#define FOLDER "tests/parity/data/config/"

/* Files that are read otherwise on purpose. */
static const struct { const char *file; int code; const char *message;
} otherwise[] = {
  { "typo_top_key.json", Z3E_CONFIG, "unknown key 'gradient_cliping'; the nearest known one is 'gradient_clipping'" },
  { "hf_auto_zero2.json", Z3E_CONFIG, "optimizer.params.lr is \"auto\"" },        /* a rate that nothing could tell */
  { "optimizer_no_type.json", Z3E_CONFIG, "optimizer.type is missing" },          /* there it fails in the first step */
  { "optimizer_unknown.json", Z3E_CONFIG, "the nearest known one is \"AdamW\"" }, /* there in initialize */
  { "scheduler_unknown.json", Z3E_CONFIG, "the nearest known one is \"WarmupLR\"" },
  { "offload_nvme_no_path.json", Z3E_CONFIG, "nvme_path is missing" },
  { "fp16_static_scale.json", Z3E_UNSUPPORTED, "not supported yet: fp16.enabled" },
  { "offload_param_stage2.json", Z3E_UNSUPPORTED, "not supported yet: zero_optimization.offload_param.device" },
  { "deprecated_cpu_offload.json", Z3E_UNSUPPORTED, "not supported yet: zero_optimization.offload_optimizer.device" },
};

static const struct { const char *theirs, *ours;
} read_as[] = {
  { "train_batch_size", "train_batch_size" },
  { "train_micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu" },
  { "gradient_accumulation_steps", "gradient_accumulation_steps" },
  { "gradient_clipping", "gradient_clipping" },
  { "zero_optimization_stage", "zero_optimization.stage" },
  { "steps_per_print", "steps_per_print" },
  { "zero.reduce_bucket_size", "zero_optimization.reduce_bucket_size" },
  { "zero.allgather_bucket_size", "zero_optimization.allgather_bucket_size" },
  { "zero.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size" },
  { "zero.param_persistence_threshold", "zero_optimization.stage3_param_persistence_threshold" },
  { "zero.max_live_parameters", "zero_optimization.stage3_max_live_parameters" },
  { "zero.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance" },
  { "zero.sub_group_size", "zero_optimization.sub_group_size" },
  { "zero.overlap_comm", "zero_optimization.overlap_comm" },
  { "zero.gather_16bit_weights_on_model_save", "zero_optimization.stage3_gather_16bit_weights_on_model_save" },
  { "fp16.loss_scale", "fp16.loss_scale" },
  { "fp16.initial_scale_power", "fp16.initial_scale_power" },
  { "bf16", "bf16.enabled" },
};

static void check_values(const z3_json *m, int64_t row, const z3_config *c, const char *file)
{
  int64_t read = z3i_json_member(m, row, "read_as");
  assert_true(read > 0);
  for (size_t i = 0; i < sizeof read_as / sizeof *read_as; i++) {
    char section[64];
    const char *dot = strchr(read_as[i].theirs, '.');
    snprintf(section, sizeof section, "%.*s", dot != NULL ? (int)(dot - read_as[i].theirs) : 0, read_as[i].theirs);
    int64_t at = z3i_json_member(m, dot != NULL ? z3i_json_member(m, read, section) : read,
                                 dot != NULL ? dot + 1 : read_as[i].theirs);
    assert_true(at > 0);
    const z3_json_node *theirs = &m->nodes[at];
    double ours = -12345, value = theirs->kind == Z3J_TRUE;
    if (theirs->kind == Z3J_NUMBER) value = theirs->number;
    if (theirs->kind == Z3J_STRING) value = 1;    /* "1.0" and "auto" clip at 1 */
    if (z3_config_number(c, read_as[i].ours, &ours) != Z3E_OK && theirs->kind == Z3J_NULL) continue;
    if (ours != value) fail_msg("%s: %s is %g, DeepSpeed has %g", file, read_as[i].ours, ours, value);
  }
}

static void check_file(const z3_json *m, int64_t row, int *seen)
{
  const char *file = m->nodes[z3i_json_member(m, row, "file")].text;
  const char *outcome = m->nodes[z3i_json_member(m, row, "outcome")].text;
  int world = (int)m->nodes[z3i_json_member(m, row, "world_size")].whole;
  char path[200];
  snprintf(path, sizeof path, FOLDER "%s", file);
  z3_config *c;
  int rc = z3_config_load(path, world, 0, &c);
  if (rc != Z3E_OK) assert_memory_equal(z3_last_error(), path, strlen(path));
  for (size_t i = 0; i < sizeof otherwise / sizeof *otherwise; i++) {
    if (strcmp(otherwise[i].file, file) != 0) continue;
    (*seen)++;
    if (rc != otherwise[i].code || strstr(z3_last_error(), otherwise[i].message) == NULL)
      fail_msg("%s: %d %s", file, rc, z3_last_error());
    return;
  }
  if (strcmp(outcome, "error") == 0) {
    if (rc != Z3E_CONFIG) fail_msg("%s: DeepSpeed refuses it, here it gives %d", file, rc);
    return;
  }
  if (rc != Z3E_OK) fail_msg("%s: DeepSpeed accepts it: %s", file, z3_last_error());
  assert_true((strcmp(outcome, "warns") == 0) == (z3_config_warnings(c)[0] != '\0'));
  check_values(m, row, c, file);
  z3_config_free(c);
}

static void test_config_deepspeed_files_read_as_there(void **state)
{
  (void)state;
  FILE *f = fopen(FOLDER "manifest.json", "rb");
  assert_non_null(f);
  static char text[1 << 17];
  size_t bytes = fread(text, 1, sizeof text, f);
  fclose(f);
  z3_json *m;
  assert_int_equal(z3_json_parse(text, (int64_t)bytes, "manifest.json", Z3J_STRICT, &m), Z3E_OK);
  int64_t list = z3i_json_member(m, 0, "configs");
  assert_true(m->nodes[list].count >= 45);
  int seen = 0;
  for (int64_t i = list + 1; i < m->nodes[list].next; i = m->nodes[i].next) check_file(m, i, &seen);
  assert_int_equal(seen, (int)(sizeof otherwise / sizeof *otherwise));
  z3_json_free(m);
  assert_int_equal(z3i_alloc_live(), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(test_config_deepspeed_files_read_as_there) };
  return cmocka_run_group_tests_name("config_deepspeed", tests, NULL, NULL);
}
