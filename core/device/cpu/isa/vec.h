/* vec.h -- what every kernel file builds on: maths that compilers vectorise, sums, blocks in parallel, conversions.
 * Branch-free functions of one float; a loop that calls them becomes vector code at each level. Vector body and scalar
 * tail use the same operations (z3i_fmaf), so an element's bits don't depend on its place in the block.
 * ulp: largest error found over a sweep of all floats against double precision; checked by tests/c/test_device_vec.c.
 * Polynomials: minimax fits made for this file. Reductions: Cody & Waite 1980. */
#ifndef Z3I_VEC_H
#define Z3I_VEC_H
#include "device/cpu/isa/isa.h"

enum {
  Z3I_BLOCK = 2048,                             /* elements a kernel handles at once: 8 KiB of floats, stays in L1 */
  Z3I_PAR_MIN = 32768                           /* fewer elements than this run on the calling thread alone */
};

/* ---- bits ----------------------------------------------------------------------------------------- */
static inline float z3i_fmaf(float a, float b, float c)
{
#ifdef __FMA__
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
static inline uint32_t z3i_bits(float f)
{
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}
static inline float z3i_float(uint32_t u)
{
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static inline float z3i_absf(float x) { return z3i_float(z3i_bits(x) & 0x7FFFFFFFu); }
static inline float z3i_signf(float magnitude, float sign)
{
  return z3i_float((z3i_bits(magnitude) & 0x7FFFFFFFu) | (z3i_bits(sign) & 0x80000000u));
}

/* ---- exponentials ----------------------------------------------------------------------------------- */
#define Z3I_ROUND 12582912.0f                   /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */

/* x = k ln 2 + r with |r| <= ln 2 / 2; returns r + r^2/2 + ... = e^r - 1. Wants |x| < 2^21. */
static inline float z3i_exp_reduce(float x, int32_t *k)
{
  float t = z3i_fmaf(x, 1.44269504f, Z3I_ROUND), kf = t - Z3I_ROUND;
  *k = (int32_t)(z3i_bits(t) - z3i_bits(Z3I_ROUND));
  float r = z3i_fmaf(kf, -0.693359375f, x);
  r = z3i_fmaf(kf, 2.12194440e-4f, r);
  float q = 0.000199451082f;
  q = z3i_fmaf(q, r, 0.00139326649f);
  q = z3i_fmaf(q, r, 0.00833320711f);
  q = z3i_fmaf(q, r, 0.0416664891f);
  q = z3i_fmaf(q, r, 0.166666672f);
  q = z3i_fmaf(q, r, 0.5f);
  return z3i_fmaf(q * r, r, r);
}
static inline float z3i_pow2i(int32_t k) { return z3i_float((uint32_t)(k + 127) << 23); }   /* -127 <= k <= 128 */

/* e^x, all x: 1.0 ulp. The power of two is applied in halves, so that overflow and subnormals come out right. */
static inline float z3i_expf(float x)
{
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;                /* a NaN fails both comparisons and stays */
  int32_t k;
  float p = 1.0f + z3i_exp_reduce(x, &k);
  int32_t half = k >> 1;
  return p * z3i_pow2i(half) * z3i_pow2i(k - half);
}
/* 1 / (1 + e^-x): 2.4 ulp. */
static inline float z3i_sigmoidf(float x) { return 1.0f / (1.0f + z3i_expf(-x)); }

/* tanh x = u / (u + 2) with u = e^(2x) - 1, kept accurate near 0: 2.5 ulp. */
static inline float z3i_tanhf(float x)
{
  float a = z3i_absf(x);
  a = a > 10.0f ? 10.0f : a;
  int32_t k;
  float q = z3i_exp_reduce(2.0f * a, &k), s = z3i_pow2i(k);
  float u = z3i_fmaf(s, q, s - 1.0f);
  return z3i_signf(u / (u + 2.0f), x);
}

/* ---- logarithm -------------------------------------------------------------------------------------- */
/* ln x: 0.8 ulp; -inf at 0, NaN below. x = 2^e (1 + f) with 1 + f in [sqrt 1/2, sqrt 2). */
static inline float z3i_logf(float x)
{
  bool tiny = x < 1.17549435e-38f;
  float y = tiny ? x * 8388608.0f : x;
  uint32_t i = z3i_bits(y) - 0x3F3504F3u;
  float e = (float)(((int32_t)i >> 23) - (tiny ? 23 : 0));
  float f = z3i_float((i & 0x7FFFFFu) + 0x3F3504F3u) - 1.0f, z = f * f;
  float p = 0.0691561252f;
  p = z3i_fmaf(p, f, -0.117893703f);
  p = z3i_fmaf(p, f, 0.118726194f);
  p = z3i_fmaf(p, f, -0.12384402f);
  p = z3i_fmaf(p, f, 0.142187163f);
  p = z3i_fmaf(p, f, -0.166692495f);
  p = z3i_fmaf(p, f, 0.200022236f);
  p = z3i_fmaf(p, f, -0.249999866f);
  p = z3i_fmaf(p, f, 0.333333105f);
  float r = z3i_fmaf(e, -2.12194440e-4f, f * z * p);
  r = z3i_fmaf(z, -0.5f, r) + f;
  r = z3i_fmaf(e, 0.693359375f, r);
  r = x == 0.0f ? -__builtin_inff() : r;
  r = x < 0.0f ? __builtin_nanf("") : r;
  return x - x != 0.0f && !(x < 0.0f) ? x : r;  /* inf and NaN */
}

/* ---- error function --------------------------------------------------------------------------------- */
/* erf x: 1.1 ulp. */
static inline float z3i_erff(float x)
{
  float t = z3i_absf(x), s = x * x;
  float a = 7.97474859e-05f;                    /* |x| <= 0.9375: x + x R(x^2) */
  a = z3i_fmaf(a, s, -0.000804469222f);
  a = z3i_fmaf(a, s, 0.00519199297f);
  a = z3i_fmaf(a, s, -0.0268555954f);
  a = z3i_fmaf(a, s, 0.112836242f);
  a = z3i_fmaf(a, s, -0.376126289f);
  a = z3i_fmaf(a, s, 0.128379166f);
  a = z3i_fmaf(a, x, x);
  float c = t > 4.0f ? 4.0f : t;                /* beyond: 1 - exp(-(c + c G(c))); erf 4 rounds to 1 */
  float g = 4.6805776e-06f;
  g = z3i_fmaf(g, c, -4.24550053e-05f);
  g = z3i_fmaf(g, c, -6.54475953e-05f);
  g = z3i_fmaf(g, c, 0.00297378283f);
  g = z3i_fmaf(g, c, -0.0227444172f);
  g = z3i_fmaf(g, c, 0.105329044f);
  g = z3i_fmaf(g, c, 0.635591269f);
  g = z3i_fmaf(g, c, 0.128559053f);
  float b = z3i_signf(1.0f - z3i_expf(-z3i_fmaf(g, c, c)), x);
  b = x != x ? x : b;
  return t > 0.9375f ? b : a;
}

/* ---- sine and cosine -------------------------------------------------------------------------------- */
/* Both at once, |x| <= 2^20: 1.6 ulp; angle reduced by multiples of pi/2 in double. Beyond that use libm. */
#define Z3I_SINCOS_MAX 1048576.0f
static inline void z3i_sincosf(float x, float *sin_out, float *cos_out)
{
  double t = (double)x * 0.63661977236758134 + 6755399441055744.0;   /* 1.5 * 2^52 rounds to an integer */
  uint64_t bits;
  memcpy(&bits, &t, 8);
  double k = t - 6755399441055744.0;
  float r = (float)(((double)x - k * 1.57079632673412561417) - k * 6.07710050650619224932e-11);
  uint32_t quarter = (uint32_t)bits;
  float z = r * r;
  float s = 2.83739519e-06f;
  s = z3i_fmaf(s, z, -0.000198535054f);
  s = z3i_fmaf(s, z, 0.00833338033f);
  s = z3i_fmaf(s, z, -0.166666672f);
  s = z3i_fmaf(s * z, r, r);
  float c = 2.44306611e-05f;
  c = z3i_fmaf(c, z, -0.00138873013f);
  c = z3i_fmaf(c, z, 0.0416666456f);
  c = z3i_fmaf(c * z, z, z3i_fmaf(z, -0.5f, 1.0f));
  float a = quarter & 1u ? c : s, b = quarter & 1u ? s : c;
  *sin_out = z3i_float(z3i_bits(a) ^ ((quarter & 2u) << 30));
  *cos_out = z3i_float(z3i_bits(b) ^ (((quarter + 1u) & 2u) << 30));
}
static inline float z3i_sinf(float x)
{
  float s, c;
  z3i_sincosf(x, &s, &c);
  return s;
}
static inline float z3i_cosf(float x)
{
  float s, c;
  z3i_sincosf(x, &s, &c);
  return c;
}

/* ---- sums in fixed order ----------------------------------------------------------------------------- */
/* 64 lanes, then a tree: the same order at every level and thread count. Loops over a local array of fixed length
 * become vector code with both compilers at every level, and 64 lanes hide the latency of an addition. Good for blocks
 * up to some thousands; add those up in double. */
enum { Z3I_LANES = 64 };
/* Runs the body for at = 0 .. n-1 with lane = at % 64. */
#define Z3I_EACH_LANE(n, ...)                                                                       \
  do {                                                                                              \
    int64_t base_ = 0;                                                                              \
    for (; base_ + Z3I_LANES <= (n); base_ += Z3I_LANES)                                            \
      for (int lane = 0; lane < Z3I_LANES; lane++) {                                                \
        const int64_t at = base_ + lane;                                                            \
        __VA_ARGS__                                                                                 \
      }                                                                                             \
    for (int lane = 0; base_ + lane < (n); lane++) {                                                \
      const int64_t at = base_ + lane;                                                              \
      __VA_ARGS__                                                                                   \
    }                                                                                               \
  } while (0)

static inline float z3i_lanes_sum(float a[Z3I_LANES])
{
  for (int half = Z3I_LANES / 2; half > 0; half /= 2)
    for (int j = 0; j < half; j++) a[j] += a[j + half];
  return a[0];
}
static inline float z3i_vsum(const float *x, int64_t n)
{
  float a[Z3I_LANES] = { 0 };
  Z3I_EACH_LANE(n, a[lane] += x[at];);
  return z3i_lanes_sum(a);
}
static inline float z3i_vdot(const float *x, const float *y, int64_t n)
{
  float a[Z3I_LANES] = { 0 };
  Z3I_EACH_LANE(n, a[lane] += x[at] * y[at];);
  return z3i_lanes_sum(a);
}
/* Largest element; NaNs are passed over, -inf when there is nothing else. */
static inline float z3i_vmax(const float *x, int64_t n)
{
  float a[Z3I_LANES];
  for (int j = 0; j < Z3I_LANES; j++) a[j] = -__builtin_inff();
  Z3I_EACH_LANE(n, a[lane] = x[at] > a[lane] ? x[at] : a[lane];);
  for (int half = Z3I_LANES / 2; half > 0; half /= 2)
    for (int j = 0; j < half; j++) a[j] = a[j + half] > a[j] ? a[j + half] : a[j];
  return a[0];
}

/* ---- blocks in parallel ------------------------------------------------------------------------------ */
/* Calls f(ctx, lo, hi) over [0, n) in blocks of `block`, on several threads when `work` (elements touched) is large.
 * What f computes for a block must not depend on the thread. Never nested. */
static inline void z3i_for_blocks(int64_t n, int64_t block, int64_t work, void (*f)(void *ctx, int64_t lo, int64_t hi),
                                  void *ctx)
{
  int64_t count = (n + block - 1) / block;
  if (work < Z3I_PAR_MIN || count < 2) {
    for (int64_t b = 0; b < count; b++) f(ctx, b * block, Z3I_MIN(n, (b + 1) * block));
    return;
  }
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < count; b++) f(ctx, b * block, Z3I_MIN(n, (b + 1) * block));
}

/* ---- blocks of any dtype as floats: elem_convert.c ---------------------------------------------------- */
#define z3i_load_f32 Z3I_SYM(load_f32)
#define z3i_store_f32 Z3I_SYM(store_f32)
#define z3i_add_f32 Z3I_SYM(add_f32)
#define z3i_load_i64 Z3I_SYM(load_i64)
#define z3i_store_i64 Z3I_SYM(store_i64)
/* n contiguous elements to floats (integers are converted). */
void z3i_load_f32(float *dst, const void *src, int dtype, int64_t n);
/* Floats to n contiguous elements: rounded to nearest even; integers: toward zero, NaN gives 0, out of range saturates
 * (u8 wraps, as PyTorch does). */
void z3i_store_f32(void *dst, int dtype, const float *src, int64_t n);
/* dst += src, added in f32 and rounded once: how a gradient is accumulated. */
void z3i_add_f32(void *dst, int dtype, const float *src, int64_t n);

/* Integer dtypes; storing drops high bits. */
void z3i_load_i64(int64_t *dst, const void *src, int dtype, int64_t n);
void z3i_store_i64(void *dst, int dtype, const int64_t *src, int64_t n);

/* The floats of a block: src itself where it holds floats already, else converted into buf. */
static inline const float *z3i_block_f32(float *buf, const void *src, int dtype, int64_t n)
{
  if (dtype == Z3T_F32) return (const float *)src;
  z3i_load_f32(buf, src, dtype, n);
  return buf;
}
/* A gradient block: written, or added when `add`. */
static inline void z3i_grad_f32(void *dst, int dtype, const float *src, int64_t n, bool add)
{
  if (add) z3i_add_f32(dst, dtype, src, n);
  else z3i_store_f32(dst, dtype, src, n);
}
#endif
