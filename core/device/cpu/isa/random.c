/* random.c -- random tensors: element i depends on (key, first + i) alone.
 * The same bits at every level and thread count: only IEEE sums, products, quotients and roots, none of them fused.
 * Normals: Box & Muller 1958 on pairs of words. Cut normals: the inverse of the distribution (central part of the
 * inverse error function, a minimax fit in w = -ln(1 - z^2), error below 4e-8). */
#include <math.h>

#include "device/cpu/isa/elem.h"
#include "device/cpu/isa/isa_kernels.h"
#include "device/cpu/isa/philox.h"

/* ---- maths without fused operations ---------------------------------------------------------------------- */
/* ln u for 2^-126 <= u <= 1; as z3i_logf, 1 ulp. */
static inline float ln_plain(float u)
{
  uint32_t i = z3i_bits(u) - 0x3F3504F3u;
  float e = (float)((int32_t)i >> 23), f = z3i_float((i & 0x7FFFFFu) + 0x3F3504F3u) - 1.0f, z = f * f;
  float p = 0.0691561252f * f - 0.117893703f;
  p = p * f + 0.118726194f;
  p = p * f - 0.12384402f;
  p = p * f + 0.142187163f;
  p = p * f - 0.166692495f;
  p = p * f + 0.200022236f;
  p = p * f - 0.249999866f;
  p = p * f + 0.333333105f;
  float r = f * z * p - e * 2.12194440e-4f;
  return e * 0.693359375f + (f + (r - 0.5f * z));
}

/* sin and cos of 2 pi v, 0 <= v < 1 a multiple of 2^-24: quarters are taken off exactly. */
static inline void turn(float v, float *sin_out, float *cos_out)
{
  int32_t quarter = (int32_t)(4.0f * v + 0.5f);
  float r = (4.0f * v - (float)quarter) * 1.57079633f, z = r * r;
  float s = ((2.83739519e-06f * z - 0.000198535054f) * z + 0.00833338033f) * z - 0.166666672f;
  s = s * z * r + r;
  float c = (2.44306611e-05f * z - 0.00138873013f) * z + 0.0416666456f;
  c = c * z * z + (1.0f - 0.5f * z);
  float a = quarter & 1 ? c : s, b = quarter & 1 ? s : c;
  *sin_out = z3i_float(z3i_bits(a) ^ (((uint32_t)quarter & 2u) << 30));
  *cos_out = z3i_float(z3i_bits(b) ^ ((((uint32_t)quarter + 1u) & 2u) << 30));
}

static inline float open_unit(uint32_t w) { return ((float)(int32_t)(w >> 1) + 0.5f) * 4.656612873e-10f; }   /* 2^-31 */
static inline float unit(uint32_t w) { return (float)(int32_t)(w >> 8) * 5.960464478e-08f; }                /* 2^-24 */

/* ---- one block of counters to four columns of floats, in place ------------------------------------------- */
typedef struct random_task {
  z3i_flat dst;
  int kind;
  uint64_t key, first;
  double a, b;
  float top;                                    /* uniform: the largest value below b that dst's dtype holds */
} random_task;

static void normal_pairs(uint32_t *restrict w0, uint32_t *restrict w1, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    float r = sqrtf(-2.0f * ln_plain(open_unit(w0[i]))), s, c;
    turn(unit(w1[i]), &s, &c);
    w0[i] = z3i_bits(r * c);
    w1[i] = z3i_bits(r * s);
  }
}

static inline float cut_normal(uint32_t w)
{
  float z = ((float)(int32_t)w + 0.5f) * (4.656612873e-10f * 0.954499736f);   /* erf(sqrt 2) = P(|N| < 2) */
  float v = -ln_plain((1.0f - z) * (1.0f + z));
  float p = 2.95093344e-07f * v - 7.006945e-06f;
  p = p * v + 7.24608835e-05f;
  p = p * v - 0.000166102938f;
  p = p * v - 0.00230582757f;
  p = p * v + 0.0115385652f;
  p = p * v + 0.232015148f;
  p = p * v + 0.886226892f;
  float x = 1.41421356f * z * p;
  x = x > 2.0f ? 2.0f : x;
  return x < -2.0f ? -2.0f : x;
}

