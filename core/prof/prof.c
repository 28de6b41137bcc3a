/* prof.c -- totals per kind of work and a fixed ring of events that overwrites the oldest and counts what it drops. */
#include <pthread.h>

#include "prof/prof.h"

enum { OBJECTS = Z3OP_COUNT };

bool z3i_prof_on;
_Thread_local int z3i_prof_phase = Z3P_FORWARD;
static _Thread_local int depth;                   /* public calls under way */
static z3_prof_total totals[Z3P_KINDS][OBJECTS];
static z3_event *ring;
static int room, used, oldest;
static int64_t dropped;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int z3_prof_enable(int events)
{
  Z3I_REQUIRE(events >= 0, "profile: a ring of %d events, wants >= 0", events);
  z3_event *fresh = NULL;
  if (events > 0 && (fresh = z3i_alloc((size_t)events * sizeof *fresh)) == NULL) return Z3E_OOM;
  pthread_mutex_lock(&lock);
  z3i_free(ring);
  ring = fresh;
  room = events;
  used = oldest = 0;
  dropped = 0;
  memset(totals, 0, sizeof totals);
  z3i_prof_on = true;
  pthread_mutex_unlock(&lock);
  return Z3E_OK;
}

void z3_prof_disable(void) { z3i_prof_on = false; }
bool z3_prof_enabled(void) { return z3i_prof_on; }

static void total_add(int kind, int object, int64_t ns, int64_t bytes, double flops)
{
  if (kind < 0 || kind >= Z3P_KINDS || object < 0 || object >= OBJECTS) return;
  z3_prof_total *t = &totals[kind][object];
  t->count++;
  t->ns += ns;
  t->bytes += bytes;
  t->flops += flops;
}

void z3i_prof_add(int kind, int object, int64_t start_ns, int64_t bytes, double flops, const char *owner)
{
  if (!z3i_prof_on || start_ns == 0) return;
  int64_t end_ns = z3i_now_ns();
  pthread_mutex_lock(&lock);
  total_add(kind, object, end_ns - start_ns, bytes, flops);
  if (depth == 0 && kind < Z3P_CALL) total_add(Z3P_CALL, Z3P_CALL_OTHER, end_ns - start_ns, 0, 0);
  if (room > 0 && kind != Z3P_CALL) {
    ring[(oldest + used) % room] = (z3_event){ start_ns, end_ns, bytes, flops, owner, kind, object };
    if (used < room) used++;
    else {
      oldest = (oldest + 1) % room;
      dropped++;
    }
  }
  pthread_mutex_unlock(&lock);
}

int64_t z3i_prof_enter_on(void)
{
  depth++;
  return z3i_now_ns();
}

void z3i_prof_leave(int object, int64_t start_ns)
{
  if (start_ns == 0) return;
  if (--depth == 0) z3i_prof_add(Z3P_CALL, object, start_ns, 0, 0, "");
}

int z3_prof_total_get(int kind, int object, z3_prof_total *out)
{
  memset(out, 0, sizeof *out);
  Z3I_REQUIRE(kind >= 0 && kind < Z3P_KINDS, "profile: kind is %d, wants 0 to %d", kind, Z3P_KINDS - 1);
  Z3I_REQUIRE(object >= 0 && object < OBJECTS, "profile: object is %d, wants 0 to %d", object, OBJECTS - 1);
  pthread_mutex_lock(&lock);
  *out = totals[kind][object];
  pthread_mutex_unlock(&lock);
  return Z3E_OK;
}

void z3_prof_totals(z3_prof_total *out)
{
  pthread_mutex_lock(&lock);
  memcpy(out, totals, sizeof totals);
  pthread_mutex_unlock(&lock);
}

int z3_prof_drain(z3_event *out, int n, int64_t *dropped_out)
{
  pthread_mutex_lock(&lock);
  int count = Z3I_MIN(n, used);
  for (int i = 0; i < count; i++) out[i] = ring[(oldest + i) % room];
  if (count > 0) oldest = (oldest + count) % room;
  used -= Z3I_MAX(count, 0);
  if (dropped_out != NULL) *dropped_out = dropped;
  pthread_mutex_unlock(&lock);
  return Z3I_MAX(count, 0);
}

int64_t z3_now_ns(void) { return z3i_now_ns(); }
void z3_prof_mark(int object, int64_t start_ns) { z3i_prof_add(Z3P_MARK, object, start_ns, 0, 0, ""); }
