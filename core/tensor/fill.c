/* fill.c -- values into tensors: copies, constants, sequences, random numbers, one element out. None is recorded. */
#include "device/pool.h"
#include "prof/prof.h"
#include "tensor/tensor.h"

static int writable(z3_tensor *t, const char *what)
{
  Z3I_TRY(z3i_tensor_check(t, what));
  for (int i = 0; i < t->ndim; i++)
    if (t->stride[i] == 0 && t->shape[i] > 1)
      return Z3I_FAIL(Z3E_ARG, "%s: dim %d of the tensor is expanded (one element in many places): clone it first",
                      what, i);
  t->storage->version++;
  return Z3E_OK;
}

/* Reports a copy or a fill to the profiler. */
static int report(int rc, int object, int64_t start, int64_t bytes)
{
  if (rc == Z3E_OK && start != 0) z3i_prof_add(Z3P_DATA, object, start, bytes, 0, z3i_owner_get());
  return rc;
}

static int64_t bytes_of(const z3_tensor *t) { return t->numel * z3i_dtype_bytes(t->dtype); }

static bool skip(const z3_tensor *t) { return t->numel == 0 || !t->storage->dev->computes; }

/* First and last element of t in its storage. */
static void extent(const z3_tensor *t, int64_t *first, int64_t *last)
{
  *first = *last = t->offset;
  for (int i = 0; i < t->ndim; i++) *last += (t->shape[i] - 1) * t->stride[i];
}

/* Would copying element by element read what it has written? Both have elements. */
static bool overlaps(const z3_tensor *dst, const z3_tensor *src)
{
  if (dst->storage != src->storage) return false;
  size_t dims = sizeof(int64_t) * (size_t)dst->ndim;
  if (dst->ndim == src->ndim && dst->offset == src->offset && memcmp(dst->shape, src->shape, dims) == 0 &&
      memcmp(dst->stride, src->stride, dims) == 0)
    return false;                               /* each element onto itself */
  int64_t d0, d1, s0, s1;
  extent(dst, &d0, &d1);
  extent(src, &s0, &s1);
  return d0 <= s1 && s0 <= d1;
}

