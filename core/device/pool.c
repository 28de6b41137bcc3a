/* pool.c -- caching allocator: best fit with splitting and joining inside large segments.
 * A steady training step asks for the same sizes again and again; once its segments exist it never goes to the system,
 * so it takes no page faults. Every block has a category and an owner; a budget bounds what is in use and what is taken
 * from the system (what was taken before the budget was set may be more).
 * Sizes in bytes; blocks are multiples of ALIGN. One lock: calls are per tensor, not per element. */
#include "device/pool.h"

enum { ALIGN = 64, SMALL_BYTES = 1 << 20, SMALL_SEGMENT = 4 << 20, LARGE_SEGMENT = 32 << 20 };

typedef z3i_block block;

static _Thread_local const char *owner_now = "";
static _Thread_local z3_oom_info oom;

const char *z3i_owner_set(const char *owner)
{
  const char *before = owner_now;
  owner_now = owner;
  return before;
}

const char *z3i_owner_get(void) { return owner_now; }

const z3_oom_info *z3_last_oom(void) { return &oom; }

z3i_pool *z3i_pool_new(z3i_device *dev)
{
  z3i_pool *pool = z3i_alloc(sizeof *pool);
  if (pool == NULL) return NULL;
  pool->hash_room = 1024;
  pool->hash = z3i_alloc(pool->hash_room * sizeof *pool->hash);
  if (pool->hash == NULL) {
    z3i_free(pool);
    return NULL;
  }
  pool->dev = dev;
  pthread_mutex_init(&pool->lock, NULL);
  return pool;
}

/* ---- used blocks by address ---- */
static size_t hash_slot(const z3i_pool *pool, const void *p)
{
  return (size_t)(z3i_mix(0, (uint64_t)(uintptr_t)p) & (pool->hash_room - 1));
}

static void hash_grow(z3i_pool *pool)
{
  block **bigger = z3i_alloc(2 * pool->hash_room * sizeof *bigger);
  if (bigger == NULL) return;                     /* chains get longer; nothing is lost */
  block **old = pool->hash;
  size_t room = pool->hash_room;
  pool->hash = bigger;
  pool->hash_room = 2 * room;
  for (size_t i = 0; i < room; i++)
    for (block *b = old[i], *next; b != NULL; b = next) {
      next = b->hash_next;
      size_t slot = hash_slot(pool, b->p);
      b->hash_next = pool->hash[slot];
      pool->hash[slot] = b;
    }
  z3i_free(old);
}

static void hash_put(z3i_pool *pool, block *b)
{
  if (pool->used_count >= pool->hash_room) hash_grow(pool);
  size_t slot = hash_slot(pool, b->p);
  b->hash_next = pool->hash[slot];
  pool->hash[slot] = b;
  pool->used_count++;
}

static block *hash_take(z3i_pool *pool, const void *p)
{
  for (block **at = &pool->hash[hash_slot(pool, p)]; *at != NULL; at = &(*at)->hash_next)
    if ((*at)->p == p) {
      block *b = *at;
      *at = b->hash_next;
      pool->used_count--;
      return b;
    }
  return NULL;
}

/* ---- free blocks by size: four bins per power of two ---- */
static int bin_of(size_t bytes)
{
  size_t units = bytes / ALIGN;
  int top = 63 - __builtin_clzll(units | 1);
  int quarter = top >= 2 ? (int)((units >> (top - 2)) & 3) : 0;
  return Z3I_MIN(4 * top + quarter, Z3I_BINS - 1);
}

static void bin_put(z3i_pool *pool, block *b)
{
  block **head = &pool->bins[b->small][bin_of(b->bytes)];
  b->used = false;
  b->bin_prev = NULL;
  b->bin_next = *head;
  if (*head != NULL) (*head)->bin_prev = b;
  *head = b;
}

static void bin_remove(z3i_pool *pool, block *b)
{
  if (b->bin_prev != NULL) b->bin_prev->bin_next = b->bin_next;
  else pool->bins[b->small][bin_of(b->bytes)] = b->bin_next;
  if (b->bin_next != NULL) b->bin_next->bin_prev = b->bin_prev;
}

