/* backends.h -- how registry.c gets its devices. Each function opens its backend once and returns it; on failure NULL,
 * with the status in rc and the text in z3_last_error. */
#ifndef Z3I_BACKENDS_H
#define Z3I_BACKENDS_H
#include "device/device.h"

z3i_device *z3i_cpu_device(int *rc);
z3i_device *z3i_null_device(int *rc);
/* Kernels for a device that stands for the cpu without computing: each takes the scratch that the cpu's takes and gives
 * it back. NULL for those whose scratch is small. */
void z3i_cpu_dry_kernels(const z3i_kernel **forward, const z3i_kernel **backward);
#endif
