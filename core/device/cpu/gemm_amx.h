/* gemm_amx.h -- bf16 products of our own on AMX tiles (Sapphire Rapids and later). Private to cpu/; for gemm.c.
 * Legend: C (M,N) = A (M,K) B (K,N); a step is 32 values of K; a panel is 32 rows of A or 32 columns of B. */
#ifndef Z3I_GEMM_AMX_H
#define Z3I_GEMM_AMX_H
#include "device/cpu/gemm.h"

/* Sums run in f32 along K in one order, each tile instruction adding 32 products: an element's bits depend on its row
 * of A, its column of B and K only, never on threads, blocks, strides or layouts. The tile unit takes denormal bf16
 * inputs as 0 and turns denormal sums into 0 (bias, adding and rounding keep them); NaN and inf come through. */

enum { Z3I_AMX_AUTO, Z3I_AMX_NEVER, Z3I_AMX_ALWAYS };
/* Which products go here: where it is faster (auto), none, or all that can. Starts as Z3_GEMM says: "onednn" is never,
 * "own" always. Returns what was in force; tests and benchmarks set it. Without AMX it has no effect. */
int z3i_amx_mode(int mode);
/* Whether tiles may be used: the machine has them, the system lends them, and the mode isn't never. */
bool z3i_amx_usable(void);

/* Whether z3i_gemm leaves this product to z3i_amx_gemm: sizes > 0, checked. */
bool z3i_amx_takes(const z3i_gemm_args *g);
/* Errors: Z3E_OOM (scratch; nothing was written). */
int z3i_amx_gemm(const z3i_gemm_args *g);

/* ---- gemm_amx_pack.c: panels as tiles read them ------------------------------------------------------ */
enum { Z3I_AMX_PANEL = 32, Z3I_AMX_STEP = 32, Z3I_AMX_BLOCK = Z3I_AMX_PANEL * Z3I_AMX_STEP };

/* A matrix of lines (rows of A, columns of B) by K. Element (line, k) is at data[line * ld + k], or data[k * ld + line]
 * where k_major. */
typedef struct z3i_amx_source {
  const uint16_t *data;
  int64_t ld;
  bool k_major;
} z3i_amx_source;

/* Steps first..end-1 of a panel whose first `lines` lines (<= 32) and first k values are there; the rest becomes 0.
 * Each step is two tiles of 16 lines. Of A (pairs false) a tile's row is a line with 32 values of K; of B (pairs true)
 * a tile's row has two values of K, side by side, for each of 16 lines. dst points to step 0, 64-byte aligned. */
void z3i_amx_pack(uint16_t *dst, const z3i_amx_source *src, bool pairs, int64_t lines, int64_t k, int64_t first,
                  int64_t end);
#endif
