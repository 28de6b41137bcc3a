/* locate.c -- finds the Lua files and libzero3.so relative to the file that holds this code, so a tree or an installed
 * copy can be moved. In the tree: ROOT/lua/z3, ROOT/build/libzero3.so. Installed: P/share/z3lua/lua/z3, P/lib. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "embed.h"

enum { LEVELS_MAX = 6 };                /* folders looked at, going up */

static int readable(const char *path)
{
  return access(path, R_OK) == 0;
}

/* Writes dir + tail; false when it does not fit. */
static int join(char *out, const char *dir, const char *tail)
{
  int n = snprintf(out, Z3LUA_PATH_MAX, "%s%s", dir, tail);
  return n > 0 && n < Z3LUA_PATH_MAX;
}

/* Folder of the program or shared library that this function was linked into. */
static int own_folder(char *out)
{
  Dl_info info;
  struct link_map *map = NULL;
  char path[PATH_MAX];
  if (dladdr1((void *)own_folder, &info, (void **)&map, RTLD_DL_LINKMAP) == 0) return -1;
  /* The program itself has no name in the list, and argv[0] is whatever its caller wrote. */
  const char *name = map != NULL && map->l_name[0] != '\0' ? map->l_name : "/proc/self/exe";
  if (realpath(name, path) == NULL) return -1;
  *strrchr(path, '/') = '\0';
  return join(out, path, "") ? 0 : -1;
}

static int installed_at(const char *prefix, z3lua_places *places)
{
  char probe[Z3LUA_PATH_MAX];
  if (!join(probe, prefix, "/share/z3lua/lua/z3/boot.lua") || !readable(probe)) return 0;
  return join(places->root, prefix, "/share/z3lua") && join(places->library, prefix, "/lib/libzero3.so") &&
         join(places->generated, prefix, "/share/z3lua/lua");
}

int z3lua_locate(z3lua_places *places, char *text)
{
  char dir[Z3LUA_PATH_MAX], start[Z3LUA_PATH_MAX], probe[Z3LUA_PATH_MAX];
  int built = 0;
  if (own_folder(dir) != 0) dir[0] = '\0';
  memcpy(start, dir, sizeof start);
  for (int level = 0; level < LEVELS_MAX; level++) {
    if (installed_at(dir, places)) return 0;
    if (!built && join(probe, dir, "/libzero3.so") && readable(probe)) {
      built = join(places->library, dir, "/libzero3.so") && join(places->generated, dir, "/lua");
    }
    if (built && join(probe, dir, "/lua/z3/boot.lua") && readable(probe)) return join(places->root, dir, "") ? 0 : -1;
    char *slash = strrchr(dir, '/');
    if (slash == NULL) break;
    *slash = '\0';
  }
#ifdef Z3LUA_PREFIX
  if (installed_at(Z3LUA_PREFIX, places)) return 0;
#endif
  snprintf(text, Z3LUA_TEXT_MAX, "z3lua: found no share/z3lua or lua/z3 with libzero3.so at or above %.900s: "
           "run make, or make install, and keep its folders together", start);
  return -1;
}
