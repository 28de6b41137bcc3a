/* module.c -- which module is running: names what nodes, errors and memory belong to. Per thread. */
#include <pthread.h>

#include "device/pool.h"
#include "tape/node.h"

enum { MODULES_MAX = 1 << 16, DEPTH_MAX = 256 };

static const char *names[MODULES_MAX];            /* id 0 is "outside of any module" */
static int count = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local int stack[DEPTH_MAX], depth;

const char *z3i_module_name(int id) { return id > 0 && id < count ? names[id] : ""; }

int z3_module_id(const char *path)
{
  const char *text = path != NULL ? z3i_intern(path) : NULL;
  if (text == NULL) return -1;
  pthread_mutex_lock(&lock);
  int id = 1;
  while (id < count && names[id] != text) id++;
  if (id == MODULES_MAX) id = -1;
  else if (id == count) names[count++] = text;
  pthread_mutex_unlock(&lock);
  if (id < 0) (void)Z3I_FAIL(Z3E_ARG, "module %s: more than %d modules", path, MODULES_MAX - 1);
  return id;
}

int z3i_module_now(void) { return depth > 0 ? stack[Z3I_MIN(depth, DEPTH_MAX) - 1] : 0; }

void z3i_module_set(int id) { z3i_owner_set(z3i_module_name(id)); }

/* Deeper nesting than the stack holds is counted, and named by the deepest that it holds. */
void z3_module_enter(int id)
{
  if (depth < DEPTH_MAX) stack[depth] = id;
  depth++;
  z3i_module_set(z3i_module_now());
}

void z3_module_leave(void)
{
  if (depth > 0) depth--;
  z3i_module_set(z3i_module_now());
}

int z3_module_depth(void) { return depth; }

void z3_module_unwind(int to)
{
  if (to >= 0 && to < depth) depth = to;
  z3i_module_set(z3i_module_now());
}

const char *z3_module_current(void) { return z3i_module_name(z3i_module_now()); }
