/* embed.c -- opens, runs and closes an interpreter; every Lua call is protected.
 * The core library isn't linked here: lua/z3/ffi.lua loads it when a script first needs it. So opening is fast, and
 * the environment that its OpenMP runtime reads once, at load, can still be prepared. */
#include "embed.h"

#include <luajit.h>
#include <lualib.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int z3lua_fail(z3lua *vm, const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(vm->error, sizeof vm->error, fmt, ap);
  va_end(ap);
  vm->trace[0] = '\0';
  return Z3LUA_ERROR;
}

/* Copies the text at a stack index; an error object from outside boot.lua's handler has no text of its own. */
static void copy_text(lua_State *L, int index, char *out)
{
  const char *s = lua_type(L, index) == LUA_TSTRING ? lua_tostring(L, index) : NULL;
  snprintf(out, Z3LUA_TEXT_MAX, "%s", s != NULL ? s : "an error that is not text");
}

int z3lua_protected(z3lua *vm, int n_args, int n_results)
{
  lua_State *L = vm->L;
  int base = lua_gettop(L) - n_args;    /* index of the function */
  if (vm->handler == LUA_NOREF) {
    lua_pushnil(L);
  } else {
    lua_rawgeti(L, LUA_REGISTRYINDEX, vm->handler);
  }
  lua_insert(L, base);
  int rc = lua_pcall(L, n_args, n_results, vm->handler == LUA_NOREF ? 0 : base);
  if (rc == 0) {
    lua_remove(L, base);
    return Z3LUA_OK;
  }
  /* The handler returns { line, trace }; out of memory and errors inside the handler come as plain text. */
  if (lua_istable(L, -1)) {
    lua_rawgeti(L, -1, 1);
    copy_text(L, lua_gettop(L), vm->error);
    lua_pop(L, 1);
    lua_rawgeti(L, -1, 2);
    copy_text(L, lua_gettop(L), vm->trace);
  } else {
    copy_text(L, lua_gettop(L), vm->error);
    vm->trace[0] = '\0';
  }
  lua_settop(L, base - 1);
  return Z3LUA_ERROR;
}

int z3lua_guard(z3lua *vm, lua_CFunction function, void *request)
{
  if (lua_cpcall(vm->L, function, request) == 0) return Z3LUA_OK;
  copy_text(vm->L, lua_gettop(vm->L), vm->error);
  vm->trace[0] = '\0';
  lua_pop(vm->L, 1);
  return Z3LUA_ERROR;
}

/* Threads that wait for work spin for a moment and then sleep. Measured with gcc's libgomp on 2 cores that other
 * programs used too, medians of 7, products of 0.1 and 0.3 ms with serial gaps: within noise of libgomp's default spin
 * of milliseconds (99 to 98, 332 to 305 us); with one more busy process 161 to 232 and 469 to 1023 us. Pinning helped
 * less there (195, 577), and two pinned processes would meet on the same cores. Larger machines and libomp, which gets
 * the same policy, weren't measured. Both read this once, when they are loaded. What the user has set wins. */
static void prepare_environment(void)
{
  if (getenv("OMP_WAIT_POLICY") != NULL) return;
  setenv("GOMP_SPINCOUNT", "300", 0);
  setenv("KMP_BLOCKTIME", "0", 0);
}

/* Fills the table that boot.lua gets; z3.ffi and z3.init read it as package.loaded['z3.host']. */
static void push_host(lua_State *L, const z3lua_places *places, const z3lua_options *o)
{
  lua_newtable(L);
  lua_pushstring(L, places->root);
  lua_setfield(L, -2, "root");
  lua_pushstring(L, places->library);
  lua_setfield(L, -2, "lib");
  lua_pushstring(L, places->generated);
  lua_setfield(L, -2, "generated");
  lua_pushboolean(L, o->owns_process);
  lua_setfield(L, -2, "owns_process");
  if (o->device != NULL) {
    lua_pushstring(L, o->device);
    lua_setfield(L, -2, "device");
  }
  if (o->threads > 0) {
    lua_pushinteger(L, o->threads);
    lua_setfield(L, -2, "threads");
  }
  if (o->memory_limit != NULL) {
    lua_pushstring(L, o->memory_limit);
    lua_setfield(L, -2, "memory_limit");
  }
  lua_pushboolean(L, o->profile);
  lua_setfield(L, -2, "profile");
  if (o->trace != NULL) {
    lua_pushstring(L, o->trace);
    lua_setfield(L, -2, "trace");
  }
  lua_createtable(L, o->argc, 1);
  for (int i = 0; i < o->argc; i++) {
    lua_pushstring(L, o->argv[i]);
    lua_rawseti(L, -2, i - o->script_index);
  }
  lua_setfield(L, -2, "arg");
}

