/* call.c -- z3lua_call: a global Lua function with C values as arguments and results. */
#include <stdarg.h>
#include <string.h>

#include "embed.h"

enum { ARGS_MAX = 32 };

static const char LETTERS[] = "ildbs";

/* Number of arguments and results of a signature; Z3LUA_ERROR when a letter is unknown or there are too many. */
static int parse(z3lua *vm, const char *function, const char *signature, int *n_args, int *n_results)
{
  int *count = n_args;
  *n_args = *n_results = 0;
  for (const char *p = signature; *p != '\0'; p++) {
    if (*p == '>' && count == n_args) {
      count = n_results;
    } else if (strchr(LETTERS, *p) == NULL) {
      return z3lua_fail(vm, "%s: signature \"%s\" has '%c' (known: i l d b s, and one '>')", function, signature, *p);
    } else if (++*count > ARGS_MAX) {
      return z3lua_fail(vm, "%s: signature \"%s\" has more than %d values", function, signature, ARGS_MAX);
    }
  }
  return Z3LUA_OK;
}

static void push(lua_State *L, char letter, va_list *ap)
{
  const char *s;
  switch (letter) {
  case 'i': lua_pushinteger(L, va_arg(*ap, int)); break;
  case 'l': lua_pushnumber(L, (lua_Number)va_arg(*ap, int64_t)); break;
  case 'd': lua_pushnumber(L, va_arg(*ap, double)); break;
  case 'b': lua_pushboolean(L, va_arg(*ap, int)); break;
  default:
    s = va_arg(*ap, const char *);
    if (s != NULL) lua_pushstring(L, s); else lua_pushnil(L);
  }
}

/* Does the value fit the letter? Whole numbers only for i and l, in range: nothing is rounded or cut silently. */
static int fits(lua_State *L, int index, char letter)
{
  lua_Number v = lua_tonumber(L, index);
  switch (letter) {
  case 'b': return lua_isboolean(L, index);
  case 's': return lua_type(L, index) == LUA_TSTRING;
  case 'd': return lua_type(L, index) == LUA_TNUMBER;
  case 'i': return lua_type(L, index) == LUA_TNUMBER && v >= -2147483648.0 && v <= 2147483647.0 && v == (double)(int)v;
  default:
    return lua_type(L, index) == LUA_TNUMBER && v >= -0x1p63 && v < 0x1p63 && v == (double)(int64_t)v;
  }
}

static void store(lua_State *L, int index, char letter, va_list *ap)
{
  switch (letter) {
  case 'i': *va_arg(*ap, int *) = (int)lua_tonumber(L, index); break;
  case 'l': *va_arg(*ap, int64_t *) = (int64_t)lua_tonumber(L, index); break;
  case 'd': *va_arg(*ap, double *) = lua_tonumber(L, index); break;
  case 'b': *va_arg(*ap, int *) = lua_toboolean(L, index); break;
  default: *va_arg(*ap, const char **) = lua_tostring(L, index);
  }
}

static const char *letter_text(char letter)
{
  switch (letter) {
  case 'i': return "a whole number that fits an int (i)";
  case 'l': return "a whole number that fits an int64_t (l)";
  case 'd': return "a number (d)";
  case 'b': return "a boolean (b)";
  default: return "a string (s)";
  }
}

/* The results lie at the top of the stack: checks all, then stores all. */
static int take_results(z3lua *vm, const char *function, const char *letters, int n, va_list *ap)
{
  lua_State *L = vm->L;
  int first = lua_gettop(L) - n + 1;
  for (int i = 0; i < n; i++) {
    if (fits(L, first + i, letters[i])) continue;
    int is_number = lua_type(L, first + i) == LUA_TNUMBER;
    const char *value = is_number ? lua_tostring(L, first + i) : luaL_typename(L, first + i);
    return z3lua_fail(vm, "%s: result %d is %s, wants %s", function, i + 1, value, letter_text(letters[i]));
  }
  for (int i = 0; i < n; i++) store(L, first + i, letters[i], ap);
  return Z3LUA_OK;
}

typedef struct call_request {
  z3lua *vm;
  const char *function, *signature;
  int n_args, n_results, rc;
  va_list ap;
} call_request;

static int call_protected(lua_State *L)
{
  call_request *r = lua_touserdata(L, 1);
  luaL_checkstack(L, r->n_args + r->n_results + 8, "arguments of z3lua_call");
  lua_getfield(L, LUA_GLOBALSINDEX, r->function);
  if (!lua_isfunction(L, -1)) {
    r->rc = z3lua_fail(r->vm, "%s: the scripts define no global function of this name (it is %s)", r->function,
                       luaL_typename(L, -1));
    return 0;
  }
  for (int i = 0; i < r->n_args; i++) push(L, r->signature[i], &r->ap);
  r->rc = z3lua_protected(r->vm, r->n_args, r->n_results);
  if (r->rc != Z3LUA_OK || r->n_results == 0) return 0;
  /* Result strings must outlive this call: a table in the registry keeps them until the next one. */
  int first = lua_gettop(L) - r->n_results + 1;
  lua_createtable(L, r->n_results, 0);
  for (int i = 0; i < r->n_results; i++) {
    lua_pushvalue(L, first + i);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, LUA_REGISTRYINDEX, "z3lua.results");
  r->rc = take_results(r->vm, r->function, strchr(r->signature, '>') + 1, r->n_results, &r->ap);
  return 0;
}

int z3lua_call(z3lua *vm, const char *function, const char *signature, ...)
{
  if (vm == NULL || vm->L == NULL) return Z3LUA_ERROR;
  if (function == NULL || signature == NULL) return z3lua_fail(vm, "z3lua_call: function or signature is NULL");
  call_request r = { .vm = vm, .function = function, .signature = signature };
  if (parse(vm, function, signature, &r.n_args, &r.n_results) != Z3LUA_OK) return Z3LUA_ERROR;
  va_start(r.ap, signature);
  int rc = z3lua_guard(vm, call_protected, &r);
  va_end(r.ap);
  return rc == Z3LUA_OK ? r.rc : rc;
}
