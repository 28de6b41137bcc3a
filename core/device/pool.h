/* pool.h -- the caching allocator over one device's memory (see pool.c). Private to device/ and tensor/. */
#ifndef Z3I_POOL_H
#define Z3I_POOL_H
#include <pthread.h>

#include "device/device.h"
#include "zero3/device.h"

enum { Z3I_BINS = 256 };
/* A piece of a segment: used by one allocation, or free. */
typedef struct z3i_block {
  char *p;
  size_t bytes;
  struct z3i_block *left, *right;                     /* neighbours in the segment */
  struct z3i_block *bin_prev, *bin_next;              /* others in the free bin */
  struct z3i_block *hash_next;                        /* used blocks by address; spare blocks */
  const char *owner;
  int category;
  bool used, small;
} z3i_block;

typedef struct z3i_pool {
  z3i_device *dev;
  pthread_mutex_t lock;
  z3i_block *bins[2][Z3I_BINS];                           /* [small][size class] */
  z3i_block **hash;
  size_t hash_room, used_count;
  z3i_block *spare;
  z3_memory_stats stats;
} z3i_pool;

z3i_pool *z3i_pool_new(z3i_device *dev);          /* NULL on failure (error set) */
void z3i_pool_delete(z3i_pool *pool);             /* every block must have been freed */

/* The name that allocations of this thread are charged to: a module's path or a parameter's name, permanent text.
 * Returns the one before. */
const char *z3i_owner_set(const char *owner);
const char *z3i_owner_get(void);
/* Gives segments that are free as a whole back to the system. The lock is held. */
void z3i_pool_trim(z3i_pool *pool);
#endif
