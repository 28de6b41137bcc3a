/* tensor.c -- handles: making, counting, asking. */
#include "tensor/slab.h"
#include "tensor/storage.h"

void (*z3i_tensor_drop_node)(struct z3i_node *node);

int z3i_tensor_check(const z3_tensor *t, const char *what)
{
  Z3I_REQUIRE(t != NULL, "%s: tensor is NULL", what);
  if (t->magic != Z3I_TENSOR_MAGIC) return Z3I_FAIL(Z3E_STALE, "%s: use of a tensor that was freed", what);
  return Z3E_OK;
}

static void shape_set(z3_tensor *t, int dtype, int ndim, const int64_t *shape, const int64_t *stride)
{
  t->dtype = (int8_t)dtype;
  t->ndim = (int8_t)ndim;
  t->numel = z3i_numel(ndim, shape);
  int64_t expect = 1;
  t->contiguous = true;
  for (int i = ndim - 1; i >= 0; i--) {
    t->shape[i] = shape[i];
    t->stride[i] = stride[i];
    if (shape[i] != 1 && stride[i] != expect && t->numel != 0) t->contiguous = false;
    expect *= shape[i];
  }
}

int z3i_shape_check(int dtype, int ndim, const int64_t *shape)
{
  Z3I_REQUIRE(z3i_dtype_ok(dtype), "tensor: dtype number is %d, wants 0 to %d", dtype, Z3T_COUNT - 1);
  Z3I_REQUIRE(ndim >= 0 && ndim <= Z3_MAX_DIMS, "tensor: %d dims, wants 0 to %d", ndim, Z3_MAX_DIMS);
  int64_t bytes = z3i_dtype_bytes(dtype);
  bool empty = false;
  for (int i = 0; i < ndim; i++) {
    Z3I_REQUIRE(shape[i] >= 0, "tensor: size of dim %d is %" PRId64 ", wants >= 0", i, shape[i]);
    if (shape[i] == 0) empty = true;
  }
  for (int i = 0; i < ndim && !empty; i++)
    if (__builtin_mul_overflow(bytes, shape[i], &bytes) || bytes > (int64_t)1 << 62) {
      char text[Z3I_SHAPE_TEXT];
      return Z3I_FAIL(Z3E_OOM, "tensor: %s of %s needs more than 2^62 bytes", z3i_shape_text(ndim, shape, text),
                      z3_dtype_name(dtype));
    }
  return Z3E_OK;
}

int z3i_tensor_alloc(z3i_device *dev, int dtype, int ndim, const int64_t *shape, int category, z3_tensor **out)
{
  *out = NULL;
  Z3I_TRY(z3i_shape_check(dtype, ndim, shape));
  int64_t stride[Z3_MAX_DIMS];
  z3i_strides(ndim, shape, stride);
  z3_tensor *t = z3i_slab_take();
  if (t == NULL) return Z3E_OOM;
  shape_set(t, dtype, ndim, shape, stride);
  int rc = z3i_storage_new(dev, t->numel * z3i_dtype_bytes(dtype), category, &t->storage);
  if (rc != Z3E_OK) {
    z3i_slab_give(t);
    return z3i_trace(__FILE__, __LINE__, __func__, rc);
  }
  *out = t;
  return Z3E_OK;
}

int z3_tensor_new(int device, int dtype, int ndim, const int64_t *shape, int category, z3_tensor **out)
{
  *out = NULL;
  z3i_device *dev;
  Z3I_TRY(z3i_device_find(device, &dev));
  Z3I_REQUIRE(category >= 0 && category < Z3M_COUNT, "tensor: memory category is %d, wants 0 to %d", category,
              Z3M_COUNT - 1);
  return z3i_tensor_alloc(dev, dtype, ndim, shape, category, out);
}

int z3_tensor_wrap(void *data, int dtype, int ndim, const int64_t *shape, z3_tensor **out)
{
  *out = NULL;
  z3i_device *dev;
  Z3I_TRY(z3i_device_find(Z3D_CPU, &dev));
  Z3I_TRY(z3i_shape_check(dtype, ndim, shape));
  int64_t stride[Z3_MAX_DIMS];
  z3i_strides(ndim, shape, stride);
  Z3I_REQUIRE(data != NULL || z3i_numel(ndim, shape) == 0, "tensor: wrapped data is NULL");
  z3_tensor *t = z3i_slab_take();
  if (t == NULL) return Z3E_OOM;
  shape_set(t, dtype, ndim, shape, stride);
  int rc = z3i_storage_wrap(dev, data, t->numel * z3i_dtype_bytes(dtype), &t->storage);
  if (rc != Z3E_OK) {
    z3i_slab_give(t);
    return rc;
  }
  *out = t;
  return Z3E_OK;
}

