/* cpu.c -- the CPU device: memory from the system in whole segments, and the kernels of the table in force. */
#include <errno.h>
#include <omp.h>
#include <sys/mman.h>

#include "device/backends.h"
#include "device/cpu/cpu_kernels.h"
#include "device/cpu/isa/isa.h"
#include "device/cpu/isa_pick.h"
#include "zero3/device.h"

enum { PAGE = 4096, HUGE = 2 << 20 };

/* Segments of 2 MiB and more start at a multiple of that and may get huge pages: fewer page faults and TLB misses. */
static int segment_alloc(size_t bytes, void **out)
{
  size_t unit = bytes >= HUGE ? HUGE : PAGE, size = (bytes + unit - 1) / unit * unit, extra = unit - PAGE;
  *out = NULL;
  char *p = mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return Z3I_FAIL(Z3E_OOM, "cpu: the system refused %zu bytes: %s", size, strerror(errno));
  size_t head = (unit - (uintptr_t)p % unit) % unit;
  if (head > 0) munmap(p, head);
  if (extra > head) munmap(p + head + size, extra - head);
  p += head;
  if (unit == HUGE) madvise(p, size, MADV_HUGEPAGE);      /* advice: where it fails, small pages do */
  *out = p;
  return Z3E_OK;
}

static void segment_free(void *p, size_t bytes)
{
  size_t unit = bytes >= HUGE ? HUGE : PAGE;
  if (p != NULL) munmap(p, (bytes + unit - 1) / unit * unit);
}

int z3_threads(int n)
{
  if (n > 0) omp_set_num_threads(Z3I_MIN(n, omp_get_thread_limit()));
  return omp_get_max_threads();
}

static const struct {
  int op;
  z3i_kernel forward, backward;
} library_kernels[] = {
#define K(name) { Z3OP_##name, z3i_cpu_##name##_fwd, z3i_cpu_##name##_bwd }
  K(matmul), K(linear), K(linear_cross_entropy), K(attention),
#undef K
};

void z3i_cpu_dry_kernels(const z3i_kernel **forward, const z3i_kernel **backward)
{
  static const z3i_kernel fwd[Z3OP_COUNT] = { [Z3OP_linear_cross_entropy] = z3i_cpu_linear_cross_entropy_dry_fwd };
  static const z3i_kernel bwd[Z3OP_COUNT] = { [Z3OP_linear_cross_entropy] = z3i_cpu_linear_cross_entropy_dry_bwd };
  *forward = fwd;
  *backward = bwd;
}

z3i_device *z3i_cpu_device(int *rc)
{
  static z3i_kernel forward[Z3OP_COUNT], backward[Z3OP_COUNT];
  static z3i_device device = {
    .name = "cpu", .id = Z3D_CPU, .computes = true, .mem_alloc = segment_alloc, .mem_free = segment_free,
    .forward = forward, .backward = backward,
  };
  *rc = z3i_isa_pick();
  if (*rc != Z3E_OK) return NULL;
  const z3i_isa_table *isa = z3i_isa();
  memcpy(forward, isa->forward, sizeof forward);
  memcpy(backward, isa->backward, sizeof backward);
  for (size_t i = 0; i < sizeof library_kernels / sizeof *library_kernels; i++) {
    forward[library_kernels[i].op] = library_kernels[i].forward;
    backward[library_kernels[i].op] = library_kernels[i].backward;
  }
  device.copy = isa->copy;
  device.fill = isa->fill;
  device.random = isa->random;
  device.arange = isa->arange;
  device.update = isa->update;
  device.sumsq = isa->sumsq;
  return &device;
}
