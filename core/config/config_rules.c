/* config_rules.c -- what no single key can tell: sections by type, old keys, contradictions. */
#include <stdio.h>
#include <strings.h>

#include "config/config_state.h"

/* ---- optimizer and scheduler: parameters by type ------------------------------------------------- */
typedef struct type_rule {
  const char *section;                            /* "optimizer" */
  const char *built, *known;                      /* "A|B": ours, and those that only DeepSpeed or PyTorch has */
  bool any_case;                                  /* DeepSpeed compares optimizer names without case */
} type_rule;

static const type_rule type_rules[] = {
  { "optimizer", "AdamW|Adam|SGD|Lion",
    "Lamb|Adagrad|OneBitAdam|ZeroOneAdam|OneBitLamb|Muon|MuAdam|MuAdamW|MuSGD|Adadelta|Adafactor|Adamax|ASGD|LBFGS|"
    "NAdam|RAdam|RMSprop|Rprop|SparseAdam", true },
  { "scheduler", "WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest",
    "LambdaLR|MultiplicativeLR|StepLR|MultiStepLR|ConstantLR|LinearLR|ExponentialLR|PolynomialLR|CosineAnnealingLR|"
    "CosineAnnealingWarmRestarts|ChainedScheduler|SequentialLR|ReduceLROnPlateau|CyclicLR|OneCycleLR|SWALR", false },
};

/* The word of "A|B|C" that is `name`, into room; false: none. */
static bool word_find(const char *words, const char *name, bool any_case, char *room, size_t room_bytes)
{
  const char *word;
  size_t n;
  while ((n = z3i_word_next(&words, &word)) > 0) {
    if (strlen(name) != n || (any_case ? strncasecmp(word, name, n) : strncmp(word, name, n)) != 0) continue;
    snprintf(room, room_bytes, "%.*s", (int)n, word);
    return true;
  }
  return false;
}

static char *word_nearest(const char *words, const char *name, char *room, size_t room_bytes)
{
  const char *word;
  char candidate[64];
  int best = -1;
  size_t n;
  while ((n = z3i_word_next(&words, &word)) > 0) {
    snprintf(candidate, sizeof candidate, "%.*s", (int)n, word);
    int d = z3i_edit_distance(name, candidate);
    if (best >= 0 && d >= best) continue;
    best = d;
    snprintf(room, room_bytes, "%s", candidate);
  }
  return room;
}

/* Every key that has to be there is. */
static int check_required(z3_config *c, int section)
{
  char path[256], wants[300];
  for (int i = section + 1; i < z3i_schema_count() && z3i_schema_at(i)->type != Z3I_CT_SECTION; i++)
    if (z3i_schema_at(i)->value[0] == '!' && z3i_schema_at(i)->type >= Z3I_CT_BOOL && !c->values[i].given)
      return z3i_config_fail(c, Z3E_CONFIG, c->values[section].node, true, "%s is missing; wants %s: %s",
                             z3i_schema_path(i, path, sizeof path), z3i_config_wants(i, wants, sizeof wants),
                             z3i_schema_at(i)->doc);
  return Z3E_OK;
}

static int read_params(z3_config *c, const type_rule *r, const char *type)
{
  char path[128];
  int64_t node = z3i_json_member(c->doc, z3i_config_node(c, r->section), "params");
  snprintf(path, sizeof path, "%s.params@%s", r->section, strcmp(type, "Adam") == 0 ? "AdamW" : type);
  int section = z3i_schema_find(path);
  if (section < 0) return Z3E_OK;                 /* a class of PyTorch's: refused below, whatever its parameters */
  c->values[section].given = true;
  c->values[section].node = node;
  if (node >= 0 && c->doc->nodes[node].kind == Z3J_OBJECT) Z3I_TRY(z3i_config_walk(c, section, node, true));
  return check_required(c, section);
}

static int rule_type(z3_config *c, const type_rule *r)
{
  char path[64], type[64], nearest[64], all[700];
  if (!z3i_config_has(c, r->section)) return Z3E_OK;
  Z3I_TRY(check_required(c, z3i_schema_find(r->section)));
  snprintf(path, sizeof path, "%s.type", r->section);
  snprintf(all, sizeof all, "%s|%s", r->built, r->known);
  int key = z3i_schema_find(path);
  const char *given = c->values[key].text;
  int64_t node = c->values[key].node;
  if (!word_find(all, given, r->any_case, type, sizeof type))
    return z3i_config_fail(c, Z3E_CONFIG, node, false, "%s is \"%.80s\"; the nearest known one is \"%s\" (built: %s)",
                           path, given, word_nearest(all, given, nearest, sizeof nearest), r->built);
  Z3I_TRY(read_params(c, r, type));
  char json[80];
  snprintf(json, sizeof json, "\"%s\"", type);
  Z3I_TRY(z3i_config_set(c, key, 0, json));
  return Z3E_OK;
}