static void cut_normals(uint32_t *restrict w, int64_t n)
{
  for (int64_t i = 0; i < n; i++) w[i] = z3i_bits(cut_normal(w[i]));
}

static void uniforms(uint32_t *restrict w, int64_t n)
{
  for (int64_t i = 0; i < n; i++) w[i] = z3i_bits(unit(w[i]));
}

/* a + b x; uniform: kept below the upper end. */
static void place(float *restrict y, const random_task *t, int64_t n)
{
  const float a = (float)t->a, b = (float)(t->kind == Z3R_UNIFORM ? t->b - t->a : t->b), top = t->top;
  if (t->kind == Z3R_UNIFORM)
    for (int64_t i = 0; i < n; i++) y[i] = a + b * y[i] > top ? top : a + b * y[i];
  else
    for (int64_t i = 0; i < n; i++) y[i] = a + b * y[i];
}

/* Integers: floor of a + (b - a) u, u of 32 bits, below b. */
static void integer_uniform(const random_task *t, int64_t lo, int64_t n, const uint32_t *w)
{
  int64_t y[Z3I_BLOCK], top = z3i_whole(ceil(t->b)) - 1;
  for (int64_t i = 0; i < n; i++) {
    int64_t v = z3i_whole(floor(t->a + (t->b - t->a) * (((double)w[i] + 0.5) * 0x1p-32)));
    y[i] = v > top ? top : v;
  }
  z3i_put_i64(&t->dst, lo, n, y);
}

static void random_block(void *ctx, int64_t lo, int64_t hi)
{
  const random_task *t = ctx;
  uint64_t e = t->first + (uint64_t)lo;
  int64_t n = hi - lo, skip = (int64_t)(e & 3), counters = (skip + n + 3) / 4;
  z3i_philox_words words;
  union { uint32_t w[4 * Z3I_COUNTERS]; float f[4 * Z3I_COUNTERS]; } y;
  z3i_philox_block(&words, t->key, e >> 2, counters);
  if (t->kind == Z3R_UNIFORM && !z3i_dtype_float(t->dst.dtype)) {
    z3i_philox_interleave(y.w, &words, counters);
    integer_uniform(t, lo, n, y.w + skip);
    return;
  }
  if (t->kind == Z3R_NORMAL) {
    normal_pairs(words.w[0], words.w[1], counters);
    normal_pairs(words.w[2], words.w[3], counters);
  }
  for (int i = 0; i < 4 && t->kind == Z3R_TRUNC_NORMAL; i++) cut_normals(words.w[i], counters);
  for (int i = 0; i < 4 && t->kind == Z3R_UNIFORM; i++) uniforms(words.w[i], counters);
  z3i_philox_interleave(y.w, &words, counters);
  place(y.f + skip, t, n);
  z3i_put_f32(&t->dst, lo, n, y.f + skip, false);
}

/* The largest value below b of this dtype, but not below a: rounding must not reach b. */
static float below(double a, double b, int dtype)
{
  float top = (float)b, shown;
  uint64_t element;
  for (int i = 0; i < 1 << 17; i++) {           /* one step of the dtype is at most 2^16 steps of f32 */
    z3i_store_f32(&element, dtype, &top, 1);
    z3i_load_f32(&shown, &element, dtype, 1);
    if ((double)shown < b) return Z3I_MAX(shown, (float)a);
    top = nextafterf(top, -__builtin_inff());
  }
  return (float)a;
}

int Z3I_SYM(random)(const z3i_view *dst, int kind, double a, double b, uint64_t key, int64_t first)
{
  Z3I_REQUIRE(kind >= Z3R_NORMAL && kind <= Z3R_TRUNC_NORMAL, "random: kind is %d, wants 0 to 2", kind);
  Z3I_REQUIRE(kind != Z3R_UNIFORM || a <= b, "random: uniform from %g to %g: the first must not be the larger", a, b);
  random_task t = { .dst = z3i_flatten(dst), .kind = kind, .key = key, .first = (uint64_t)first, .a = a, .b = b };
  if (kind == Z3R_UNIFORM && z3i_dtype_float(dst->dtype)) t.top = below(a, b, dst->dtype);
  z3i_for_blocks(t.dst.n, Z3I_BLOCK, t.dst.n, random_block, &t);
  return Z3E_OK;
}
