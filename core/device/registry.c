/* registry.c -- the only file that names the backends. */
#include <pthread.h>

#include "device/backends.h"
#include "device/device.h"
#include "device/pool.h"
#include "zero3/device.h"

static z3i_device *devices[Z3D_COUNT];
static int open_status;
static char open_error[512];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_all(void)
{
  devices[Z3D_CPU] = z3i_cpu_device(&open_status);
  if (open_status == Z3E_OK) devices[Z3D_NULL] = z3i_null_device(&open_status);
  if (open_status == Z3E_OK) z3i_cpu_dry_kernels(&devices[Z3D_NULL]->forward, &devices[Z3D_NULL]->backward);
  for (int i = 0; i < Z3D_COUNT && open_status == Z3E_OK; i++) {
    devices[i]->pool = z3i_pool_new(devices[i]);
    if (devices[i]->pool == NULL) open_status = Z3E_OOM;
  }
  strncpy(open_error, z3_last_error(), sizeof open_error - 1);
}

int z3i_device_find(int id, z3i_device **out)
{
  *out = NULL;
  Z3I_REQUIRE(id >= 0 && id < Z3D_COUNT, "device number is %d, wants 0 to %d", id, Z3D_COUNT - 1);
  pthread_once(&once, open_all);
  if (open_status != Z3E_OK) return Z3I_FAIL(open_status, "%s", open_error);
  *out = devices[id];
  return Z3E_OK;
}

static const char *const names[Z3D_COUNT] = { "cpu", "null" };

const char *z3_device_name(int device) { return device >= 0 && device < Z3D_COUNT ? names[device] : "?"; }

int z3_device_from_name(const char *name)
{
  for (int i = 0; name != NULL && i < Z3D_COUNT; i++)
    if (strcmp(names[i], name) == 0) return i;
  return -1;
}
