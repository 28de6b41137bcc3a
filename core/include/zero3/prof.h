/* prof.h -- what the library did and how long it took: totals per kind of work, and a ring of events.
 * Off until z3_prof_enable; then each operation costs some clock readings. Times: nanoseconds of a monotonic clock. */
#ifndef ZERO3_PROF_H
#define ZERO3_PROF_H
#ifndef Z3_CDEF
#include "zero3/ops.h"
#endif

/* Kinds of work and what their objects are. The first six are kernels and never overlap. Calls hold kernels: what a
 * call took beyond them is the library's own work (checks, shapes, memory, the tape). */
enum {
  Z3P_FORWARD,                                  /* Z3OP_... */
  Z3P_BACKWARD,                                 /* Z3OP_...: its gradient, or an operation that computes one */
  Z3P_RECOMPUTE,                                /* Z3OP_...: forward once more, inside backward */
  Z3P_UPDATE,                                   /* Z3_ADAMW... */
  Z3P_NORM,                                     /* 0 */
  Z3P_DATA,                                     /* Z3P_COPY... */
  Z3P_CALL,                                     /* Z3P_CALL_...; totals only, no events */
  Z3P_MARK,                                     /* the script's own number */
  Z3P_KINDS
};
enum { Z3P_COPY, Z3P_FILL, Z3P_RANDOM };
enum { Z3P_CALL_APPLY, Z3P_CALL_BACKWARD, Z3P_CALL_OTHER };   /* other: kernels outside of the first two */

typedef struct z3_event {
  int64_t start_ns, end_ns;
  int64_t bytes;                                /* read and written by the kernel, each tensor once */
  double flops;                                 /* products only */
  const char *owner;                            /* module path; permanent text */
  int kind, object;
} z3_event;

typedef struct z3_prof_total {
  int64_t count, ns, bytes;
  double flops;
} z3_prof_total;

/* Starts counting with a ring of `events` places (0: totals only; the oldest are overwritten). Clears both.
 * Errors: Z3E_OOM, Z3E_ARG (negative). */
int z3_prof_enable(int events);
void z3_prof_disable(void);                     /* what was counted stays until the next enable */
bool z3_prof_enabled(void);
/* Total of one kind and object since enable. */
int z3_prof_total_get(int kind, int object, z3_prof_total *out);
/* All of them: out has room for Z3P_KINDS times Z3OP_COUNT, kind by kind. */
void z3_prof_totals(z3_prof_total *out);
/* Takes up to n events out of the ring, oldest first; returns how many. dropped (may be NULL): overwritten so far. */
int z3_prof_drain(z3_event *out, int n, int64_t *dropped);
/* Adds a mark of the script's own, from start_ns (z3_now_ns) to now. */
void z3_prof_mark(int object, int64_t start_ns);
int64_t z3_now_ns(void);
#endif
