/* device.h -- what a device is: memory, copies, and one kernel per operation and direction.
 * Private. Backends (cpu/, null/) fill a z3i_device; registry.c alone names them. */
#ifndef Z3I_DEVICE_H
#define Z3I_DEVICE_H
#include "base/base.h"
#include "zero3/ops.h"

/* A strided view of device memory as kernels see it. Strides count elements; 0 where a dim is broadcast. */
typedef struct z3i_view {
  void *data;                                   /* NULL: not given (an optional input) or not wanted (a gradient) */
  int dtype, ndim;
  int64_t shape[Z3_MAX_DIMS], stride[Z3_MAX_DIMS];
} z3i_view;

static inline int64_t z3i_view_numel(const z3i_view *v)
{
  int64_t n = 1;
  for (int i = 0; i < v->ndim; i++) n *= v->shape[i];
  return n;
}

enum { Z3I_MAX_IN = 8, Z3I_MAX_OUT = 2, Z3I_MAX_AUX = 2 };

/* One kernel call. Forward reads in, writes out and aux. Backward reads gout and what op.def saves of in, out and
 * aux (other views carry shape and dtype with data NULL), and writes each gin whose data isn't NULL.
 * Shapes and dtypes were checked and storage allocated by ops/; out, aux and gin are contiguous unless op.def says
 * otherwise. A gin may have another float dtype than its input (f32 gradients of bf16 weights). */
typedef struct z3i_call {
  int op;
  const z3_attr *attr;
  struct z3i_device *dev;                       /* for scratch memory */
  z3i_view in[Z3I_MAX_IN], out[Z3I_MAX_OUT], aux[Z3I_MAX_AUX];
  z3i_view gout[Z3I_MAX_OUT], gin[Z3I_MAX_IN];
  uint32_t gin_add;                             /* bit i: add to gin[i] instead of writing it */
} z3i_call;
typedef int (*z3i_kernel)(const z3i_call *c);

/* Update of one flat span of a parameter; see zero3/optim.h for the formulas. n elements, all f32 but
 * weight16 (bf16/f16, may be NULL), which gets the rounded new value in the same pass. */
typedef struct z3i_update {
  int kind;                                     /* Z3_ADAMW, Z3_ADAM, Z3_SGD, Z3_LION */
  int64_t n;
  float *master, *m, *v;                        /* m, v NULL where the kind has none */
  const float *grad;
  void *weight16;
  int weight16_dtype;
  float grad_scale;                             /* multiplies each gradient first (unscale, average, clip) */
  double lr, beta1, beta2, eps, weight_decay, momentum;   /* double: 1 - 0.999f is off by 1.3e-5 */
  double bias1, bias2;                          /* 1 - beta^t */
  int nesterov, first;                          /* first: buf = g (SGD's first step) */
} z3i_update;

typedef struct z3i_device {
  const char *name;
  int id;                                       /* Z3D_ */
  bool computes;                                /* false: data is never touched; kernels only count scratch */
  int (*mem_alloc)(size_t bytes, void **out);   /* whole segments for the pool, 64-byte aligned at least */
  void (*mem_free)(void *p, size_t bytes);
  const z3i_kernel *forward, *backward;         /* [Z3OP_COUNT]; NULL entries: not on this device */
  int (*copy)(const z3i_view *dst, const z3i_view *src);   /* src broadcast to dst's shape; converts */
  int (*fill)(const z3i_view *dst, double value);
  int (*random)(const z3i_view *dst, int kind, double a, double b, uint64_t key, int64_t first);
  int (*arange)(const z3i_view *dst, double start, double step);
  int (*update)(const z3i_update *u);
  /* Sum of squares in double, in fixed order, and the number of elements that are nan or inf. */
  int (*sumsq)(const z3i_view *x, double *sum, int64_t *nonfinite);
  struct z3i_pool *pool;
} z3i_device;

/* Errors: Z3E_ARG (no such device), or why it couldn't be opened (a bad Z3_CPU, no memory). */
int z3i_device_find(int id, z3i_device **out);

/* ---- pool.c: caching allocator with categories and a hard budget -------------------------------- */
int z3i_pool_alloc(z3i_device *dev, size_t bytes, int category, void **out);
void z3i_pool_free(z3i_device *dev, void *p);
int64_t z3i_pool_in_use(const struct z3i_pool *pool);    /* bytes now, without the lock: for pacing */
/* Scratch of a kernel: category buffer. */
static inline int z3i_scratch(z3i_device *dev, size_t bytes, void **out)
{
  return z3i_pool_alloc(dev, bytes, Z3M_BUFFER, out);
}
#endif
