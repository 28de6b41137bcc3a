/* gemm.c -- bf16 products of a GPT-2 124M training step: ours, and oneDNN's on the same data, in turn in one process.
 *   build/bench/gemm [rows=1024] [repeats=15] [threads: 0 = 1 and 2 (default)] [word: only cases whose names have it]
 * One JSON line per case. Ways: own; plain (oneDNN, operands as they lie); blocked (oneDNN, B brought into its layout
 * beforehand, which isn't timed). Times are the process's processor time, divided by the threads (which sleep when they
 * wait, so that waiting doesn't count): other programs on the machine disturb that least. gflops: median; best: the
 * least time; wall: the best by the clock on the wall. ratio: best of ours over the better best of oneDNN's two.
 * Every way's result is compared with sums in double at some places first: err, relative to the terms' sizes.
 * Legend: fwd y = x W, W (K,N); fwd_t W (N,K) as nn.Linear has it; dx = dy W^T; dw = x^T dy into f32. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "device/backends.h"
#include "device/cpu/gemm_amx.h"
#include "device/cpu/gemm_onednn.h"
#include "device/pool.h"

enum { OWN, PLAIN, BLOCKED, WAYS, REPEATS_MAX = 200 };
static z3i_device *dev;
static int failures;

static int order(const void *a, const void *b)
{
  double d = *(const double *)a - *(const double *)b;
  return (d > 0) - (d < 0);
}

static double now(clockid_t clock)
{
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(int64_t bytes)
{
  void *p;
  if (z3i_pool_alloc(dev, (size_t)bytes, Z3M_BUFFER, &p) == Z3E_OK) return p;
  fprintf(stderr, "%s\n", z3_last_error());
  exit(1);
}

static uint16_t *numbers(int64_t n, uint64_t seed)
{
  uint16_t *p = memory(n * 2);
  for (int64_t i = 0; i < n; i++)
    p[i] = z3i_f32_to_bf16((float)((int64_t)(z3i_mix(seed, (uint64_t)i) >> 40) - (1 << 23)) / (1 << 23));
  return p;
}

/* oneDNN's plan, with B packed where it wants that. */
typedef struct library {
  z3i_mm_plan room, *plan;
  void *packed, *scratch;
} library;

static void check(int rc)
{
  if (rc == Z3E_OK) return;
  fprintf(stderr, "%s\n", z3_last_error());
  exit(1);
}

static library library_new(const z3i_gemm_args *g, bool pack)
{
  library l = { 0 };
  z3i_mm_key k;
  memset(&k, 0, sizeof k);
  k.m = g->m; k.n = g->n; k.k = g->k; k.batch = 1;
  k.lda = g->lda; k.ldb = g->ldb; k.ldc = g->ldc;
  k.threads = omp_get_max_threads();
  k.in_dtype = (uint8_t)g->in_dtype;
  k.out_dtype = (uint8_t)g->out_dtype;
  k.a_t = g->a_t;
  k.b_t = g->b_t;
  k.pack_b = pack;
  check(z3i_mm_plan_get(&k, &l.room, &l.plan));
  if (l.plan->lacking) {
    fprintf(stderr, "gemm: oneDNN has no code for bf16 on this machine\n");
    exit(1);
  }
  l.packed = memory((int64_t)l.plan->packed_bytes + 64);
  l.scratch = memory((int64_t)l.plan->scratch_bytes + 64);
  if (l.plan->packed_bytes > 0) check(z3i_mm_pack(l.plan, g->b, l.packed, l.scratch));
  return l;
}

static void library_free(library *l)
{
  z3i_mm_plan_put(l->plan);
  z3i_pool_free(dev, l->packed);
  z3i_pool_free(dev, l->scratch);
}

static void product(const z3i_gemm_args *g, int way, const library *l)
{
  if (way == OWN) check(z3i_amx_gemm(g));
  else
    check(z3i_mm_run(l[way].plan, g->a, l[way].plan->packed_bytes > 0 ? l[way].packed : g->b, NULL, g->c,
                     l[way].scratch));
}

static double error_of(const z3i_gemm_args *g)
{
  const uint16_t *a = g->a, *b = g->b;
  double worst = 0;
  for (int64_t q = 0; q < 64; q++) {
    int64_t i = (q * 7919 + 13) % g->m, j = (q * 104729 + 7) % g->n;
    double want = 0, size = 0;
    for (int64_t k = 0; k < g->k; k++) {
      double x = (double)z3i_bf16_to_f32(a[g->a_t ? k * g->lda + i : i * g->lda + k]);
      double y = (double)z3i_bf16_to_f32(b[g->b_t ? j * g->ldb + k : k * g->ldb + j]);
      want += x * y;
      size += fabs(x * y);
    }
    double got = g->out_dtype == Z3T_F32 ? (double)((float *)g->c)[i * g->ldc + j]
                                         : (double)z3i_bf16_to_f32(((uint16_t *)g->c)[i * g->ldc + j]);
    double spared = g->out_dtype == Z3T_F32 ? 0 : fabs(want) / 256;     /* what rounding to bf16 may cost */
    worst = fmax(worst, (fabs(got - want) - spared) / size);
  }
  return worst;
}

typedef struct speeds {
  double gflops, best, wall;
} speeds;

