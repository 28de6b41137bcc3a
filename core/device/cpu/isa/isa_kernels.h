/* isa_kernels.h -- the kernels of this folder at the level being compiled: what isa_table.c gathers. */
#ifndef Z3I_ISA_KERNELS_H
#define Z3I_ISA_KERNELS_H
#include "device/cpu/isa/isa.h"

#define Z3I_KERNEL(name) int Z3I_SYM(name)(const z3i_call *c)

/* elem_unary.c, elem_grad.c: elementwise operations of one input; c->op tells which */
Z3I_KERNEL(unary);
Z3I_KERNEL(unary_grad);
/* elem_binary.c: add sub mul div pow maximum minimum compare where masked_fill swiglu */
Z3I_KERNEL(binary);
Z3I_KERNEL(binary_grad);
/* elem_copy.c */
Z3I_KERNEL(copy_op);                            /* copy, cast */
Z3I_KERNEL(copy_grad);
int Z3I_SYM(copy)(const z3i_view *dst, const z3i_view *src);
int Z3I_SYM(fill)(const z3i_view *dst, double value);
int Z3I_SYM(arange)(const z3i_view *dst, double start, double step);
/* reduce.c, reduce_extreme.c, reduce_sumsq.c, scan.c */
Z3I_KERNEL(reduce);                             /* sum, mean, var */
Z3I_KERNEL(reduce_grad);
Z3I_KERNEL(extreme);                            /* max, min, amax, amin, argmax */
Z3I_KERNEL(extreme_grad);
Z3I_KERNEL(shared_extreme_grad);
Z3I_KERNEL(cumsum);
Z3I_KERNEL(cumsum_grad);
Z3I_KERNEL(tril);
Z3I_KERNEL(tril_grad);
int Z3I_SYM(sumsq)(const z3i_view *x, double *sum, int64_t *nonfinite);
/* random.c, update_kernels.c */
int Z3I_SYM(random)(const z3i_view *dst, int kind, double a, double b, uint64_t key, int64_t first);
int Z3I_SYM(update)(const z3i_update *u);
/* dropout.c */
Z3I_KERNEL(dropout);
Z3I_KERNEL(dropout_grad);
/* norm.c, softmax.c, loss.c, embed.c, index.c, rope.c */
Z3I_KERNEL(layer_norm);
Z3I_KERNEL(layer_norm_grad);
Z3I_KERNEL(rms_norm);
Z3I_KERNEL(rms_norm_grad);
Z3I_KERNEL(softmax);
Z3I_KERNEL(softmax_grad);
Z3I_KERNEL(log_softmax);
Z3I_KERNEL(log_softmax_grad);
Z3I_KERNEL(cross_entropy);
Z3I_KERNEL(cross_entropy_grad);
float Z3I_SYM(row_lse)(const float *logits, int64_t n);
void Z3I_SYM(row_ce_grad)(float *logits, int64_t n, int64_t target, float lse, float scale);
Z3I_KERNEL(embedding);
Z3I_KERNEL(embedding_grad);
Z3I_KERNEL(index_select);
Z3I_KERNEL(index_select_grad);
Z3I_KERNEL(gather_op);                          /* gather */
Z3I_KERNEL(gather_grad);
Z3I_KERNEL(rope);
Z3I_KERNEL(rope_grad);
/* elem_convert.c */
void Z3I_SYM(load_f32)(float *dst, const void *src, int dtype, int64_t n);
void Z3I_SYM(store_f32)(void *dst, int dtype, const float *src, int64_t n);

/* The table of each level; not every level is compiled everywhere. */
const z3i_isa_table *z3i_isa_table_v2(void);
const z3i_isa_table *z3i_isa_table_v3(void);
const z3i_isa_table *z3i_isa_table_v4(void);
const z3i_isa_table *z3i_isa_table_base(void);
#endif
