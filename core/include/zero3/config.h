/* config.h -- a DeepSpeed configuration: read, checked against the schema, completed.
 * The schema knows every key of DeepSpeed's: one that asks for what isn't built yet is refused by name, an unknown one
 * with the nearest that exists. Sizes are elements unless their unit says bytes. */
#ifndef ZERO3_CONFIG_H
#define ZERO3_CONFIG_H
#ifndef Z3_CDEF
#include "zero3/status.h"
#endif

typedef struct z3_config z3_config;

/* The caller brings an optimizer or a schedule of its own: what the section asks for is neither needed nor refused. */
enum { Z3CFG_OWN_OPTIMIZER = 1, Z3CFG_OWN_SCHEDULE = 2 };

/* Reads a configuration: JSON with comments, trailing commas, names without quotes, a byte order mark.
 * text  [in]  `bytes` bytes, not kept
 * name  [in]  the file's name for messages; NULL when there is no file: messages then have no line and column
 * world [in]  number of ranks, for the batch and for what acts between ranks only
 * flags [in]  Z3CFG_...
 * out   [out] free with z3_config_free; NULL on failure
 * "auto" reads as an absent key, except for rates and lengths, where nothing could be right. An object without keys is
 * all defaults; any other must determine the batch.
 * Errors: Z3E_CONFIG names the key, the value given, what is allowed, and file:line:column; Z3E_UNSUPPORTED "not
 * supported yet: KEY"; Z3E_OOM; Z3E_ARG. */
int z3_config_parse(const char *text, int64_t bytes, const char *name, int world, int flags, z3_config **out);
/* The same from a file of at most 16 MiB. Errors: those, and Z3E_IO. */
int z3_config_load(const char *path, int world, int flags, z3_config **out);
void z3_config_free(z3_config *c);                /* NULL is harmless */

/* Borrowed texts, valid until z3_config_free. */
const char *z3_config_dump(const z3_config *c);     /* the effective configuration as JSON, every default filled in */
const char *z3_config_warnings(const z3_config *c); /* one per line; "" when there are none */
const char *z3_config_derived(const z3_config *c);  /* the batch number that was derived, and how; "" when none was */

/* One value by its path, "zero_optimization.stage". bool: 0 or 1.
 * Errors: Z3E_ARG: no such key, the value is null, or not of that type. */
int z3_config_number(const z3_config *c, const char *key, double *out);
int z3_config_string(const z3_config *c, const char *key, const char **out);
bool z3_config_given(const z3_config *c, const char *key);   /* stands in the file, and not as "auto" */

/* The schema, for help: key i of z3_config_key_count(). Borrowed constant texts. */
typedef struct z3_config_key {
  const char *section, *name;                     /* "zero_optimization", "stage"; section "" is the top level */
  const char *type, *value, *range, *unit;        /* value: the default as JSON; "" where there is none */
  const char *status;                             /* "built", "hint", "ranks", "later" */
  const char *doc;
} z3_config_key;
int z3_config_key_count(void);
int z3_config_key_get(int i, z3_config_key *out);
#endif
