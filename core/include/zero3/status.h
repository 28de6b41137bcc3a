/* status.h -- status codes and the last error of the calling thread.
 * Every function that can fail returns an int: Z3E_OK (0) or another Z3E_ code. */
#ifndef ZERO3_STATUS_H
#define ZERO3_STATUS_H
#ifndef Z3_CDEF
#include <stdint.h>
#include <stdbool.h>
#endif

enum {
#define Z3ERR(name, value, text) Z3E_##name = value,
#include "../../base/err.def"
#undef Z3ERR
  Z3E_COUNT
};

/* Message of the newest failure on this thread; "" when nothing failed yet.
 * The text stays valid until the next failure on the same thread. */
const char *z3_last_error(void);

/* file:line chain of that failure, innermost first, one "  at file:line (function)" per line. */
const char *z3_error_chain(void);

/* "OOM", "ARG", ...; "UNKNOWN" for a number that is no code. */
const char *z3_code_name(int code);

/* What an OOM failure was about (valid after a call on this thread returned Z3E_OOM). */
typedef struct z3_oom_info {
  int64_t requested_bytes;
  int64_t limit_bytes;                 /* 0 when the system, not the limit, refused */
  int64_t current_bytes;               /* in use by live tensors when it failed */
  char device[16];
  char category[16];
} z3_oom_info;
const z3_oom_info *z3_last_oom(void);

/* Version of the library, and the hash of the public headers that it was built from. */
const char *z3_version(void);
uint64_t z3_abi_hash(void);
#endif