/* The copy by way of a tensor of its own. */
static int copy_apart(z3_tensor *dst, const z3_tensor *src)
{
  z3_tensor *apart;
  Z3I_TRY(z3i_tensor_alloc(src->storage->dev, src->dtype, src->ndim, src->shape, Z3M_BUFFER, &apart));
  z3i_view s, a;
  z3i_tensor_describe(src, &s);
  z3i_tensor_describe(apart, &a);
  int rc = src->storage->dev->copy(&a, &s);
  if (rc == Z3E_OK) rc = z3_tensor_copy(dst, apart);
  z3_tensor_release(apart);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

int z3_tensor_copy(z3_tensor *dst, z3_tensor *src)
{
  Z3I_TRY(z3i_tensor_check(src, "copy"));
  Z3I_TRY(writable(dst, "copy"));
  int ndim = dst->ndim;
  int64_t shape[Z3_MAX_DIMS];
  memcpy(shape, dst->shape, sizeof shape);
  bool fits = z3i_broadcast(&ndim, shape, src->ndim, src->shape) && ndim == dst->ndim &&
              memcmp(shape, dst->shape, sizeof *shape * (size_t)ndim) == 0;
  if (!fits) {
    char a[Z3I_SHAPE_TEXT], b[Z3I_SHAPE_TEXT];
    return Z3I_FAIL(Z3E_SHAPE, "copy: source %s does not broadcast to %s", z3i_shape_text(src->ndim, src->shape, a),
                    z3i_shape_text(dst->ndim, dst->shape, b));
  }
  if (skip(dst) || !src->storage->dev->computes) return Z3E_OK;
  if (overlaps(dst, src)) return copy_apart(dst, src);
  z3i_view d, s;
  z3i_tensor_describe(dst, &d);
  z3i_tensor_describe(src, &s);
  s.ndim = ndim;
  memcpy(s.shape, shape, sizeof shape);
  z3i_broadcast_strides(src, ndim, shape, s.stride);
  int64_t start = z3i_prof_start();
  return report(dst->storage->dev->copy(&d, &s), Z3P_COPY, start, bytes_of(dst) + bytes_of(src));
}

int z3_tensor_fill(z3_tensor *t, double value)
{
  Z3I_TRY(writable(t, "fill"));
  if (skip(t)) return Z3E_OK;
  z3i_view d;
  z3i_tensor_describe(t, &d);
  int64_t start = z3i_prof_start();
  return report(t->storage->dev->fill(&d, value), Z3P_FILL, start, bytes_of(t));
}

int z3_tensor_random(z3_tensor *t, int kind, double a, double b, uint64_t key, int64_t first)
{
  Z3I_TRY(writable(t, "random"));
  Z3I_REQUIRE(kind >= Z3R_NORMAL && kind <= Z3R_TRUNC_NORMAL, "random: kind is %d, wants 0 to 2", kind);
  Z3I_REQUIRE(first >= 0, "random: first element is %" PRId64 ", wants >= 0", first);
  if (skip(t)) return Z3E_OK;
  z3i_view d;
  z3i_tensor_describe(t, &d);
  int64_t start = z3i_prof_start();
  return report(t->storage->dev->random(&d, kind, a, b, key, first), Z3P_RANDOM, start, bytes_of(t));
}

int z3_tensor_arange(z3_tensor *t, double start, double step)
{
  Z3I_TRY(writable(t, "arange"));
  if (skip(t)) return Z3E_OK;
  z3i_view d;
  z3i_tensor_describe(t, &d);
  int64_t begun = z3i_prof_start();
  return report(t->storage->dev->arange(&d, start, step), Z3P_FILL, begun, bytes_of(t));
}

int z3i_tensor_contiguous(z3_tensor *t, z3_tensor **out)
{
  *out = NULL;
  if (t->contiguous) {
    z3_tensor_retain(t);
    *out = t;
    return Z3E_OK;
  }
  Z3I_TRY(z3i_tensor_alloc(t->storage->dev, t->dtype, t->ndim, t->shape, Z3M_ACTIVATION, out));
  int rc = z3_tensor_copy(*out, t);
  if (rc == Z3E_OK) return rc;
  z3_tensor_release(*out);
  *out = NULL;
  return z3i_trace(__FILE__, __LINE__, __func__, rc);
}

int z3_tensor_to_device(z3_tensor *t, int device, z3_tensor **out)
{
  *out = NULL;
  Z3I_TRY(z3i_tensor_check(t, "to"));
  if (t->storage->dev->id == device) {
    z3_tensor_retain(t);
    *out = t;
    return Z3E_OK;
  }
  z3i_device *dev;
  Z3I_TRY(z3i_device_find(device, &dev));
  if (dev->computes)
    return Z3I_FAIL(Z3E_UNSUPPORTED, "to: a tensor on device %s has no values to bring to %s", t->storage->dev->name,
                    dev->name);
  return z3i_tensor_alloc(dev, t->dtype, t->ndim, t->shape, t->storage->category, out);
}

int z3_tensor_item(z3_tensor *t, double *out)
{
  *out = 0;
  Z3I_TRY(z3i_tensor_check(t, "item"));
  char text[Z3I_SHAPE_TEXT];
  if (t->numel != 1)
    return Z3I_FAIL(Z3E_SHAPE, "item: the tensor has shape %s, wants one element",
                    z3i_shape_text(t->ndim, t->shape, text));
  void *p;
  Z3I_TRY(z3_tensor_data(t, &p));
  switch (t->dtype) {
  case Z3T_F32: *out = *(float *)p; break;
  case Z3T_BF16: *out = z3i_bf16_to_f32(*(uint16_t *)p); break;
  case Z3T_F16: *out = z3i_f16_to_f32(*(uint16_t *)p); break;
  case Z3T_I32: *out = *(int32_t *)p; break;
  case Z3T_I64: *out = (double)*(int64_t *)p; break;
  default: *out = *(uint8_t *)p; break;
  }
  return Z3E_OK;
}

uint64_t z3_key(uint64_t seed, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
  return z3i_mix(z3i_mix(z3i_mix(z3i_mix(z3i_mix(0, seed), a), b), c), d);
}

uint64_t z3_key_name(const char *name) { return z3i_hash_bytes(name, strlen(name), 0); }
