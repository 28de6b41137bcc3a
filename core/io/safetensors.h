/* safetensors.h -- what reader and writer of safetensors files share. */
#ifndef Z3I_SAFETENSORS_H
#define Z3I_SAFETENSORS_H
#include "base/base.h"
#include "zero3/safetensors.h"

enum { Z3I_ST_HEADER_MAX = 100000000, Z3I_ST_DIMS_MAX = 64 };

/* Bits of one element by the format's name of its type (-1: no such type), and our dtype (-1: we have none). */
int z3i_st_dtype_bits(const char *name);
int z3i_st_dtype_from(const char *name);
const char *z3i_st_dtype_name(int dtype);
#endif
