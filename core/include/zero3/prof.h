/* prof.h -- what the library did and how long it took: totals per kind of work, and a ring of events.
 * Off until z3_prof_enable; then each operation costs two clock readings. Times: nanoseconds of a monotonic clock. */
#ifndef ZERO3_PROF_H
#define ZERO3_PROF_H
#ifndef Z3_CDEF
#include "zero3/ops.h"
#endif

/* Kinds of work. object is Z3OP_... for the first two, Z3_ADAMW... for updates, 0 for the norm, the script's own number
 * for marks. */
enum { Z3P_FORWARD, Z3P_BACKWARD, Z3P_UPDATE, Z3P_NORM, Z3P_MARK, Z3P_KINDS };

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
void z3_prof_disable(void);
/* Total of one kind and object since enable. */
int z3_prof_total_get(int kind, int object, z3_prof_total *out);
/* Takes up to n events out of the ring, oldest first; returns how many. dropped (may be NULL): overwritten so far. */
int z3_prof_drain(z3_event *out, int n, int64_t *dropped);
/* Adds a mark of the script's own, from start_ns (z3_now_ns) to now. */
void z3_prof_mark(int object, int64_t start_ns);
int64_t z3_now_ns(void);
#endif
