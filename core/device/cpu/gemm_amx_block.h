/* gemm_amx_block.h -- a block of C on tiles, and what is done beside it. Private to gemm_amx.c.
 * Legend: gemm_amx.h; a rectangle is one thread's part of C, a block 32 x 32 of it. */
#ifndef Z3I_GEMM_AMX_BLOCK_H
#define Z3I_GEMM_AMX_BLOCK_H
#include "device/cpu/gemm_amx.h"

/* A rectangle as results go to it: c and bias at its first row and column; dtype, ldc and add are those of g. */
typedef struct z3i_amx_target {
  const z3i_gemm_args *g;
  char *c;
  const uint16_t *bias;                           /* NULL: none */
} z3i_amx_target;

/* A finished block in f32 and where it goes: its place in the rectangle and the part of it that exists. */
typedef struct z3i_amx_done {
  const float *block;
  int64_t i, j, rows, cols;                       /* rows 0: there is none */
} z3i_amx_done;

/* A panel of A to be packed bit by bit: steps first..end-1 are still to be done. */
typedef struct z3i_amx_packing {
  uint16_t *dst;
  z3i_amx_source src;
  int64_t lines, k, first, end;
} z3i_amx_packing;

/* Lines of memory to be asked for, in rows. */
typedef struct z3i_amx_fetching {
  const char *at;
  int64_t rows, row_bytes, stride;
  int64_t row, byte;                              /* how far it is */
} z3i_amx_fetching;

/* What is done beside a block of C, in turns of one step each. */
typedef struct z3i_amx_aside {
  const z3i_amx_target *to;
  z3i_amx_done store;                             /* the block before */
  z3i_amx_packing a;                              /* of the panel of rows that comes next */
  z3i_amx_fetching next_a, c;                     /* what is read after that; what this block is written to */
  int64_t row;                                    /* how far storing is */
  int64_t rows_each, a_each, next_each, c_each;   /* in one turn: rows to store, steps to pack, lines to ask for */
  int64_t turn;
} z3i_amx_aside;

/* A panel of A as tiles are loaded from it, in bytes: from row to row, from step to step, to the second tile. */
typedef struct z3i_amx_tiles {
  const char *at;
  int64_t row, step, second;
} z3i_amx_tiles;

/* Between open and close a thread's tiles are in use. */
void z3i_amx_open(void);
void z3i_amx_close(void);

/* to = from + a panel of A by a packed panel of B, `steps` steps, with a turn of the aside after each. from: a dense
 * block, NULL for 0; rows of `to` are ld floats apart. */
void z3i_amx_block(z3i_amx_tiles a, const uint16_t *b, int64_t steps, const float *from, float *to, int64_t ld,
                   z3i_amx_aside *other);
/* The turns that are left. */
void z3i_amx_aside_rest(z3i_amx_aside *other);
/* Rows first..end-1 of a finished block to C: plus the bias, added to C or not, rounded. */
void z3i_amx_store(const z3i_amx_target *to, const z3i_amx_done *f, int64_t first, int64_t end);
#endif
