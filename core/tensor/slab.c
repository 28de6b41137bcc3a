/* slab.c -- room for tensor handles: never given back to malloc, reused oldest first, so that a stale handle is
 * recognised (its magic is gone) and a slot's next life comes as late as possible. */
#include <pthread.h>

#include "tensor/slab.h"

enum { SLOTS_PER_CHUNK = 1024, REST_MIN = 1024 };

typedef union slot {
  z3_tensor tensor;
  struct {
    uint32_t magic;
    union slot *next;
  } dead;
} slot;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static slot *oldest, *newest;
static int64_t resting, live;

static void rest(slot *s)                         /* to the end of the queue */
{
  s->dead.magic = Z3I_TENSOR_DEAD;
  s->dead.next = NULL;
  if (newest != NULL) newest->dead.next = s;
  else oldest = s;
  newest = s;
  resting++;
}

z3_tensor *z3i_slab_take(void)
{
  pthread_mutex_lock(&lock);
  if (resting < REST_MIN) {
    slot *chunk = z3i_alloc(SLOTS_PER_CHUNK * sizeof *chunk);
    for (int i = 0; chunk != NULL && i < SLOTS_PER_CHUNK; i++) rest(&chunk[i]);
  }
  slot *s = oldest;
  if (s != NULL) {
    oldest = s->dead.next;
    if (oldest == NULL) newest = NULL;
    resting--;
    live++;
  }
  pthread_mutex_unlock(&lock);
  if (s == NULL) return NULL;
  memset(s, 0, sizeof *s);
  s->tensor.magic = Z3I_TENSOR_MAGIC;
  s->tensor.refs = 1;
  return &s->tensor;
}

void z3i_slab_give(z3_tensor *t)
{
  pthread_mutex_lock(&lock);
  rest((slot *)t);
  live--;
  pthread_mutex_unlock(&lock);
}

int64_t z3_tensor_live(void)
{
  pthread_mutex_lock(&lock);
  int64_t n = live;
  pthread_mutex_unlock(&lock);
  return n;
}
