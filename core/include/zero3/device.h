/* device.h -- memory of a device: budget, statistics, cache. Names: "cpu", "null". */
#ifndef ZERO3_DEVICE_H
#define ZERO3_DEVICE_H
#ifndef Z3_CDEF
#include "zero3/tensor.h"
#endif

typedef struct z3_memory_stats {
  int64_t current, peak, limit;                 /* bytes; limit 0: none */
  int64_t by_current[8], by_peak[8];            /* Z3M_... */
  int64_t reserved;                             /* bytes taken from the system, caches included */
  int64_t system_allocs;                        /* requests to the system so far */
  int64_t allocs;                               /* allocations served so far */
} z3_memory_stats;

const char *z3_device_name(int device);
int z3_device_from_name(const char *name);      /* -1: none */
int z3_memory_stats_get(int device, z3_memory_stats *out);
/* Hard limit on what is taken from the system, the pool's cache included; 0 removes it.
 * Errors: Z3E_OOM when more is in use already. */
int z3_memory_limit_set(int device, int64_t bytes);
void z3_memory_peak_reset(int device);
void z3_memory_trim(int device);                /* gives cached segments back to the system */
/* Threads that kernels use; 0 asks only. Returns the number in force. */
int z3_threads(int n);
/* Largest owners of live memory: fills up to n names (borrowed until the next call) and bytes; returns how many. */
int z3_memory_top(int device, int n, const char **names, int64_t *bytes);
/* "avx512,amx" ... : instruction set in use. */
const char *z3_cpu_isa(void);
bool z3_has_bf16(void);                         /* products in bf16 run natively (AVX-512 BF16 or AMX) */
#endif
