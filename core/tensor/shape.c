/* shape.c -- arithmetic on shapes and strides, and how they are written. */
#include <stdio.h>

#include "tensor/tensor.h"

int64_t z3i_numel(int ndim, const int64_t *shape)
{
  int64_t n = 1;
  for (int i = 0; i < ndim; i++) n *= shape[i];
  return n;
}

void z3i_strides(int ndim, const int64_t *shape, int64_t *stride)
{
  int64_t step = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    stride[i] = step;
    step *= Z3I_MAX(shape[i], 1);
  }
}

const char *z3i_shape_text(int ndim, const int64_t *shape, char buf[Z3I_SHAPE_TEXT])
{
  int used = snprintf(buf, Z3I_SHAPE_TEXT, "(");
  for (int i = 0; i < ndim && used < Z3I_SHAPE_TEXT - 24; i++)
    used += snprintf(buf + used, (size_t)(Z3I_SHAPE_TEXT - used), i ? ",%" PRId64 : "%" PRId64, shape[i]);
  snprintf(buf + used, (size_t)(Z3I_SHAPE_TEXT - used), ndim == 1 ? ",)" : ")");
  return buf;
}

bool z3i_broadcast(int *ndim, int64_t *shape, int b_ndim, const int64_t *b_shape)
{
  if (b_ndim > *ndim) {                           /* line up at the right */
    int shift = b_ndim - *ndim;
    for (int i = *ndim - 1; i >= 0; i--) shape[i + shift] = shape[i];
    for (int i = 0; i < shift; i++) shape[i] = 1;
    *ndim = b_ndim;
  }
  for (int i = 0; i < b_ndim; i++) {
    int64_t *a = &shape[*ndim - b_ndim + i];
    if (*a == b_shape[i] || b_shape[i] == 1) continue;
    if (*a != 1) return false;
    *a = b_shape[i];
  }
  return true;
}

void z3i_broadcast_strides(const z3_tensor *t, int ndim, const int64_t *shape, int64_t *stride)
{
  int shift = ndim - t->ndim;
  for (int i = 0; i < ndim; i++)
    stride[i] = i < shift || (t->shape[i - shift] == 1 && shape[i] != 1) ? 0 : t->stride[i - shift];
}
