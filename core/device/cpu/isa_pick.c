/* isa_pick.c -- which instruction set the kernels use: the best that the machine has, or what Z3_CPU asks for.
 * Levels are those of the x86-64 psABI: v2 (SSE4.2), v3 (AVX2, FMA, F16C), v4 (AVX-512 F BW CD DQ VL). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/cpu/isa/isa.h"
#include "device/cpu/isa_pick.h"
#include "zero3/device.h"

static const z3i_isa_table *chosen;
static char description[64], problem[256];
static bool native_bf16, native_amx;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#ifdef __x86_64__
#include <cpuid.h>

const z3i_isa_table *z3i_isa_table_v2(void);
const z3i_isa_table *z3i_isa_table_v3(void);
const z3i_isa_table *z3i_isa_table_v4(void);

enum { F16C = 1 << 29, MOVBE = 1 << 22, LZCNT = 1 << 5 };            /* cpuid 1 ecx, 1 ecx, 0x80000001 ecx */
enum { AVX512_BF16 = 1 << 5 };                                       /* cpuid 7.1 eax */
enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, OSXSAVE = 1 << 27 };  /* cpuid 7.0 edx, 7.0 edx, 1 ecx */

/* AMX also needs an operating system that saves its tiles: bits 17 and 18 of the register that xgetbv reads. */
static bool system_saves_tiles(void)
{
  unsigned a, b, c, d, low, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  (void)high;
  return (low & 0x60000u) == 0x60000u;
}

/* 2, 3 or 4; 1 when the processor has not even v2. */
static int machine_level(void)
{
  unsigned a, b, c = 0, d, c2 = 0;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("popcnt")) return 1;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid(0x80000001u, &a, &b, &c2, &d)) return 2;
  bool rest = (c & F16C) && (c & MOVBE) && (c2 & LZCNT);
  if (!rest || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("bmi2")) return 2;
  bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl");
  return v4 ? 4 : 3;
}

static void describe(int level)
{
  static const char *const names[] = { "sse4.2", "avx2", "avx512" };
  unsigned a = 0, b, c, d = 0, a1 = 0, d0;
  bool amx = false, bf16 = false;
  if (level == 4 && __get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    amx = (d & AMX_BF16) && (d & AMX_TILE) && system_saves_tiles();
    bf16 = __get_cpuid_count(7, 1, &a1, &b, &c, &d0) && (a1 & AVX512_BF16);
  }
  native_bf16 = amx || bf16;
  native_amx = amx && bf16;
  snprintf(description, sizeof description, "%s%s%s", names[level - 2], bf16 ? ",bf16" : "", amx ? ",amx" : "");
}

static void pick(void)
{
  const char *asked = getenv("Z3_CPU");
  int has = machine_level(), level = has;
  chosen = z3i_isa_table_v2();
  if (has < 2) {
    snprintf(problem, sizeof problem,
             "cpu: this processor lacks SSE4.2 and POPCNT (x86-64-v2), the least that is supported");
    return;
  }
  if (asked != NULL && asked[0] != '\0') {
    bool known = asked[0] == 'v' && asked[1] >= '2' && asked[1] <= '4' && asked[2] == '\0';
    level = known ? asked[1] - '0' : 0;
    const char *text = known ? "cpu: Z3_CPU is '%.40s', but this machine has v%d; set Z3_CPU to that or less"
                             : "cpu: Z3_CPU is '%.40s', wants v2, v3 or v4 (this machine has v%d)";
    if (!known || level > has) {
      snprintf(problem, sizeof problem, text, asked, has);
      return;
    }
  }
  chosen = level == 4 ? z3i_isa_table_v4() : level == 3 ? z3i_isa_table_v3() : z3i_isa_table_v2();
  describe(level);
}
#else
const z3i_isa_table *z3i_isa_table_base(void);

static void pick(void)
{
  const char *asked = getenv("Z3_CPU");
  chosen = z3i_isa_table_base();
  snprintf(description, sizeof description, "base");
  if (asked != NULL && asked[0] != '\0' && strcmp(asked, "base") != 0)
    snprintf(problem, sizeof problem, "cpu: Z3_CPU is '%.40s', but this library has kernels for 'base' only here",
             asked);
}
#endif

int z3i_isa_pick(void)
{
  pthread_once(&once, pick);
  if (problem[0] != '\0') return Z3I_FAIL(Z3E_ARG, "%s", problem);
  return Z3E_OK;
}

const z3i_isa_table *z3i_isa(void)
{
  pthread_once(&once, pick);
  return chosen;
}

const char *z3_cpu_isa(void)
{
  pthread_once(&once, pick);
  return description;
}

bool z3_has_bf16(void)
{
  pthread_once(&once, pick);
  return native_bf16;
}

bool z3i_isa_amx(void)
{
  pthread_once(&once, pick);
  return native_amx;
}
