/* base.h -- what every folder of core builds on: failing, allocating, types, bits, time.
 * Private to core. Nothing here knows devices, tensors or files. */
#ifndef Z3I_BASE_H
#define Z3I_BASE_H
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "zero3/status.h"
#include "zero3/dtype.h"

/* ---- error.c: three kinds of wrong -------------------------------------------------------------
 * the world's:   return Z3I_FAIL(Z3E_IO, "cannot open %s: %s", path, strerror(errno));
 * the caller's:  Z3I_REQUIRE(step >= 1, "adamw: step is %" PRId64 ", wants >= 1", step);
 * ours:          Z3I_ASSERT(node != NULL);   aborts in test builds (-DZ3_TEST), else returns Z3E_BUG
 * on the way up: Z3I_TRY(call(...));         returns the status and adds this line to the chain    */
int z3i_fail(const char *file, int line, const char *func, int code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
int z3i_trace(const char *file, int line, const char *func, int code);
/* Puts "prefix: " before the newest message (once per failure); prefix NULL or "" changes nothing. */
void z3i_error_prefix(const char *prefix);

#define Z3I_FAIL(code, ...) z3i_fail(__FILE__, __LINE__, __func__, (code), __VA_ARGS__)
#define Z3I_TRY(call)                                                                               \
  do {                                                                                              \
    int z3i_rc_ = (call);                                                                           \
    if (z3i_rc_ != Z3E_OK) return z3i_trace(__FILE__, __LINE__, __func__, z3i_rc_);                 \
  } while (0)
#define Z3I_TRY_GOTO(rc, call, label)                                                               \
  do {                                                                                              \
    (rc) = (call);                                                                                  \
    if ((rc) != Z3E_OK) { z3i_trace(__FILE__, __LINE__, __func__, (rc)); goto label; }              \
  } while (0)
#define Z3I_REQUIRE(cond, ...)                                                                      \
  do {                                                                                              \
    if (!(cond)) return Z3I_FAIL(Z3E_ARG, __VA_ARGS__);                                             \
  } while (0)
#ifdef Z3_TEST
void z3i_assert_failed(const char *file, int line, const char *text);
#define Z3I_ASSERT(cond)                                                                            \
  do {                                                                                              \
    if (!(cond)) z3i_assert_failed(__FILE__, __LINE__, #cond);                                      \
  } while (0)
#else
#define Z3I_ASSERT(cond)                                                                            \
  do {                                                                                              \
    if (!(cond)) return Z3I_FAIL(Z3E_BUG, "internal error: %s does not hold", #cond);               \
  } while (0)
#endif

/* ---- alloc.c: host memory for the library's own small structures -------------------------------
 * Counts live allocations and bytes; z3i_alloc_fail_at(n) makes the n-th next allocation fail once
 * (n = 0 switches it off): the cheapest test of every error path. Failure sets Z3E_OOM. */
void *z3i_alloc(size_t bytes);                    /* zeroed; NULL on failure (error set) */
void *z3i_realloc(void *p, size_t bytes);         /* new part not zeroed; NULL: p unchanged */
char *z3i_strdup(const char *s);
void z3i_free(void *p);                           /* NULL is harmless */
void z3i_alloc_fail_at(int64_t n);
int64_t z3i_alloc_live(void);                     /* live allocations */

/* ---- dtype.c ------------------------------------------------------------------------------------ */
static inline bool z3i_dtype_ok(int t) { return t >= 0 && t < Z3T_COUNT; }
static inline int z3i_dtype_bytes(int t)
{
  static const int bytes[Z3T_COUNT] = { 4, 2, 2, 4, 8, 1 };
  return bytes[t];
}
static inline bool z3i_dtype_float(int t) { return t <= Z3T_F16; }

/* ---- half.c: round to nearest even; NaN stays NaN (quiet), overflow of f16 gives inf ------------ */
static inline float z3i_bf16_to_f32(uint16_t h)
{
  uint32_t u = (uint32_t)h << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static inline uint16_t z3i_f32_to_bf16(float f)
{
  uint32_t u;
  memcpy(&u, &f, 4);
  uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16) | 0x40u : rounded);
}
float z3i_f16_to_f32(uint16_t h);
uint16_t z3i_f32_to_f16(float f);

/* ---- rng.c: Philox 4x32-10 (Salmon et al. 2011), a pure function of (key, counter) -------------- */
static inline void z3i_philox(uint64_t key, uint64_t hi, uint64_t lo, uint32_t out[4])
{
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1;
    c3 = (uint32_t)p0;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0; out[1] = c1; out[2] = c2; out[3] = c3;
}

/* ---- hash.c: 64-bit FNV-1a, and a mixer that folds numbers into a key (order matters) ----------- */
uint64_t z3i_hash_bytes(const void *p, size_t bytes, uint64_t seed);
static inline uint64_t z3i_mix(uint64_t h, uint64_t v)       /* splitmix64 finaliser */
{
  h += v + 0x9E3779B97F4A7C15ull;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
  return h ^ (h >> 31);
}

/* ---- intern.c: one permanent copy of a text, compared by pointer; NULL on failure ---------------- */
const char *z3i_intern(const char *text);

/* ---- clock.c ------------------------------------------------------------------------------ */
int64_t z3i_now_ns(void);                         /* monotonic */
#define Z3I_MIN(a, b) ((a) < (b) ? (a) : (b))
#define Z3I_MAX(a, b) ((a) > (b) ? (a) : (b))
#endif
