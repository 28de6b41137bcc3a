/* gemm_onednn.h -- one product of the library, made once per shape and kept. Private to cpu/; gemm.c alone calls it. */
#ifndef Z3I_GEMM_ONEDNN_H
#define Z3I_GEMM_ONEDNN_H
#include "base/base.h"

/* What makes two products the same. Compared bytewise: fill a zeroed one. The letters are those of gemm.h. */
typedef struct z3i_mm_key {
  int64_t m, n, k, batch, lda, ldb, ldc, a_batch_stride, b_batch_stride, c_batch_stride;
  int32_t threads;                              /* the library's split of the work, and so the bits, depend on it */
  uint8_t in_dtype, out_dtype, a_t, b_t, bias, pack_b;
  uint8_t zero[6];
} z3i_mm_key;

typedef struct z3i_mm_plan {
  z3i_mm_key key;
  void *product_desc, *product, *reorder_desc, *reorder;        /* the library's */
  size_t scratch_bytes;                         /* what run and pack need */
  size_t packed_bytes;                          /* 0: B is read where it lies */
  bool lacking;                                 /* no fast code for these types on this machine */
  bool kept;
  int users;
  uint64_t hash, last_use;
} z3i_mm_plan;

/* The plan of a product, from the cache or made now; room is used when it can't be kept. Give it back with put.
 * A lacking plan can't run. */
int z3i_mm_plan_get(const z3i_mm_key *key, z3i_mm_plan *room, z3i_mm_plan **out);
void z3i_mm_plan_put(z3i_mm_plan *plan);

/* B in the library's own layout; packed has room for packed_bytes. */
int z3i_mm_pack(const z3i_mm_plan *plan, const void *b, void *packed, void *scratch);
/* b: as it is, or what pack made when packed_bytes > 0. Threads may run one plan at once, each with its scratch. */
int z3i_mm_run(const z3i_mm_plan *plan, const void *a, const void *b, const void *bias, void *c, void *scratch);

void z3i_mm_cache_clear(void);                  /* drops what nobody uses */
int z3i_mm_cache_count(void);
#endif