int z3i_tensor_view(const z3_tensor *t, int ndim, const int64_t *shape, const int64_t *stride, int64_t offset,
                    z3_tensor **out)
{
  z3_tensor *v = *out = z3i_slab_take();
  if (v == NULL) return Z3E_OOM;
  shape_set(v, t->dtype, ndim, shape, stride);
  v->storage = t->storage;
  v->offset = offset;
  z3i_storage_retain(v->storage);
  return Z3E_OK;
}

void z3_tensor_retain(z3_tensor *t)
{
  if (z3i_tensor_ok(t)) __atomic_add_fetch(&t->refs, 1, __ATOMIC_RELAXED);
}

void z3_tensor_release(z3_tensor *t)
{
  if (!z3i_tensor_ok(t) || __atomic_sub_fetch(&t->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
  struct z3i_node *node = t->node;
  z3_tensor *grad = t->grad;
  z3i_storage_release(t->storage);
  z3i_slab_give(t);
  z3_tensor_release(grad);                        /* a gradient has no gradient of its own: one level */
  if (node != NULL) z3i_tensor_drop_node(node);
}

int z3_tensor_ndim(const z3_tensor *t) { return z3i_tensor_ok(t) ? t->ndim : -1; }
int64_t z3_tensor_dim(const z3_tensor *t, int i)
{
  return z3i_tensor_ok(t) && i >= 0 && i < t->ndim ? t->shape[i] : -1;
}
int64_t z3_tensor_stride(const z3_tensor *t, int i)
{
  return z3i_tensor_ok(t) && i >= 0 && i < t->ndim ? t->stride[i] : -1;
}
int64_t z3_tensor_numel(const z3_tensor *t) { return z3i_tensor_ok(t) ? t->numel : -1; }
int z3_tensor_dtype(const z3_tensor *t) { return z3i_tensor_ok(t) ? t->dtype : -1; }
int z3_tensor_device(const z3_tensor *t) { return z3i_tensor_ok(t) ? t->storage->dev->id : -1; }
bool z3_tensor_contiguous(const z3_tensor *t) { return z3i_tensor_ok(t) && t->contiguous; }
int64_t z3_tensor_bytes(const z3_tensor *t) { return z3i_tensor_ok(t) ? t->storage->bytes : -1; }

int64_t z3_tensor_device_bytes(const z3_tensor *t)
{
  return z3i_tensor_ok(t) ? z3i_pool_in_use(t->storage->dev->pool) : 0;
}

int z3_tensor_data(const z3_tensor *t, void **out)
{
  *out = NULL;
  Z3I_TRY(z3i_tensor_check(t, "data"));
  if (!t->storage->dev->computes)
    return Z3I_FAIL(Z3E_UNSUPPORTED, "data: a tensor on device %s has no values", t->storage->dev->name);
  *out = (char *)t->storage->data + t->offset * z3i_dtype_bytes(t->dtype);
  return Z3E_OK;
}

void z3_tensor_touch(z3_tensor *t)
{
  if (z3i_tensor_ok(t)) t->storage->version++;
}

uint32_t z3_tensor_version(const z3_tensor *t) { return z3i_tensor_ok(t) ? t->storage->version : 0; }

void z3i_tensor_describe_meta(const z3_tensor *t, z3i_view *out)
{
  out->data = NULL;
  out->dtype = t->dtype;
  out->ndim = t->ndim;
  for (int i = 0; i < t->ndim; i++) {
    out->shape[i] = t->shape[i];
    out->stride[i] = t->stride[i];
  }
}

void z3i_tensor_describe(const z3_tensor *t, z3i_view *out)
{
  z3i_tensor_describe_meta(t, out);
  out->data = (char *)t->storage->data + t->offset * z3i_dtype_bytes(t->dtype);
}