/* After all that is wrong: what is right, and not built. */
static int rule_type_built(const z3_config *c, const type_rule *r)
{
  char path[64], type[64];
  if (!z3i_config_has(c, r->section)) return Z3E_OK;
  snprintf(path, sizeof path, "%s.type", r->section);
  int key = z3i_schema_find(path);
  if (word_find(r->built, c->values[key].text, false, type, sizeof type)) return Z3E_OK;
  return z3i_config_fail(c, Z3E_UNSUPPORTED, c->values[key].node, false, "not supported yet: %s \"%s\" (built: %s)",
                         path, c->values[key].text, r->built);
}

static int rule_optimizer(z3_config *c)
{
  if (!z3i_config_has(c, "optimizer")) return Z3E_OK;
  const char *adam = "optimizer.params@AdamW.adam_w_mode", *decay = "optimizer.params@AdamW.weight_decay";
  bool named_adamw = z3i_config_is(c, "optimizer.type", "AdamW");
  if (named_adamw && z3i_config_num(c, adam) == 0) {
    z3i_config_warn(c, z3i_config_node(c, adam), "adam_w_mode has no effect with type AdamW; write type Adam for L2");
    Z3I_TRY(z3i_config_set(c, z3i_schema_find(adam), 1, "true"));
  }
  bool decoupled = named_adamw || (z3i_config_is(c, "optimizer.type", "Adam") && z3i_config_num(c, adam) != 0);
  if (decoupled && z3i_config_num(c, "optimizer.params@AdamW.torch_adam") != 0 && !z3i_config_has(c, decay))
    Z3I_TRY(z3i_config_set(c, z3i_schema_find(decay), 0.01, "0.01"));
  const char *nesterov = "optimizer.params@SGD.nesterov";
  if (z3i_config_num(c, nesterov) != 0 && z3i_config_num(c, "optimizer.params@SGD.momentum") == 0)
    return z3i_config_fail(c, Z3E_CONFIG, z3i_config_node(c, nesterov), true,
                           "optimizer.params.nesterov is true, and momentum is 0; it wants momentum > 0");
  return Z3E_OK;
}

/* ---- keys of older versions ---------------------------------------------------------------------- */
static int rule_old_offload(z3_config *c, const char *old, const char *section)
{
  char path[128];
  if (!z3i_config_has(c, old)) return Z3E_OK;
  int64_t node = z3i_config_node(c, old);
  int kind = c->doc->nodes[node].kind;
  if (kind != Z3J_TRUE && kind != Z3J_FALSE)
    return z3i_config_fail(c, Z3E_CONFIG, node, false, "%s is %s; wants true or false", old,
                           z3i_config_show(c, node, path, 100));
  if (z3i_config_has(c, section))
    return z3i_config_fail(c, Z3E_CONFIG, node, true, "%s is the old form of %s: give one of them", old, section);
  if (kind == Z3J_FALSE) return Z3E_OK;
  snprintf(path, sizeof path, "%s.device", section);
  int device = z3i_schema_find(path);
  c->values[device].node = node;
  return z3i_config_set(c, device, 0, "\"cpu\"");
}

static int rule_old(z3_config *c)
{
  Z3I_TRY(rule_old_offload(c, "zero_optimization.cpu_offload", "zero_optimization.offload_optimizer"));
  Z3I_TRY(rule_old_offload(c, "zero_optimization.cpu_offload_param", "zero_optimization.offload_param"));
  int64_t node = z3i_config_node(c, "zero_optimization.legacy_stage1");
  if (node >= 0 && c->doc->nodes[node].kind != Z3J_FALSE)
    return z3i_config_fail(c, Z3E_CONFIG, node, true,
                           "zero_optimization.legacy_stage1 is gone from DeepSpeed; leave it out");
  return Z3E_OK;
}

