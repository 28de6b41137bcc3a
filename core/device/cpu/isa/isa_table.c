/* isa_table.c -- the kernels of one level gathered into its table. */
#include "device/cpu/isa/isa_kernels.h"

#define ONE(op, name) .forward[Z3OP_##op] = Z3I_SYM(name), .backward[Z3OP_##op] = Z3I_SYM(name##_grad)
#define UNARY(op) ONE(op, unary)
#define BINARY(op) ONE(op, binary)

static const z3i_isa_table table = {
  .forward[Z3OP_copy] = Z3I_SYM(copy_op), .backward[Z3OP_copy] = Z3I_SYM(copy_grad),
  .forward[Z3OP_cast] = Z3I_SYM(copy_op), .backward[Z3OP_cast] = Z3I_SYM(copy_grad),
  UNARY(neg), UNARY(abs), UNARY(exp), UNARY(log), UNARY(sqrt), UNARY(rsqrt), UNARY(sin), UNARY(cos), UNARY(tanh),
  UNARY(sigmoid), UNARY(relu), UNARY(silu), UNARY(gelu_tanh), UNARY(gelu_erf), UNARY(clamp), UNARY(add_scalar),
  UNARY(mul_scalar), UNARY(rsub_scalar), UNARY(div_scalar), UNARY(rdiv_scalar), UNARY(pow_scalar),
  .forward[Z3OP_isfinite] = Z3I_SYM(unary), .forward[Z3OP_cmp_scalar] = Z3I_SYM(unary),
  BINARY(add), BINARY(sub), BINARY(mul), BINARY(div), BINARY(pow), BINARY(maximum), BINARY(minimum), BINARY(where),
  BINARY(masked_fill), BINARY(swiglu),
  .forward[Z3OP_compare] = Z3I_SYM(binary),
  ONE(sum, reduce), ONE(mean, reduce), ONE(var, reduce), ONE(max, extreme), ONE(min, extreme),
  .forward[Z3OP_argmax] = Z3I_SYM(extreme),
  .forward[Z3OP_amax] = Z3I_SYM(extreme), .backward[Z3OP_amax] = Z3I_SYM(shared_extreme_grad),
  .forward[Z3OP_amin] = Z3I_SYM(extreme), .backward[Z3OP_amin] = Z3I_SYM(shared_extreme_grad),
  ONE(cumsum, cumsum), ONE(tril, tril), ONE(dropout, dropout),
  ONE(layer_norm, layer_norm), ONE(rms_norm, rms_norm), ONE(softmax, softmax), ONE(log_softmax, log_softmax),
  ONE(cross_entropy, cross_entropy), ONE(embedding, embedding), ONE(index_select, index_select), ONE(rope, rope),
  .forward[Z3OP_gather] = Z3I_SYM(gather_op), .backward[Z3OP_gather] = Z3I_SYM(gather_grad),

  .copy = Z3I_SYM(copy),
  .fill = Z3I_SYM(fill),
  .random = Z3I_SYM(random),
  .arange = Z3I_SYM(arange),
  .update = Z3I_SYM(update),
  .sumsq = Z3I_SYM(sumsq),
  .to_f32 = Z3I_SYM(load_f32),
  .from_f32 = Z3I_SYM(store_f32),
  .row_lse = Z3I_SYM(row_lse),
  .row_ce_grad = Z3I_SYM(row_ce_grad),
#define Z3I_TEXT2(s) #s
#define Z3I_TEXT(s) Z3I_TEXT2(s)
  .name = Z3I_TEXT(Z3I_ISA),
};

const z3i_isa_table *Z3I_SYM(isa_table)(void) { return &table; }
