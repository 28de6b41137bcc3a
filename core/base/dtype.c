/* dtype.c -- names and sizes of element types. */
#include "base/base.h"

static const char *const names[Z3T_COUNT] = { "f32", "bf16", "f16", "i32", "i64", "u8" };

const char *z3_dtype_name(int dtype) { return z3i_dtype_ok(dtype) ? names[dtype] : "?"; }

int z3_dtype_from_name(const char *name)
{
  for (int t = 0; name != NULL && t < Z3T_COUNT; t++)
    if (strcmp(names[t], name) == 0) return t;
  return -1;
}

int z3_dtype_bytes(int dtype) { return z3i_dtype_ok(dtype) ? z3i_dtype_bytes(dtype) : 0; }
