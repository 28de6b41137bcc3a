/* attn_levels.h -- attention as compiled for each level; device/cpu/attention.c picks one. */
#ifndef Z3I_ATTN_LEVELS_H
#define Z3I_ATTN_LEVELS_H
#include "device/cpu/isa/isa.h"

struct z3i_attn;
enum { ATTN_DECODE_MAX = 4 };                   /* queries up to which attention_decode is the faster way */
#define Z3I_ATTN_LEVEL(level)                                                                       \
  int z3i_attention_##level(const z3i_call *c);                                                     \
  int z3i_attention_grad_##level(const z3i_call *c);                                                \
  int z3i_attention_decode_##level(const struct z3i_attn *f);
Z3I_ATTN_LEVEL(v2)
Z3I_ATTN_LEVEL(v3)
Z3I_ATTN_LEVEL(v4)
Z3I_ATTN_LEVEL(base)
#endif
