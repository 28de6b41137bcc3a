/* registry.c -- the only file that names the backends. */
#include <pthread.h>

#include "device/backends.h"
#include "device/device.h"
#include "device/pool.h"
#include "zero3/device.h"

static z3i_device *devices[Z3D_COUNT];
static int open_status;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_all(void)
{
  devices[Z3D_CPU] = z3i_cpu_device(&open_status);
  devices[Z3D_NULL] = z3i_null_device(&open_status);
  for (int i = 0; i < Z3D_COUNT; i++)
    if (devices[i] != NULL) devices[i]->pool = z3i_pool_new(devices[i]);
}

z3i_device *z3i_device_get(int id)
{
  pthread_once(&once, open_all);
  return id >= 0 && id < Z3D_COUNT && devices[id] != NULL && devices[id]->pool != NULL ? devices[id] : NULL;
}

static const char *const names[Z3D_COUNT] = { "cpu", "null" };

const char *z3_device_name(int device) { return device >= 0 && device < Z3D_COUNT ? names[device] : "?"; }

int z3_device_from_name(const char *name)
{
  for (int i = 0; name != NULL && i < Z3D_COUNT; i++)
    if (strcmp(names[i], name) == 0) return i;
  return -1;
}
