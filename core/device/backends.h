/* backends.h -- how registry.c gets its devices. Each function opens its backend once and returns it; on failure NULL,
 * with the status in rc and the text in z3_last_error. */
#ifndef Z3I_BACKENDS_H
#define Z3I_BACKENDS_H
#include "device/device.h"

z3i_device *z3i_cpu_device(int *rc);
z3i_device *z3i_null_device(int *rc);
#endif
