/* config_batch.c -- train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks: any that
 * are missing follow from the others, as in DeepSpeed, except that nothing is rounded. */
#include <stdio.h>

#include "config/config_state.h"

enum { TOTAL, MICRO, STEPS };
static const char *const names[] = { "train_batch_size", "train_micro_batch_size_per_gpu",
                                     "gradient_accumulation_steps" };

typedef struct batch {
  int key[3];
  int64_t value[3];                               /* 0: not known yet */
  char ranks[32];                                 /* "2 ranks" */
} batch;

static int too_large(const z3_config *c, const batch *b)
{
  return z3i_config_fail(c, Z3E_CONFIG, c->values[b->key[MICRO]].node, true, "the batch is beyond 2^53 samples");
}

/* total = micro * steps * ranks */
static int multiply(const z3_config *c, const batch *b, int64_t *total)
{
  if (__builtin_mul_overflow(b->value[MICRO], b->value[STEPS], total) ||
      __builtin_mul_overflow(*total, (int64_t)c->world, total) || *total > (INT64_C(1) << 53))
    return too_large(c, b);
  return Z3E_OK;
}

/* total / (known * ranks), which has to be whole. known: MICRO, STEPS, or -1 for neither. */
static int divide(const z3_config *c, const batch *b, int known, int64_t *quotient)
{
  int64_t divisor, total = b->value[TOTAL];
  char factor[80] = "";
  if (known >= 0) snprintf(factor, sizeof factor, "%s %" PRId64 " x ", names[known], b->value[known]);
  if (__builtin_mul_overflow(known >= 0 ? b->value[known] : 1, (int64_t)c->world, &divisor)) return too_large(c, b);
  if (total % divisor != 0)
    return z3i_config_fail(c, Z3E_CONFIG, c->values[b->key[TOTAL]].node, true,
                           "%s %" PRId64 " is not a multiple of %s%s = %" PRId64, names[TOTAL], total, factor, b->ranks,
                           divisor);
  *quotient = total / divisor;
  return Z3E_OK;
}

static int derive(const z3_config *c, batch *b)
{
  bool total = b->value[TOTAL] > 0, micro = b->value[MICRO] > 0, steps = b->value[STEPS] > 0;
  if (total && micro) return divide(c, b, MICRO, &b->value[STEPS]);
  if (!steps) b->value[STEPS] = 1;
  if (total) return divide(c, b, steps ? STEPS : -1, &b->value[MICRO]);
  return multiply(c, b, &b->value[TOTAL]);
}

static int check(const z3_config *c, const batch *b)
{
  int64_t product;
  Z3I_TRY(multiply(c, b, &product));
  if (product == b->value[TOTAL]) return Z3E_OK;
  return z3i_config_fail(c, Z3E_CONFIG, c->values[b->key[TOTAL]].node, true,
                         "%s is %" PRId64 ", but %s %" PRId64 " x %s %" PRId64 " x %s = %" PRId64, names[TOTAL],
                         b->value[TOTAL], names[MICRO], b->value[MICRO], names[STEPS], b->value[STEPS], b->ranks,
                         product);
}

int z3i_config_batch(z3_config *c)
{
  batch b = { 0 };
  snprintf(b.ranks, sizeof b.ranks, "%d rank%s", c->world, c->world == 1 ? "" : "s");
  for (int i = 0; i < 3; i++) {
    b.key[i] = z3i_schema_find(names[i]);
    if (c->values[b.key[i]].given) b.value[i] = (int64_t)c->values[b.key[i]].number;
  }
  /* All defaults: the data gives the micro-batch. */
  if (c->doc->nodes[0].count == 0) return z3i_config_set(c, b.key[STEPS], 1, "1");
  if (b.value[TOTAL] == 0 && b.value[MICRO] == 0)
    return z3i_config_fail(c, Z3E_CONFIG, -1, false, "the batch is not determined: give %s or %s%s%s", names[TOTAL],
                           names[MICRO], b.value[STEPS] > 0 ? " beside " : "", b.value[STEPS] > 0 ? names[STEPS] : "");
  if (b.value[TOTAL] > 0 && b.value[MICRO] > 0 && b.value[STEPS] > 0) return check(c, &b);
  Z3I_TRY(derive(c, &b));
  for (int i = 0; i < 3; i++) {
    if (c->values[b.key[i]].given) continue;
    char digits[32];
    snprintf(digits, sizeof digits, "%" PRId64, b.value[i]);
    Z3I_TRY(z3i_config_set(c, b.key[i], (double)b.value[i], digits));
    z3i_text_fmt(&c->derived, "%s%s = %s", c->derived.used > 0 ? ", " : "", names[i], digits);
  }
  z3i_text_fmt(&c->derived, " (%" PRId64 " = %" PRId64 " x %" PRId64 " x %s)", b.value[TOTAL], b.value[MICRO],
               b.value[STEPS], b.ranks);
  return c->derived.rc;
}
