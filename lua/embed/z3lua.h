/* z3lua.h -- z3lua inside a C or C++ program: an interpreter that is ready to train.
 * A script's error never ends the program: calls return a status and keep the text. One z3lua belongs to one thread
 * at a time; several may live beside each other and share the library's threads and memory budget.
 *
 *   cc host.c $(pkg-config --cflags --libs z3lua)                                                    */
#ifndef Z3LUA_H
#define Z3LUA_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct z3lua z3lua;
struct lua_State;

enum {
  Z3LUA_OK = 0,
  Z3LUA_ERROR = 1                       /* the script failed, or a call here was wrong; z3lua_error has the text */
};

typedef struct z3lua_options {
  int argc;                             /* the script sees argv as `arg`, as under the lua program: */
  char **argv;                          /*   arg[i - script_index] is argv[i] */
  int script_index;
  const char *device;                   /* default device: "cpu", "null"; NULL: cpu */
  int threads;                          /* of the kernels; 0: one a core */
  const char *memory_limit;             /* "512MiB", "16GB"; NULL: none */
  int profile;                          /* 1: closing prints where the steps' time went, to standard error */
  const char *trace;                    /* file for a Chrome trace, written at closing; NULL: none */
  int owns_process;                     /* 1: os.exit closes the interpreter and ends the process; 0: it is an error */
} z3lua_options;

/* Opens an interpreter; argc and argv are the program's own (0 and NULL are fine). When it fails *vm still holds the
 * text for z3lua_error and must be closed (NULL only without any memory).
 * Sets GOMP_SPINCOUNT and KMP_BLOCKTIME in the environment unless the user did: call it before other threads start. */
int z3lua_open(z3lua **vm, int argc, char **argv);
int z3lua_open_with(z3lua **vm, const z3lua_options *options);

/* Runs a script with arg[1], arg[2], ... as its `...`. "-" reads standard input. */
int z3lua_run_file(z3lua *vm, const char *path);
/* Runs code. name is what error messages call it, as "=(command line)"; NULL: "=(string)". */
int z3lua_run_string(z3lua *vm, const char *code, const char *name);

/* Calls a global function. signature: letters of the arguments, '>', letters of the results.
 *   i int    l int64_t    d double    b int (a boolean)    s const char *
 * Arguments are passed as they are; for each result comes a pointer to one: z3lua_call(vm, "f", "is>d", 3, "x", &loss).
 * Result strings belong to the interpreter and live until the next call of the same z3lua. A result that is missing or
 * has another type is an error; on error no result is written. */
int z3lua_call(z3lua *vm, const char *function, const char *signature, ...);

/* The newest error: one line; "" when there was none. Valid until the next call. */
const char *z3lua_error(const z3lua *vm);
/* Where it happened: the script's own lines, innermost first, "\n" between them; "" when unknown. */
const char *z3lua_traceback(const z3lua *vm);

/* The interpreter itself, for hosts that use the Lua C API beside this. */
struct lua_State *z3lua_state(z3lua *vm);

/* Writes what profile and trace asked for, runs finalizers and closes files. NULL is harmless. */
void z3lua_close(z3lua *vm);

#ifdef __cplusplus
}
#endif
#endif
