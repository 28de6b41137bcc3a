/* tensor.h (private) -- what a tensor is made of. Private to tensor/ and the folders above it.
 * A storage is refcounted bytes on a device; a tensor is a view of one, plus what the tape knows of it. */
#ifndef Z3I_TENSOR_H
#define Z3I_TENSOR_H
#include "device/device.h"
#include "zero3/tensor.h"

struct z3i_node;

typedef struct z3i_storage {
  int32_t refs;
  uint32_t version;                               /* counts in-place changes; saved tensors remember it */
  z3i_device *dev;
  void *data;
  int64_t bytes;
  bool wrapped;                                   /* somebody else's memory: not freed */
  int8_t category;                                /* Z3M_... */
} z3i_storage;

struct z3_tensor {
  uint32_t magic;
  int32_t refs;
  z3i_storage *storage;
  int64_t offset;                                 /* of the first element, in elements */
  int64_t numel;
  int64_t shape[Z3_MAX_DIMS], stride[Z3_MAX_DIMS];
  int8_t dtype, ndim;
  bool contiguous;
  /* autograd: either made by node (its output number out_index), or a leaf */
  bool requires_grad;
  bool grad_is_buffer, grad_touched;              /* see z3_grad_buffer */
  uint8_t out_index;
  struct z3i_node *node;
  z3_tensor *grad;
  uint32_t region;                                /* recompute region that made it (0: none), and its value number */
  uint32_t value;
};

enum { Z3I_TENSOR_MAGIC = 0x7A335431, Z3I_TENSOR_DEAD = 0x7A335430 };

static inline bool z3i_tensor_ok(const z3_tensor *t) { return t != NULL && t->magic == Z3I_TENSOR_MAGIC; }
/* Z3E_STALE with what's name in the text when t isn't a live handle. */
int z3i_tensor_check(const z3_tensor *t, const char *what);

/* New tensor over new memory of dev. */
int z3i_tensor_alloc(z3i_device *dev, int dtype, int ndim, const int64_t *shape, int category, z3_tensor **out);
/* New tensor over t's storage; offset in elements; t's dtype. */
int z3i_tensor_view(const z3_tensor *t, int ndim, const int64_t *shape, const int64_t *stride, int64_t offset,
                    z3_tensor **out);
/* t itself when contiguous (a new reference), else a contiguous copy (not recorded). */
int z3i_tensor_contiguous(z3_tensor *t, z3_tensor **out);
void z3i_tensor_describe(const z3_tensor *t, z3i_view *out);        /* with data */
void z3i_tensor_describe_meta(const z3_tensor *t, z3i_view *out);   /* data NULL */
/* Called when the last reference of a recorded result goes; tape/ installs it (it frees nodes iteratively). */
extern void (*z3i_tensor_drop_node)(struct z3i_node *node);

/* ---- shape.c ---- */
int64_t z3i_numel(int ndim, const int64_t *shape);
/* Refuses a dtype, sizes or a number of bytes (above 2^62) that no tensor can have. */
int z3i_shape_check(int dtype, int ndim, const int64_t *shape);
void z3i_strides(int ndim, const int64_t *shape, int64_t *stride);
/* Text "(2,3)" into buf; returns buf. */
enum { Z3I_SHAPE_TEXT = 160 };
const char *z3i_shape_text(int ndim, const int64_t *shape, char buf[Z3I_SHAPE_TEXT]);
/* NumPy broadcasting of b into the running shape. False: they do not fit. */
bool z3i_broadcast(int *ndim, int64_t *shape, int b_ndim, const int64_t *b_shape);
/* Strides that show t as the broadcast shape (0 where repeated). The shape must be one that t broadcasts to. */
void z3i_broadcast_strides(const z3_tensor *t, int ndim, const int64_t *shape, int64_t *stride);
#endif
