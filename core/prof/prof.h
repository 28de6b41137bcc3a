/* prof.h (private) -- how kernels' callers report. Costs one load when profiling is off. */
#ifndef Z3I_PROF_H
#define Z3I_PROF_H
#include "base/base.h"
#include "zero3/prof.h"

extern bool z3i_prof_on;
/* What an operation that runs forward now is counted as: backward and recomputation set it. */
extern _Thread_local int z3i_prof_phase;

static inline int64_t z3i_prof_start(void) { return z3i_prof_on ? z3i_now_ns() : 0; }
void z3i_prof_add(int kind, int object, int64_t start_ns, int64_t bytes, double flops, const char *owner);

/* Around a public call that runs kernels: start = enter(), leave(Z3P_CALL_..., start). Only the outermost counts. */
int64_t z3i_prof_enter_on(void);
static inline int64_t z3i_prof_enter(void) { return z3i_prof_on ? z3i_prof_enter_on() : 0; }
void z3i_prof_leave(int object, int64_t start_ns);
#endif