/* ---- contradictions ------------------------------------------------------------------------------ */
static int rule_precision(z3_config *c)
{
  bool bf16 = z3i_config_num(c, "bf16.enabled") != 0, fp16 = z3i_config_num(c, "fp16.enabled") != 0;
  int64_t node = z3i_config_node(c, "fp16.enabled");
  if (bf16 && fp16)
    return z3i_config_fail(c, Z3E_CONFIG, node, true, "fp16.enabled and bf16.enabled are both true; choose one");
  static const char *const positive[] = { "fp16.loss_scale_window", "fp16.min_loss_scale" };
  for (int i = 0; fp16 && z3i_config_num(c, "fp16.loss_scale") == 0 && i < 2; i++)
    if (z3i_config_num(c, positive[i]) <= 0)
      return z3i_config_fail(c, Z3E_CONFIG, z3i_config_node(c, positive[i]), false,
                             "%s is %.0f; wants > 0 with a dynamic scale (loss_scale 0)", positive[i],
                             z3i_config_num(c, positive[i]));
  const char *mode = bf16 ? "bf16" : fp16 ? "fp16" : "fp32", *param = "data_types.param_dtype";
  if (z3i_config_has(c, param) && !z3i_config_is(c, param, mode))
    return z3i_config_fail(c, Z3E_CONFIG, z3i_config_node(c, param), false,
                           "data_types.param_dtype contradicts the mode of this file, which computes in %s", mode);
  return Z3E_OK;
}

static int rule_offload(z3_config *c)
{
  static const char *const tiers[] = { "zero_optimization.offload_param", "zero_optimization.offload_optimizer" };
  char device[80], path[80];
  for (int i = 0; i < 2; i++) {
    snprintf(device, sizeof device, "%s.device", tiers[i]);
    snprintf(path, sizeof path, "%s.nvme_path", tiers[i]);
    if (z3i_config_is(c, device, "nvme") && !z3i_config_has(c, path))
      return z3i_config_fail(c, Z3E_CONFIG, z3i_config_node(c, device), false, "%s is \"nvme\"; %s is missing", device,
                             path);
  }
  const char *ratio = "zero_optimization.offload_optimizer.ratio";
  if (z3i_config_num(c, ratio) < 1 && z3i_config_num(c, "zero_optimization.stage") != 3)
    return z3i_config_fail(c, Z3E_CONFIG, z3i_config_node(c, ratio), false, "%s is %g; less than 1 wants stage 3",
                           ratio, z3i_config_num(c, ratio));
  return Z3E_OK;
}

static int rule_ranks(z3_config *c)
{
  bool stage3 = z3i_config_num(c, "zero_optimization.stage") == 3;
  const char *op = "gradient_allreduce_op", *prescale = "prescale_gradients", *factor = "gradient_predivide_factor";
  if (stage3 && z3i_config_is(c, op, "sum"))
    return z3i_config_fail(c, Z3E_CONFIG, z3i_config_node(c, op), true, "%s is \"sum\"; stage 3 wants \"mean\"", op);
  bool scatter = z3i_config_num(c, "zero_optimization.reduce_scatter") != 0;
  if (stage3 && scatter && (z3i_config_num(c, prescale) != 0 || z3i_config_num(c, factor) != 1))
    return z3i_config_fail(c, Z3E_CONFIG, Z3I_MAX(z3i_config_node(c, prescale), z3i_config_node(c, factor)), true,
                           "%s and %s want their defaults at stage 3 with reduce_scatter", prescale, factor);
  /* What depends on the stage is filled in. */
  int overlap = z3i_schema_find("zero_optimization.overlap_comm");
  int per_micro = z3i_schema_find("zero_optimization.reduce_per_micro_batch");
  bool shards_gradients = z3i_config_num(c, "zero_optimization.stage") >= 2;
  if (!c->values[overlap].given) Z3I_TRY(z3i_config_set(c, overlap, stage3, stage3 ? "true" : "false"));
  if (!c->values[per_micro].given)
    Z3I_TRY(z3i_config_set(c, per_micro, shards_gradients, shards_gradients ? "true" : "false"));
  return Z3E_OK;
}

int z3i_config_rules(z3_config *c)
{
  for (int i = 0; i < 2; i++) Z3I_TRY(rule_type(c, &type_rules[i]));
  Z3I_TRY(rule_old(c));
  Z3I_TRY(rule_optimizer(c));
  Z3I_TRY(rule_precision(c));
  Z3I_TRY(rule_offload(c));
  Z3I_TRY(rule_ranks(c));
  Z3I_TRY(z3i_config_batch(c));
  for (int i = 0; i < 2; i++) Z3I_TRY(rule_type_built(c, &type_rules[i]));
  return Z3E_OK;
}
