/* philox.h -- blocks of Philox 4x32-10 numbers, written so that compilers turn them into vector code.
 * The same numbers as z3i_philox of base.h: element e of a sequence is word e % 4 of counter e / 4. */
#ifndef Z3I_PHILOX_H
#define Z3I_PHILOX_H
#include "device/cpu/isa/vec.h"

enum { Z3I_COUNTERS = Z3I_BLOCK / 4 + 1 };       /* counters that a block of elements touches, at most */

typedef struct z3i_philox_words {
  uint32_t w[4][Z3I_COUNTERS + 15];             /* word-major; room for a vector's overhang */
} z3i_philox_words;

#define Z3I_PHILOX_ROUND                                                                            \
  do {                                                                                              \
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;                      \
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;                                                            \
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;                                                            \
    c1 = (uint32_t)p1;                                                                              \
    c3 = (uint32_t)p0;                                                                              \
    k0 += 0x9E3779B9u;                                                                              \
    k1 += 0xBB67AE85u;                                                                              \
  } while (0)

/* Words of n <= Z3I_COUNTERS counters from `first` on. */
static inline void z3i_philox_block(z3i_philox_words *restrict out, uint64_t key, uint64_t first, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    uint64_t counter = first + (uint64_t)i;
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    Z3I_PHILOX_ROUND; Z3I_PHILOX_ROUND; Z3I_PHILOX_ROUND; Z3I_PHILOX_ROUND; Z3I_PHILOX_ROUND;
    Z3I_PHILOX_ROUND; Z3I_PHILOX_ROUND; Z3I_PHILOX_ROUND; Z3I_PHILOX_ROUND; Z3I_PHILOX_ROUND;
    out->w[0][i] = c0;
    out->w[1][i] = c1;
    out->w[2][i] = c2;
    out->w[3][i] = c3;
  }
}

/* The words in order of elements: 4 n of them. */
static inline void z3i_philox_interleave(uint32_t *restrict y, const z3i_philox_words *restrict words, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    y[4 * i] = words->w[0][i];
    y[4 * i + 1] = words->w[1][i];
    y[4 * i + 2] = words->w[2][i];
    y[4 * i + 3] = words->w[3][i];
  }
}
#endif
