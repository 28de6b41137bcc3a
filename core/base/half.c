/* half.c -- f16 to f32 and back, exact bit arithmetic. Rounds to nearest even; NaN stays NaN, made quiet; overflow
 * gives infinity; subnormals are kept. Source: IEEE 754-2008, binary16. */
#include "base/base.h"

float z3i_f16_to_f32(uint16_t h)
{
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1Fu, fraction = h & 0x3FFu, u;
  if (exponent == 0x1F) u = 0x7F800000u | fraction << 13 | (fraction != 0 ? 0x400000u : 0);
  else if (exponent != 0) u = (exponent + 112) << 23 | fraction << 13;
  else if (fraction == 0) u = 0;
  else {
    int shift = __builtin_clz(fraction) - 21;     /* brings the leading bit to the hidden place */
    u = (uint32_t)(113 - shift) << 23 | ((fraction << shift & 0x3FFu) << 13);
  }
  u |= sign;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

uint16_t z3i_f32_to_f16(float f)
{
  uint32_t u;
  memcpy(&u, &f, 4);
  uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu, h;
  if (a > 0x7F800000u) h = 0x7E00u | ((a >> 13) & 0x3FFu);
  else if (a >= 0x477FF000u) h = 0x7C00u;         /* 65520 up */
  else if (a >= 0x38800000u) h = (a - 0x38000000u + 0xFFFu + ((a >> 13) & 1u)) >> 13;
  else if (a < 0x33000000u) h = 0;                /* below half of the smallest subnormal */
  else {
    uint32_t shift = 126 - (a >> 23), full = (a & 0x7FFFFFu) | 0x800000u;
    h = full >> shift;
    uint32_t rest = full & (((uint32_t)1 << shift) - 1), half = (uint32_t)1 << (shift - 1);
    h += rest > half || (rest == half && (h & 1));
  }
  return (uint16_t)(sign | h);
}
