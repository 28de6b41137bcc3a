/* pool.h -- the caching allocator over one device's memory (see pool.c). Private to device/ and tensor/. */
#ifndef Z3I_POOL_H
#define Z3I_POOL_H
#include "device/device.h"
#include "zero3/device.h"

struct z3i_pool *z3i_pool_new(z3i_device *dev);   /* NULL on failure (error set) */

/* The name that allocations of this thread are charged to: a module's path or a parameter's name, permanent text.
 * Returns the one before. */
const char *z3i_owner_set(const char *owner);
#endif
