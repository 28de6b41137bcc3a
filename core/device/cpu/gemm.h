/* gemm.h -- matrix products of the CPU device.
 * Legend: C (M,N) = A (M,K) B (K,N), batch times. */
#ifndef Z3I_GEMM_H
#define Z3I_GEMM_H
#include "device/device.h"

/* Strides count elements. Element (i,j) of a matrix X lies at x[i * ldx + j], or at x[j * ldx + i] where its t flag is
 * set (ldx >= the inner length, or anything where there is one line only). C is never transposed.
 * Matrix number b starts at x + b * batch_stride; 0 repeats one matrix (not for C). */
typedef struct z3i_gemm_args {
  z3i_device *dev;                              /* for scratch memory */
  int64_t m, n, k, batch;
  const void *a, *b;                            /* both of in_dtype: f32, bf16, f16 */
  void *c;                                      /* out_dtype: f32, or in_dtype */
  const void *bias;                             /* (N) of in_dtype, contiguous, or NULL */
  int64_t lda, ldb, ldc;
  int64_t a_batch_stride, b_batch_stride, c_batch_stride;
  int in_dtype, out_dtype;
  bool a_t, b_t;
  bool add;                                     /* C += the finished product, in f32, rounded once */
} z3i_gemm_args;

/* Sums run in f32. Bits depend on the shapes, layouts, dtypes and the number of threads only; `add` gives the bits of
 * the product into f32 without add, added. May run on several threads at once.
 * Errors: Z3E_OOM (scratch), Z3E_ARG (args that don't describe matrices), Z3E_BUG (the library refused). */
int z3i_gemm(const z3i_gemm_args *a);

/* n contiguous elements of dst = src, or += src (in f32, rounded once). One thread. */
void z3i_store_row(void *dst, int dtype, const float *src, int64_t n, bool add);
#endif
