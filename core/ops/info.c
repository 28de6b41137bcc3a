/* info.c -- the table of operations, made from op.def and rules.def. */
#include "ops/op.h"

#define R(op, rule, grad) int z3i_rule_##rule(z3i_run *r); int z3i_grad_##grad(z3i_back *b);
#include "ops/rules.def"
#undef R

enum {
  I0 = Z3I_SAVE_IN0, I1 = I0 << 1, I2 = I0 << 2, I3 = I0 << 3, O0 = Z3I_SAVE_OUT0, X0 = Z3I_SAVE_AUX0, X1 = X0 << 1,
  V = Z3I_OP_VIEW, C = Z3I_OP_CONTIG, E = Z3I_OP_ELEM, N = Z3I_OP_NOGRAD, H = Z3I_OP_HIGH
};

static const struct { z3i_rule rule; z3i_grad_rule grad; } rules[Z3OP_COUNT] = {
#define R(op, rule, grad) [Z3OP_##op] = { z3i_rule_##rule, z3i_grad_##grad },
#include "ops/rules.def"
#undef R
};

static const z3i_opinfo table[Z3OP_COUNT] = {
#define Z3OP(name, min_in, max_in, n_out, n_aux, save, flags)                                                          \
  [Z3OP_##name] = { #name, min_in, max_in, n_out, n_aux, save, flags },
#include "zero3/op.def"
#undef Z3OP
};

const z3i_opinfo *z3i_opinfo_get(int op) { return &table[op]; }
z3i_rule z3i_op_rule(int op) { return rules[op].rule; }
z3i_grad_rule z3i_op_grad(int op) { return rules[op].grad; }

const char *z3_op_name(int op) { return op >= 0 && op < Z3OP_COUNT ? table[op].name : "?"; }

/* Names of inputs, for messages. Elementwise operations call theirs a and b. */
const char *z3i_input_name(int op, int i)
{
  static const char *const of[Z3OP_COUNT][4] = {
    [Z3OP_linear] = { "x", "weight", "bias" },       [Z3OP_embedding] = { "ids", "weight" },
    [Z3OP_layer_norm] = { "x", "weight", "bias" },   [Z3OP_rms_norm] = { "x", "weight" },
    [Z3OP_rope] = { "x", "table", "positions" },     [Z3OP_attention] = { "q", "k", "v", "mask" },
    [Z3OP_cross_entropy] = { "logits", "targets" },  [Z3OP_linear_cross_entropy] = { "x", "weight", "targets" },
    [Z3OP_where] = { "condition", "a", "b" },        [Z3OP_masked_fill] = { "x", "mask" },
    [Z3OP_swiglu] = { "gate", "up" },                [Z3OP_index_select] = { "x", "ids" },
    [Z3OP_gather] = { "x", "ids" },
  };
  static const char *const letters[4] = { "a", "b", "c", "d" };
  if (i >= 0 && i < 4 && of[op][i] != NULL) return of[op][i];
  return table[op].max_in == 1 ? "x" : i >= 0 && i < 4 ? letters[i] : "input";
}
