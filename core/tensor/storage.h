/* storage.h -- refcounted bytes (see storage.c). Private to tensor/. */
#ifndef Z3I_STORAGE_H
#define Z3I_STORAGE_H
#include "tensor/tensor.h"

int z3i_storage_new(z3i_device *dev, int64_t bytes, int category, z3i_storage **out);
int z3i_storage_wrap(z3i_device *dev, void *data, int64_t bytes, z3i_storage **out);
void z3i_storage_retain(z3i_storage *s);
void z3i_storage_release(z3i_storage *s);
#endif
