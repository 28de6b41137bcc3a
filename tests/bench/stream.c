/* stream.c -- what the memory of this machine gives to plain loops: the yardstick of kernels that are bound by it.
 * Built as a shared library, loaded beside ours, so that both run in turn in one process on the same threads and data.
 * Bytes are counted as read + written; the read that a store to a cold line costs is not. */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum { LANES = 16, CHAINS = 8, ROUND = 2000, CHUNK = 4096, PARTS = 64 };

typedef struct bench_adamw_args {
  float lr, beta1, beta2, eps, weight_decay, bias1, bias2;
} bench_adamw_args;

/* b = a: 8 bytes an element. */
void bench_copy(float *b, const float *a, int64_t n)
{
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; i++) b[i] = a[i];
}

/* c = a + s b: 12 bytes an element, STREAM's triad. */
void bench_triad(float *c, const float *a, const float *b, float s, int64_t n)
{
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; i++) c[i] = a[i] + s * b[i];
}

/* 4 bytes an element; n is a multiple of CHUNK. */
float bench_read(const float *a, int64_t n)
{
  float sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
  for (int64_t chunk = 0; chunk < n / CHUNK; chunk++) {
    const float *x = a + chunk * CHUNK;
    float part[PARTS] = { 0 };
    for (int i = 0; i < CHUNK; i += PARTS)
      for (int k = 0; k < PARTS; k++) part[k] += x[i + k];
    for (int k = 0; k < PARTS; k++) sum += part[k];
  }
  return sum;
}

static inline float adamw(float *p, float *m, float *v, float g, const bench_adamw_args *a)
{
  float x = *m = a->beta1 * *m + (1 - a->beta1) * g, y = *v = a->beta2 * *v + (1 - a->beta2) * g * g;
  return *p = *p * (1 - a->lr * a->weight_decay) - a->lr * (x * a->bias1) / (sqrtf(y * a->bias2) + a->eps);
}

static inline uint16_t to_bf16(float f)
{
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* Reads p, g, m, v and writes p, m, v: 28 bytes an element; with the 16-bit copy 30. */
void bench_adamw(float *restrict p, float *restrict m, float *restrict v, const float *restrict g,
                 uint16_t *restrict w16, int64_t n, const bench_adamw_args *args)
{
  const bench_adamw_args a = *args;
  if (w16 == NULL) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) adamw(p + i, m + i, v + i, g[i], &a);
    return;
  }
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < n; i++) w16[i] = to_bf16(adamw(p + i, m + i, v + i, g[i], &a));
}

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef float lanes __attribute__((vector_size(64)));

/* Is the machine quiet? GFLOP/s of the slowest thread on multiply-adds that stay in registers, for a tenth of a second:
 * a busy sibling or neighbour shows as a drop. */
static double multiply_adds(float *sink)
{
  float x[LANES], y[LANES], a[CHAINS][LANES] = { { 0 } };
  for (int k = 0; k < LANES; k++) {
    x[k] = 0.999f;
    y[k] = 1e-3f;
  }
  double start = now(), t = start;
  int64_t rounds = 0;
  for (; t - start < 0.1; t = now(), rounds++)
    for (int i = 0; i < ROUND; i++)
      for (int j = 0; j < CHAINS; j++)
        for (int k = 0; k < LANES; k++) a[j][k] = a[j][k] * x[k] + y[k];
  for (int j = 0; j < CHAINS; j++)
    for (int k = 0; k < LANES; k++) *sink += a[j][k];
  return (double)rounds * ROUND * CHAINS * LANES * 2 / (t - start) / 1e9;
}

volatile float bench_kept;                        /* so that no compiler leaves the sums out */

double bench_probe(void)
{
  double least = INFINITY;
#pragma omp parallel reduction(min : least)
  {
    float sink = 0;
    least = multiply_adds(&sink);
    bench_kept = sink;
  }
  return least;
}
