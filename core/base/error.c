/* error.c -- the calling thread's last failure: code, message, file:line chain. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"

enum { MESSAGE_BYTES = 2048, CHAIN_BYTES = 4096 };

static _Thread_local struct {
  char message[MESSAGE_BYTES];
  char chain[CHAIN_BYTES];
  size_t chain_used;
  bool prefixed;
} last;

static void chain_add(const char *file, int line, const char *func)
{
  size_t room = CHAIN_BYTES - last.chain_used;
  int n = snprintf(last.chain + last.chain_used, room, "  at %s:%d (%s)\n", file, line, func);
  if (n > 0 && (size_t)n < room) last.chain_used += (size_t)n;
  else last.chain[last.chain_used] = '\0';        /* full: the innermost frames are the ones worth keeping */
}

int z3i_fail(const char *file, int line, const char *func, int code, const char *fmt, ...)
{
  char text[MESSAGE_BYTES];                       /* an argument may be the old message itself */
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  memcpy(last.message, text, sizeof text);
  last.chain_used = 0;
  last.chain[0] = '\0';
  last.prefixed = false;
  chain_add(file, line, func);
  return code;
}

int z3i_trace(const char *file, int line, const char *func, int code)
{
  if (code != Z3E_SCRIPT) chain_add(file, line, func);   /* a script's turn is not a failure */
  return code;
}

void z3i_error_prefix(const char *prefix)
{
  if (prefix == NULL || prefix[0] == '\0' || last.prefixed) return;
  char text[MESSAGE_BYTES];
  memcpy(text, last.message, sizeof text);
  text[sizeof text - 1] = '\0';
  if (snprintf(last.message, sizeof last.message, "%s: %s", prefix, text) < 0) last.message[0] = '\0';
  last.prefixed = true;
}

const char *z3_last_error(void) { return last.message; }
const char *z3_error_chain(void) { return last.chain; }

const char *z3_code_name(int code)
{
  switch (code) {
#define Z3ERR(name, value, text) case value: return #name;
#include "base/err.def"
#undef Z3ERR
  default: return "UNKNOWN";
  }
}

#ifdef Z3_TEST
void z3i_assert_failed(const char *file, int line, const char *text)
{
  fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, text);
  abort();
}
#endif
