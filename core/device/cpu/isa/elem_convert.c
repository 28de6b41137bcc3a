/* elem_convert.c -- blocks of contiguous elements between every dtype and floats or 64-bit integers.
 * f16 by instruction where the level has one (v3 up), else by exact bit arithmetic; both round to nearest even. */
#include "device/cpu/isa/vec.h"
#ifdef __F16C__
#include <immintrin.h>
#endif

/* ---- f16 -------------------------------------------------------------------------------------------- */
/* Scaling by 2^112 moves the exponent bias from 15 to 127, subnormals included. */
static inline float half_to_f32(uint16_t h)
{
  uint32_t magnitude = (uint32_t)(h & 0x7FFFu) << 13;
  uint32_t u = z3i_bits(z3i_float(magnitude) * 5.192296858534828e33f);
  u = (h & 0x7C00u) == 0x7C00u ? magnitude | 0x7F800000u : u;
  return z3i_float(u | (uint32_t)(h & 0x8000u) << 16);
}
static inline uint16_t f32_to_half(float f)
{
  uint32_t u = z3i_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;
  uint32_t normal = (a - 0x38000000u + 0xFFFu + ((a >> 13) & 1u)) >> 13;
  uint32_t tiny = z3i_bits(z3i_float(a) + 0.5f) - 0x3F000000u;   /* the sum rounds at the last bit of a subnormal */
  uint32_t h = a < 0x38800000u ? tiny : normal;
  h = a >= 0x477FF000u ? 0x7C00u : h;                            /* 65520 up rounds to infinity */
  h = a > 0x7F800000u ? 0x7E00u | ((a >> 13) & 0x3FFu) : h;
  return (uint16_t)(sign | h);
}

static void load_half(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
  int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i))));
#endif
  for (; i < n; i++) dst[i] = half_to_f32(src[i]);
}
static void store_half(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
  int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((__m128i *)(dst + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; i++) dst[i] = f32_to_half(src[i]);
}

/* ---- integers --------------------------------------------------------------------------------------- */
/* Toward zero; NaN gives 0. Clamped first, because a conversion out of range is undefined in C; the bounds are the
 * largest floats that fit. No branches, so that the loops become vector code. */
static inline int32_t f32_to_i32(float f)
{
  float x = f != f ? 0.0f : f;
  x = x > 2147483520.0f ? 2147483520.0f : x;
  x = x < -2147483648.0f ? -2147483648.0f : x;
  return f >= 2147483648.0f ? INT32_MAX : (int32_t)x;
}
static inline int64_t f32_to_i64(float f)
{
  float x = f != f ? 0.0f : f;
  x = x > 9223371487098961920.0f ? 9223371487098961920.0f : x;
  x = x < -9223372036854775808.0f ? -9223372036854775808.0f : x;
  return f >= 9223372036854775808.0f ? INT64_MAX : (int64_t)x;
}
/* The low 8 bits: floats from 2^31 up are multiples of 256. */
static inline uint8_t f32_to_u8(float f)
{
  return (uint8_t)(int32_t)(z3i_absf(f) < 2147483648.0f ? f : 0.0f);
}

/* ---- any dtype -------------------------------------------------------------------------------------- */
#define LOOP(T, expr)                                                                               \
  do {                                                                                              \
    const T *restrict s = (const T *)src;                                                           \
    for (int64_t i = 0; i < n; i++) dst[i] = (expr);                                                \
  } while (0)

void Z3I_SYM(load_f32)(float *restrict dst, const void *restrict src, int dtype, int64_t n)
{
  switch (dtype) {
  case Z3T_F32: memcpy(dst, src, (size_t)n * 4); break;
  case Z3T_BF16: LOOP(uint16_t, z3i_bf16_to_f32(s[i])); break;
  case Z3T_F16: load_half(dst, src, n); break;
  case Z3T_I32: LOOP(int32_t, (float)s[i]); break;
  case Z3T_I64: LOOP(int64_t, (float)s[i]); break;
  default: LOOP(uint8_t, (float)s[i]);
  }
}

void Z3I_SYM(load_i64)(int64_t *restrict dst, const void *restrict src, int dtype, int64_t n)
{
  switch (dtype) {
  case Z3T_I32: LOOP(int32_t, s[i]); break;
  case Z3T_I64: memcpy(dst, src, (size_t)n * 8); break;
  default: LOOP(uint8_t, s[i]);
  }
}
#undef LOOP

#define LOOP(T, expr)                                                                               \
  do {                                                                                              \
    T *restrict d = (T *)dst;                                                                       \
    for (int64_t i = 0; i < n; i++) d[i] = (expr);                                                  \
  } while (0)

void Z3I_SYM(store_f32)(void *restrict dst, int dtype, const float *restrict src, int64_t n)
{
  switch (dtype) {
  case Z3T_F32: memcpy(dst, src, (size_t)n * 4); break;
  case Z3T_BF16: LOOP(uint16_t, z3i_f32_to_bf16(src[i])); break;
  case Z3T_F16: store_half(dst, src, n); break;
  case Z3T_I32: LOOP(int32_t, f32_to_i32(src[i])); break;
  case Z3T_I64: LOOP(int64_t, f32_to_i64(src[i])); break;
  default: LOOP(uint8_t, f32_to_u8(src[i]));
  }
}

void Z3I_SYM(store_i64)(void *restrict dst, int dtype, const int64_t *restrict src, int64_t n)
{
  switch (dtype) {
  case Z3T_I32: LOOP(int32_t, (int32_t)(uint32_t)(uint64_t)src[i]); break;
  case Z3T_I64: memcpy(dst, src, (size_t)n * 8); break;
  default: LOOP(uint8_t, (uint8_t)src[i]);
  }
}

void Z3I_SYM(add_f32)(void *restrict dst, int dtype, const float *restrict src, int64_t n)
{
  if (dtype == Z3T_F32) {
    LOOP(float, d[i] + src[i]);
    return;
  }
  enum { SMALL = 256 };
  float buf[SMALL];
  for (int64_t lo = 0; lo < n; lo += SMALL) {
    int64_t m = Z3I_MIN(n - lo, (int64_t)SMALL);
    void *d = (char *)dst + lo * z3i_dtype_bytes(dtype);
    Z3I_SYM(load_f32)(buf, d, dtype, m);
    for (int64_t i = 0; i < m; i++) buf[i] += src[lo + i];
    Z3I_SYM(store_f32)(d, dtype, buf, m);
  }
}
