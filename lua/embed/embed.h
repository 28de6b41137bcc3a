/* embed.h -- what the files of this folder share. */
#ifndef Z3LUA_EMBED_H
#define Z3LUA_EMBED_H
#include <lauxlib.h>
#include <lua.h>

#include "z3lua.h"

enum { Z3LUA_PATH_MAX = 4096, Z3LUA_TEXT_MAX = 4096 };

/* Where the files are: root has lua/z3 and models; library is libzero3.so; generated has z3/cdef.lua. */
typedef struct z3lua_places {
  char root[Z3LUA_PATH_MAX];
  char library[Z3LUA_PATH_MAX];
  char generated[Z3LUA_PATH_MAX];
} z3lua_places;

struct z3lua {
  lua_State *L;
  int handler;                          /* registry reference of boot.lua's error handler; LUA_NOREF before it ran */
  int closer;                           /* ... of what runs before closing */
  char error[Z3LUA_TEXT_MAX];
  char trace[Z3LUA_TEXT_MAX];
};

/* Fills places; 0, or -1 when no Lua files are near this code, with text (capacity Z3LUA_TEXT_MAX) saying where it
 * looked. */
int z3lua_locate(z3lua_places *places, char *text);

/* Keeps a formatted message as the newest error; returns Z3LUA_ERROR. */
int z3lua_fail(z3lua *vm, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* lua_pcall with the error handler; on error its text and trace are kept and the stack is as before the function and
 * its n_args arguments were pushed. */
int z3lua_protected(z3lua *vm, int n_args, int n_results);

/* Runs function(L) with request as its light userdata 1, so that even lack of memory is a status and not a panic. */
int z3lua_guard(z3lua *vm, lua_CFunction function, void *request);
#endif