typedef struct open_request {
  z3lua *vm;
  const z3lua_places *places;
  const z3lua_options *options;
} open_request;

/* Opens the libraries and runs boot.lua, which returns the error handler and what to run before closing. */
static int open_protected(lua_State *L)
{
  open_request *request = lua_touserdata(L, 1);
  char path[Z3LUA_PATH_MAX + 32];
  luaL_openlibs(L);
  snprintf(path, sizeof path, "%s/lua/z3/boot.lua", request->places->root);
  if (luaL_loadfile(L, path) != 0) return lua_error(L);
  push_host(L, request->places, request->options);
  lua_call(L, 1, 2);
  request->vm->closer = luaL_ref(L, LUA_REGISTRYINDEX);
  request->vm->handler = luaL_ref(L, LUA_REGISTRYINDEX);
  return 0;
}

int z3lua_open_with(z3lua **out, const z3lua_options *options)
{
  static z3lua_places places;           /* too large for a small thread's stack; the same for all */
  z3lua *vm = calloc(1, sizeof *vm);
  *out = vm;
  if (vm == NULL) return Z3LUA_ERROR;
  vm->handler = vm->closer = LUA_NOREF;
  if (z3lua_locate(&places, vm->error) != 0) return Z3LUA_ERROR;
  prepare_environment();
  vm->L = luaL_newstate();
  if (vm->L == NULL) return z3lua_fail(vm, "z3lua: no memory for an interpreter");
  open_request request = { vm, &places, options };
  return z3lua_guard(vm, open_protected, &request);
}

int z3lua_open(z3lua **out, int argc, char **argv)
{
  z3lua_options options = { .argc = argv != NULL ? argc : 0, .argv = argv };
  return z3lua_open_with(out, &options);
}

/* Pushes arg[1], arg[2], ...; returns how many. */
static int push_script_args(lua_State *L)
{
  lua_getglobal(L, "arg");
  if (!lua_istable(L, -1)) {
    lua_pop(L, 1);
    return 0;
  }
  int list = lua_gettop(L), count = (int)lua_objlen(L, list);
  luaL_checkstack(L, count, "too many arguments of the script");
  for (int i = 0; i < count; i++) lua_rawgeti(L, list, i + 1);
  lua_remove(L, list);
  return count;
}

typedef struct run_request {
  z3lua *vm;
  const char *path, *code, *name;       /* code NULL: run the file */
  int rc;
} run_request;

static int run_protected(lua_State *L)
{
  run_request *r = lua_touserdata(L, 1);
  int rc = r->code != NULL ? luaL_loadbuffer(L, r->code, strlen(r->code), r->name != NULL ? r->name : "=(string)")
                           : luaL_loadfile(L, strcmp(r->path, "-") == 0 ? NULL : r->path);
  if (rc != 0) return lua_error(L);
  r->rc = z3lua_protected(r->vm, push_script_args(L), 0);
  return 0;
}

int z3lua_run_file(z3lua *vm, const char *path)
{
  if (vm == NULL || vm->L == NULL) return Z3LUA_ERROR;
  if (path == NULL) return z3lua_fail(vm, "z3lua_run_file: path is NULL");
  run_request r = { .vm = vm, .path = path };
  return z3lua_guard(vm, run_protected, &r) == Z3LUA_OK ? r.rc : Z3LUA_ERROR;
}

int z3lua_run_string(z3lua *vm, const char *code, const char *name)
{
  if (vm == NULL || vm->L == NULL) return Z3LUA_ERROR;
  if (code == NULL) return z3lua_fail(vm, "z3lua_run_string: code is NULL");
  run_request r = { .vm = vm, .code = code, .name = name };
  return z3lua_guard(vm, run_protected, &r) == Z3LUA_OK ? r.rc : Z3LUA_ERROR;
}

const char *z3lua_error(const z3lua *vm)
{
  return vm != NULL ? vm->error : "z3lua: no memory for an interpreter";
}

const char *z3lua_traceback(const z3lua *vm)
{
  return vm != NULL ? vm->trace : "";
}

lua_State *z3lua_state(z3lua *vm)
{
  return vm != NULL ? vm->L : NULL;
}

static int close_protected(lua_State *L)
{
  z3lua *vm = lua_touserdata(L, 1);
  lua_rawgeti(L, LUA_REGISTRYINDEX, vm->closer);
  lua_call(L, 0, 0);
  return 0;
}

void z3lua_close(z3lua *vm)
{
  if (vm == NULL) return;
  if (vm->L != NULL && vm->closer != LUA_NOREF) (void)z3lua_guard(vm, close_protected, vm);
  if (vm->L != NULL) lua_close(vm->L);
  free(vm);
}