/* Smallest free block that fits; the lowest address among equals, so that runs repeat. */
static block *bin_best(z3i_pool *pool, size_t bytes, bool small)
{
  for (int i = bin_of(bytes); i < Z3I_BINS; i++) {
    block *best = NULL;
    for (block *b = pool->bins[small][i]; b != NULL; b = b->bin_next)
      if (b->bytes >= bytes && (best == NULL || b->bytes < best->bytes || (b->bytes == best->bytes && b->p < best->p)))
        best = b;
    if (best != NULL) return best;
  }
  return NULL;
}

/* ---- segments ---- */
static block *block_new(z3i_pool *pool)
{
  block *b = pool->spare;
  if (b == NULL) return z3i_alloc(sizeof *b);
  pool->spare = b->hash_next;
  memset(b, 0, sizeof *b);
  return b;
}

static void block_spare(z3i_pool *pool, block *b)
{
  b->hash_next = pool->spare;
  pool->spare = b;
}

void z3i_pool_trim(z3i_pool *pool)
{
  for (int small = 0; small < 2; small++)
    for (int i = 0; i < Z3I_BINS; i++)
      for (block *b = pool->bins[small][i], *next; b != NULL; b = next) {
        next = b->bin_next;
        if (b->left != NULL || b->right != NULL) continue;
        bin_remove(pool, b);
        pool->dev->mem_free(b->p, b->bytes);
        pool->stats.reserved -= (int64_t)b->bytes;
        block_spare(pool, b);
      }
}

static int refuse(z3i_pool *pool, size_t bytes, int category, bool by_limit)
{
  static const char *const category_names[Z3M_COUNT] = { "param_shard", "param_full", "grad", "optimizer",
                                                          "activation", "buffer", "io", "other" };
  oom = (z3_oom_info){ .requested_bytes = (int64_t)bytes, .limit_bytes = by_limit ? pool->stats.limit : 0,
                       .current_bytes = pool->stats.current };
  strncpy(oom.device, pool->dev->name, sizeof oom.device - 1);
  strncpy(oom.category, category_names[category], sizeof oom.category - 1);
  const char *owner = owner_now[0] ? owner_now : "(no module)";
  if (by_limit)
    return Z3I_FAIL(
        Z3E_OOM,
        "out of memory on %s: %s of %s asked for %zu bytes; %" PRId64 " in use, %" PRId64 " reserved, limit %" PRId64
        " bytes: raise the limit, or lower batch, sequence length or model size",
        oom.device, oom.category, owner, bytes, pool->stats.current, pool->stats.reserved, pool->stats.limit);
  return Z3I_FAIL(Z3E_OOM, "out of memory on %s: %s of %s asked for %zu bytes and the system has no more; %" PRId64
                  " in use, %" PRId64 " reserved", oom.device, oom.category, owner, bytes, pool->stats.current,
                  pool->stats.reserved);
}

static size_t segment_bytes(size_t bytes, bool small)
{
  size_t unit = small ? SMALL_SEGMENT : bytes < LARGE_SEGMENT / 2 ? LARGE_SEGMENT : (size_t)2 << 20;
  return (bytes + unit - 1) / unit * unit;
}

/* A new segment as one free block. Under a limit it is as small as the request when the usual size doesn't fit. */
static int segment_new(z3i_pool *pool, size_t bytes, bool small, int category, block **out)
{
  size_t want = segment_bytes(bytes, small);
  const z3_memory_stats *s = &pool->stats;
  if (s->limit > 0 && s->reserved + (int64_t)want > s->limit) {
    z3i_pool_trim(pool);
    if (s->reserved + (int64_t)want > s->limit)
      want = Z3I_MAX(bytes, Z3I_MIN(want, (size_t)Z3I_MAX(0, s->limit - s->reserved)));
    want = want / ALIGN * ALIGN;
    if (s->reserved + (int64_t)want > s->limit) return refuse(pool, bytes, category, true);
  }
  block *b = block_new(pool);
  if (b == NULL) return Z3E_OOM;
  void *p = NULL;
  if (pool->dev->mem_alloc(want, &p) != Z3E_OK) {
    z3i_pool_trim(pool);
    want = bytes;
    if (pool->dev->mem_alloc(want, &p) != Z3E_OK) {
      block_spare(pool, b);
      return refuse(pool, bytes, category, false);
    }
  }
  b->p = p;
  b->bytes = want;
  b->small = small;
  pool->stats.reserved += (int64_t)want;
  pool->stats.system_allocs++;
  bin_put(pool, b);
  *out = b;
  return Z3E_OK;
}

