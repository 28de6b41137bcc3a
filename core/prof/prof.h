/* prof.h (private) -- how kernels' callers report. Costs one load when profiling is off. */
#ifndef Z3I_PROF_H
#define Z3I_PROF_H
#include "base/base.h"
#include "zero3/prof.h"

extern bool z3i_prof_on;
static inline int64_t z3i_prof_start(void) { return z3i_prof_on ? z3i_now_ns() : 0; }
void z3i_prof_add(int kind, int object, int64_t start_ns, int64_t bytes, double flops, const char *owner);
#endif