/* Every way in turn, again and again. */
static void race(const z3i_gemm_args *g, const library *l, int repeats, speeds *out)
{
  static double processor[WAYS][REPEATS_MAX], wall[WAYS][REPEATS_MAX];
  double work = 2e-9 * (double)g->m * (double)g->n * (double)g->k;
  for (int r = 0; r < repeats; r++)
    for (int way = 0; way < WAYS; way++) {
      double p = now(CLOCK_PROCESS_CPUTIME_ID), w = now(CLOCK_MONOTONIC);
      product(g, way, l);
      processor[way][r] = (now(CLOCK_PROCESS_CPUTIME_ID) - p) / omp_get_max_threads();
      wall[way][r] = now(CLOCK_MONOTONIC) - w;
    }
  for (int way = 0; way < WAYS; way++) {
    qsort(processor[way], (size_t)repeats, sizeof(double), order);
    qsort(wall[way], (size_t)repeats, sizeof(double), order);
    out[way] = (speeds){ work / processor[way][repeats / 2], work / processor[way][0], work / wall[way][0] };
  }
}

static void measure(const char *layer, const char *op, z3i_gemm_args g, int repeats)
{
  static const char *const names[WAYS] = { "own", "plain", "blocked" };
  speeds s[WAYS];
  double err = 0;
  uint16_t *a = numbers(g.m * g.k, 1), *b = numbers(g.k * g.n, 2);
  g.dev = dev;
  g.batch = 1;
  g.a = a;
  g.b = b;
  g.c = memory(g.m * g.n * 4);
  g.in_dtype = Z3T_BF16;
  g.lda = g.a_t ? g.m : g.k;
  g.ldb = g.b_t ? g.k : g.n;
  g.ldc = g.n;
  library l[WAYS] = { [PLAIN] = library_new(&g, false), [BLOCKED] = library_new(&g, true) };
  for (int way = 0; way < WAYS; way++) {
    memset(g.c, 0xFF, (size_t)(g.m * g.n) * 4);
    product(&g, way, l);
    err = fmax(err, error_of(&g));
  }
  race(&g, l, repeats, s);
  bool right = err < 1e-6;
  failures += !right;
  printf("{\"bench\":\"gemm\",\"layer\":\"%s\",\"op\":\"%s\",\"m\":%" PRId64 ",\"n\":%" PRId64 ",\"k\":%" PRId64
         ",\"threads\":%d", layer, op, g.m, g.n, g.k, omp_get_max_threads());
  for (int way = 0; way < WAYS; way++)
    printf(",\"%s\":{\"gflops\":%.0f,\"best\":%.0f,\"wall\":%.0f}", names[way], s[way].gflops, s[way].best,
           s[way].wall);
  printf(",\"ratio\":%.2f,\"err\":%.1e,\"right\":%s}\n", s[OWN].best / fmax(s[PLAIN].best, s[BLOCKED].best), err,
         right ? "true" : "false");
  fflush(stdout);
  library_free(&l[PLAIN]);
  library_free(&l[BLOCKED]);
  z3i_pool_free(dev, a);
  z3i_pool_free(dev, b);
  z3i_pool_free(dev, g.c);
}

static int refuse(const char *text)
{
  fprintf(stderr, "gemm: %s\n", text);
  return 2;
}

int main(int argc, char **argv)
{
  static const struct { const char *name; int64_t k, n; } layers[] = {
    { "qkv", 768, 2304 }, { "proj", 768, 768 }, { "fc", 768, 3072 }, { "fc_proj", 3072, 768 }, { "head", 768, 8192 },
  };
  int64_t m = argc > 1 ? atoll(argv[1]) : 1024;
  int repeats = argc > 2 ? atoi(argv[2]) : 15, only = argc > 3 ? atoi(argv[3]) : 0;
  const char *word = argc > 4 ? argv[4] : "";
  if (m < 1 || repeats < 1 || repeats > REPEATS_MAX) return refuse("wants rows >= 1, repeats 1 to 200");
  /* OpenMP reads this before main. */
  if (getenv("OMP_WAIT_POLICY") == NULL && setenv("OMP_WAIT_POLICY", "passive", 1) == 0) execv("/proc/self/exe", argv);
  check(z3i_device_find(Z3D_CPU, &dev));
  z3i_gemm_args probe = { .in_dtype = Z3T_BF16 };
  z3i_amx_mode(Z3I_AMX_ALWAYS);
  if (!z3i_amx_takes(&probe)) return refuse("no AMX here, or Z3_CPU caps it: nothing to compare");
  for (int threads = only > 0 ? only : 1; threads <= (only > 0 ? only : 2); threads++)
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
      int64_t k = layers[i].k, n = layers[i].n;
      bool head = i == 4;
      int out = head ? Z3T_F32 : Z3T_BF16;
      const struct { const char *op; z3i_gemm_args g; } ops[] = {
        { "fwd", { .m = m, .n = n, .k = k, .out_dtype = out } },
        { "fwd_t", { .m = m, .n = n, .k = k, .b_t = true, .out_dtype = out } },
        { "dx", { .m = m, .n = k, .k = n, .b_t = !head, .out_dtype = out } },
        { "dw", { .m = head ? n : k, .n = head ? k : n, .k = m, .a_t = true, .out_dtype = Z3T_F32 } },
      };
      omp_set_num_threads(threads);
      for (int o = head ? 1 : 0; o < 4; o++) {     /* the head is (vocabulary, width): forward is fwd_t only */
        char name[64];
        snprintf(name, sizeof name, "%s.%s", layers[i].name, ops[o].op);
        if (strstr(name, word) != NULL) measure(layers[i].name, ops[o].op, ops[o].g, repeats);
      }
    }
  return failures > 0;
}