static void account(z3_memory_stats *s, int category, int64_t bytes)
{
  s->current += bytes;
  s->by_current[category] += bytes;
  s->peak = Z3I_MAX(s->peak, s->current);
  s->by_peak[category] = Z3I_MAX(s->by_peak[category], s->by_current[category]);
}

static int pool_alloc_locked(z3i_pool *pool, size_t bytes, int category, void **out)
{
  bool small = bytes < SMALL_BYTES;
  const z3_memory_stats *s = &pool->stats;
  if (s->limit > 0 && s->current + (int64_t)bytes > s->limit) return refuse(pool, bytes, category, true);
  block *b = bin_best(pool, bytes, small);
  if (b == NULL && s->limit > 0) b = bin_best(pool, bytes, !small);   /* near the limit any hole will do */
  if (b == NULL) Z3I_TRY(segment_new(pool, bytes, small, category, &b));
  bin_remove(pool, b);
  if (b->bytes - bytes >= ALIGN) {
    block *rest = block_new(pool);
    if (rest != NULL) {                           /* without one the block just stays larger than needed */
      rest->p = b->p + bytes;
      rest->bytes = b->bytes - bytes;
      rest->small = b->small;
      rest->left = b;
      rest->right = b->right;
      if (b->right != NULL) b->right->left = rest;
      b->right = rest;
      b->bytes = bytes;
      bin_put(pool, rest);
    }
  }
  b->used = true;
  b->category = category;
  b->owner = owner_now;
  hash_put(pool, b);
  account(&pool->stats, category, (int64_t)b->bytes);
  pool->stats.allocs++;
  *out = b->p;
  return Z3E_OK;
}

int z3i_pool_alloc(z3i_device *dev, size_t bytes, int category, void **out)
{
  *out = NULL;
  Z3I_REQUIRE(bytes <= (size_t)1 << 62, "allocation of %zu bytes on %s: more than 2^62", bytes, dev->name);
  z3i_pool *pool = dev->pool;
  size_t rounded = Z3I_MAX((bytes + ALIGN - 1) / ALIGN * ALIGN, (size_t)ALIGN);
  pthread_mutex_lock(&pool->lock);
  int rc = pool_alloc_locked(pool, rounded, category, out);
  pthread_mutex_unlock(&pool->lock);
  return rc;
}

int64_t z3i_pool_in_use(const z3i_pool *pool) { return __atomic_load_n(&pool->stats.current, __ATOMIC_RELAXED); }

static block *join(z3i_pool *pool, block *a, block *b)   /* a is left of b; both out of the bins */
{
  a->bytes += b->bytes;
  a->right = b->right;
  if (b->right != NULL) b->right->left = a;
  block_spare(pool, b);
  return a;
}

void z3i_pool_free(z3i_device *dev, void *p)
{
  if (p == NULL) return;
  z3i_pool *pool = dev->pool;
  pthread_mutex_lock(&pool->lock);
  block *b = hash_take(pool, p);
  if (b != NULL) {
    account(&pool->stats, b->category, -(int64_t)b->bytes);
    if (b->right != NULL && !b->right->used) {
      bin_remove(pool, b->right);
      b = join(pool, b, b->right);
    }
    if (b->left != NULL && !b->left->used) {
      block *left = b->left;
      bin_remove(pool, left);
      b = join(pool, left, b);
    }
    bin_put(pool, b);
  }
  pthread_mutex_unlock(&pool->lock);
}

void z3i_pool_delete(z3i_pool *pool)
{
  z3i_pool_trim(pool);
  while (pool->spare != NULL) {
    block *b = pool->spare;
    pool->spare = b->hash_next;
    z3i_free(b);
  }
  pthread_mutex_destroy(&pool->lock);
  z3i_free(pool->hash);
  z3i_free(pool);
}
