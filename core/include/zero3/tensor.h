/* tensor.h -- a tensor: a view (shape, strides, dtype) of refcounted bytes on a device.
 * Handles are pointers into a slab that is never given back, so use after release is Z3E_STALE, not a crash.
 * Legend: a "new reference" is owned by the caller and ends with z3_tensor_release. */
#ifndef ZERO3_TENSOR_H
#define ZERO3_TENSOR_H
#ifndef Z3_CDEF
#include "zero3/status.h"
#include "zero3/dtype.h"
#endif

typedef struct z3_tensor z3_tensor;

enum { Z3D_CPU = 0, Z3D_NULL = 1, Z3D_COUNT = 2 };
/* Memory categories: every byte of a device belongs to one. */
enum {
  Z3M_PARAM_SHARD, Z3M_PARAM_FULL, Z3M_GRAD, Z3M_OPTIMIZER, Z3M_ACTIVATION, Z3M_BUFFER, Z3M_IO, Z3M_OTHER, Z3M_COUNT
};

/* New tensor, contents undefined. shape: ndim <= Z3_MAX_DIMS sizes >= 0.
 * Errors: Z3E_ARG (ndim, dtype, device, negative size, more than 2^62 bytes), Z3E_OOM. */
int z3_tensor_new(int device, int dtype, int ndim, const int64_t *shape, int category, z3_tensor **out);
/* The same over bytes owned by somebody else (host memory; must outlive the tensor and every view of it). */
int z3_tensor_wrap(void *data, int dtype, int ndim, const int64_t *shape, z3_tensor **out);

void z3_tensor_retain(z3_tensor *t);
void z3_tensor_release(z3_tensor *t);           /* NULL is harmless */
int64_t z3_tensor_live(void);                   /* live tensor objects, for leak checks */

int z3_tensor_ndim(const z3_tensor *t);         /* -1: stale handle (also in the ones below) */
int64_t z3_tensor_dim(const z3_tensor *t, int i);
int64_t z3_tensor_stride(const z3_tensor *t, int i);
int64_t z3_tensor_numel(const z3_tensor *t);
int z3_tensor_dtype(const z3_tensor *t);
int z3_tensor_device(const z3_tensor *t);
bool z3_tensor_contiguous(const z3_tensor *t);
int64_t z3_tensor_bytes(const z3_tensor *t);    /* of its storage: shared by views */
int64_t z3_tensor_device_bytes(const z3_tensor *t);   /* in use on its device now, by whomever; cheap */

/* Pointer to the first element in host memory. Errors: Z3E_UNSUPPORTED (null device), Z3E_RELEASED, Z3E_STALE. */
int z3_tensor_data(const z3_tensor *t, void **out);
/* Tells the tape that the values were changed from outside (through z3_tensor_data). */
void z3_tensor_touch(z3_tensor *t);
/* Counts the changes of the values that t shows, by whatever tensor shares them. */
uint32_t z3_tensor_version(const z3_tensor *t);

/* dst[...] = src, broadcasting and converting; not recorded. They may overlap in memory (that takes a
 * buffer, so Z3E_OOM is possible). Errors: Z3E_SHAPE, Z3E_STALE. */
int z3_tensor_copy(z3_tensor *dst, z3_tensor *src);
int z3_tensor_fill(z3_tensor *t, double value);
/* Random numbers: element i of the row-major tensor depends on (key, first + i) only.
 * kind: normal N(a, b^2); uniform [a, b); trunc_normal N(a, b^2) cut at 2 b. */
enum { Z3R_NORMAL = 0, Z3R_UNIFORM = 1, Z3R_TRUNC_NORMAL = 2 };
int z3_tensor_random(z3_tensor *t, int kind, double a, double b, uint64_t key, int64_t first);
/* 0, 1, 2, ... times step plus start. */
int z3_tensor_arange(z3_tensor *t, double start, double step);
/* t on another device: a new tensor, or a new reference to t itself. From null there are no values to bring:
 * Z3E_UNSUPPORTED. */
int z3_tensor_to_device(z3_tensor *t, int device, z3_tensor **out);
/* One element as a double (i64 beyond 2^53 loses bits). Errors: Z3E_SHAPE unless numel is 1. */
int z3_tensor_item(z3_tensor *t, double *out);

/* Folds numbers into a 64-bit key for the random functions (order matters). */
uint64_t z3_key(uint64_t seed, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
uint64_t z3_key_name(const char *name);
#endif
