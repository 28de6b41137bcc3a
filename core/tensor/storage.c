/* storage.c -- refcounted bytes on a device. */
#include "tensor/storage.h"

int z3i_storage_new(z3i_device *dev, int64_t bytes, int category, z3i_storage **out)
{
  *out = NULL;
  z3i_storage *s = z3i_alloc(sizeof *s);
  if (s == NULL) return Z3E_OOM;
  int rc;
  Z3I_TRY_GOTO(rc, z3i_pool_alloc(dev, (size_t)bytes, category, &s->data), fail);
  s->refs = 1;
  s->dev = dev;
  s->bytes = bytes;
  s->category = (int8_t)category;
  *out = s;
  return Z3E_OK;
fail:
  z3i_free(s);
  return rc;
}

int z3i_storage_wrap(z3i_device *dev, void *data, int64_t bytes, z3i_storage **out)
{
  z3i_storage *s = *out = z3i_alloc(sizeof *s);
  if (s == NULL) return Z3E_OOM;
  *s = (z3i_storage){
    .refs = 1, .dev = dev, .data = data, .bytes = bytes, .wrapped = true, .category = Z3M_OTHER
  };
  return Z3E_OK;
}

void z3i_storage_retain(z3i_storage *s) { __atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED); }

void z3i_storage_release(z3i_storage *s)
{
  if (s == NULL || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
  if (!s->wrapped) z3i_pool_free(s->dev, s->data);
  z3i_free(s);
}
