/* isa.h -- how kernel files are compiled once per instruction set.
 * Each file in this folder is compiled with -DZ3I_ISA=v2, v3 and v4 (x86-64 levels; one "base" elsewhere) and defines
 * functions named Z3I_SYM(name). isa_table.c gathers them into one z3i_isa_table per level; isa_pick.c picks one.
 * Kernels use OpenMP for threads (plain pragmas with static schedules) and loops that gcc and clang vectorise;
 * -ffp-contract=off, so that the code computes what the source says. */
#ifndef Z3I_ISA_H
#define Z3I_ISA_H
#include "device/device.h"

#define Z3I_CAT2(a, b) z3i_##a##_##b
#define Z3I_CAT(a, b) Z3I_CAT2(a, b)
#ifdef Z3I_ISA
#define Z3I_SYM(name) Z3I_CAT(name, Z3I_ISA)
#endif

typedef struct z3i_isa_table {
  const char *name;                             /* "v4" */
  z3i_kernel forward[Z3OP_COUNT], backward[Z3OP_COUNT];
  int (*copy)(const z3i_view *dst, const z3i_view *src);
  int (*fill)(const z3i_view *dst, double value);
  int (*random)(const z3i_view *dst, int kind, double a, double b, uint64_t key, int64_t first);
  int (*arange)(const z3i_view *dst, double start, double step);
  int (*update)(const z3i_update *u);
  int (*sumsq)(const z3i_view *x, double *sum, int64_t *nonfinite);
  /* n contiguous elements, one thread: conversions that files outside this folder need */
  void (*to_f32)(float *dst, const void *src, int dtype, int64_t n);
  void (*from_f32)(void *dst, int dtype, const float *src, int64_t n);
  /* One row of cross-entropy on f32 logits (one thread): log-sum-exp; and in place the gradient
   * logits[j] = scale * (exp(logits[j] - lse) - (j == target)). */
  float (*row_lse)(const float *logits, int64_t n);
  void (*row_ce_grad)(float *logits, int64_t n, int64_t target, float lse, float scale);
} z3i_isa_table;

/* The table in force (cpu.c picked it). */
const z3i_isa_table *z3i_isa(void);
#endif
