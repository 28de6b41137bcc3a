/* elem.h -- walking strided views in blocks, and the engine of elementwise kernels.
 * Every elementwise kernel runs the same way: blocks of the row-major index range are fetched as floats (or 64-bit
 * integers when nothing but integers take part), one function computes the block, the result is rounded once. */
#ifndef Z3I_ELEM_H
#define Z3I_ELEM_H
#include "device/cpu/isa/vec.h"

/* A view with dims of size 1 dropped and neighbours merged where memory allows. */
typedef struct z3i_flat {
  char *data;
  int dtype, bytes, ndim;                       /* bytes of one element; ndim >= 1 */
  int64_t n, shape[Z3_MAX_DIMS], stride[Z3_MAX_DIMS];
  bool dense;                                   /* element i lies at data + i * bytes */
} z3i_flat;

/* A double as 64-bit integer: toward zero, the nearest that fits, 0 for NaN. */
static inline int64_t z3i_whole(double v)
{
  if (v != v) return 0;
  if (v >= 9223372036854775808.0) return INT64_MAX;
  return v <= -9223372036854775808.0 ? INT64_MIN : (int64_t)v;
}

/* Wrapping integer power; a negative one is 0 but for the bases 1 and -1, as in PyTorch. */
static inline int64_t z3i_whole_pow(int64_t base, int64_t power)
{
  if (power < 0) return base == 1 ? 1 : base == -1 ? (power % 2 != 0 ? -1 : 1) : 0;
  uint64_t result = 1;
  for (uint64_t b = (uint64_t)base, p = (uint64_t)power; p > 0; p >>= 1, b *= b)
    if (p & 1) result *= b;
  return (int64_t)result;
}

enum { Z3I_ELEM_IN = 4 };
/* y[i] = f(in[0][i], in[1][i], ...) for n elements */
typedef void (*z3i_elem_f32)(float *y, const float *const *in, const z3_attr *attr, int64_t n);
typedef void (*z3i_elem_i64)(int64_t *y, const int64_t *const *in, const z3_attr *attr, int64_t n);

#define z3i_flatten Z3I_SYM(flatten)
#define z3i_offset Z3I_SYM(offset)
#define z3i_gather Z3I_SYM(gather)
#define z3i_scatter Z3I_SYM(scatter)
#define z3i_get_f32 Z3I_SYM(get_f32)
#define z3i_get_i64 Z3I_SYM(get_i64)
#define z3i_put_f32 Z3I_SYM(put_f32)
#define z3i_put_i64 Z3I_SYM(put_i64)
#define z3i_transpose Z3I_SYM(transpose)
#define z3i_elem_run Z3I_SYM(elem_run)
#define z3i_elem_run_i64 Z3I_SYM(elem_run_i64)

z3i_flat z3i_flatten(const z3i_view *v);
int64_t z3i_offset(const z3i_flat *f, int64_t i);      /* where element i of the row-major order lies, in elements */
/* Elements lo .. lo+n-1 of the row-major order, as they are, into dst; and back. */
void z3i_gather(void *dst, const z3i_flat *f, int64_t lo, int64_t n);
void z3i_scatter(const z3i_flat *f, int64_t lo, int64_t n, const void *src);
/* The same n <= Z3I_BLOCK elements converted. The result is buf, or the memory itself where nothing is to do. */
const float *z3i_get_f32(float *buf, const z3i_flat *f, int64_t lo, int64_t n);
const int64_t *z3i_get_i64(int64_t *buf, const z3i_flat *f, int64_t lo, int64_t n);
void z3i_put_f32(const z3i_flat *f, int64_t lo, int64_t n, const float *src, bool add);
void z3i_put_i64(const z3i_flat *f, int64_t lo, int64_t n, const int64_t *src);

/* dst = src where this is a transposition, which needs tiles to be fast; false (nothing done) where it isn't. */
bool z3i_transpose(const z3i_flat *dst, const z3i_flat *src);

/* out (+)= f(in...): all views have out's shape. */
void z3i_elem_run(z3i_elem_f32 f, const z3_attr *attr, const z3i_view *out, bool add, int n_in,
                  const z3i_view *const *in);
void z3i_elem_run_i64(z3i_elem_i64 f, const z3_attr *attr, const z3i_view *out, int n_in, const z3i_view *const *in);
#endif
