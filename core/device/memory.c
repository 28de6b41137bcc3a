/* memory.c -- what users see of a device's memory: statistics, the budget, the largest owners. */
#include "device/pool.h"

enum { OWNERS_MAX = 4096 };
static int pool_of(int device, z3i_pool **out)
{
  z3i_device *dev = NULL;
  Z3I_TRY(z3i_device_find(device, &dev));
  *out = dev->pool;
  return Z3E_OK;
}

int z3_memory_stats_get(int device, z3_memory_stats *out)
{
  z3i_pool *pool = NULL;
  memset(out, 0, sizeof *out);
  Z3I_TRY(pool_of(device, &pool));
  pthread_mutex_lock(&pool->lock);
  *out = pool->stats;
  pthread_mutex_unlock(&pool->lock);
  return Z3E_OK;
}

int z3_memory_limit_set(int device, int64_t bytes)
{
  z3i_pool *pool = NULL;
  Z3I_TRY(pool_of(device, &pool));
  Z3I_REQUIRE(bytes >= 0, "memory limit is %" PRId64 " bytes, wants > 0, or 0 for none", bytes);
  pthread_mutex_lock(&pool->lock);
  int rc = Z3E_OK;
  if (bytes > 0) z3i_pool_trim(pool);
  if (bytes > 0 && pool->stats.current > bytes)
    rc = Z3I_FAIL(Z3E_OOM, "memory limit of %" PRId64 " bytes on %s: %" PRId64 " bytes are in use already", bytes,
                  pool->dev->name, pool->stats.current);
  else pool->stats.limit = bytes;
  pthread_mutex_unlock(&pool->lock);
  return rc;
}

void z3_memory_peak_reset(int device)
{
  z3i_pool *pool = NULL;
  if (pool_of(device, &pool) != Z3E_OK) return;
  pthread_mutex_lock(&pool->lock);
  pool->stats.peak = pool->stats.current;
  memcpy(pool->stats.by_peak, pool->stats.by_current, sizeof pool->stats.by_peak);
  pthread_mutex_unlock(&pool->lock);
}

void z3_memory_trim(int device)
{
  z3i_pool *pool = NULL;
  if (pool_of(device, &pool) != Z3E_OK) return;
  pthread_mutex_lock(&pool->lock);
  z3i_pool_trim(pool);
  pthread_mutex_unlock(&pool->lock);
}

/* Adds bytes to owner's entry in a table of distinct owners; a full table drops the newcomer. */
static int owner_add(const char **names, int64_t *bytes, int count, const z3i_block *b)
{
  const char *owner = b->owner[0] ? b->owner : "(no module)";
  for (int i = 0; i < count; i++)
    if (names[i] == owner) {
      bytes[i] += (int64_t)b->bytes;
      return count;
    }
  if (count == OWNERS_MAX) return count;
  names[count] = owner;
  bytes[count] = (int64_t)b->bytes;
  return count + 1;
}

int z3_memory_top(int device, int n, const char **names, int64_t *bytes)
{
  z3i_pool *pool = NULL;
  if (pool_of(device, &pool) != Z3E_OK) return 0;
  const char **all_names = z3i_alloc(OWNERS_MAX * sizeof *all_names);
  int64_t *all_bytes = z3i_alloc(OWNERS_MAX * sizeof *all_bytes);
  int count = 0, given = 0;
  if (all_names != NULL && all_bytes != NULL) {
    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < pool->hash_room; i++)
      for (const z3i_block *b = pool->hash[i]; b != NULL; b = b->hash_next)
        count = owner_add(all_names, all_bytes, count, b);
    pthread_mutex_unlock(&pool->lock);
    for (; given < n && given < count; given++) {
      int best = given;
      for (int i = given + 1; i < count; i++)
        if (all_bytes[i] > all_bytes[best]) best = i;
      names[given] = all_names[best];
      bytes[given] = all_bytes[best];
      all_names[best] = all_names[given];
      all_bytes[best] = all_bytes[given];
    }
  }
  z3i_free(all_names);
  z3i_free(all_bytes);
  return given;
}
