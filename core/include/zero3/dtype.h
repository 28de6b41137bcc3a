/* dtype.h -- element types and limits on shapes. */
#ifndef ZERO3_DTYPE_H
#define ZERO3_DTYPE_H
enum { Z3T_F32 = 0, Z3T_BF16 = 1, Z3T_F16 = 2, Z3T_I32 = 3, Z3T_I64 = 4, Z3T_U8 = 5, Z3T_COUNT = 6 };
enum { Z3_MAX_DIMS = 8 };

/* "f32", "bf16", "f16", "i32", "i64", "u8"; "?" for a number that is no dtype. */
const char *z3_dtype_name(int dtype);
/* The number of a name; -1 when there is none. */
int z3_dtype_from_name(const char *name);
int z3_dtype_bytes(int dtype);
#endif
