/* json.h -- a JSON text as a flat list of nodes in the order of the text, for scripts to walk.
 * Node 0 is the whole value. The entries of an array or object follow their node; `next` jumps over what lies below. */
#ifndef ZERO3_JSON_H
#define ZERO3_JSON_H
#ifndef Z3_CDEF
#include "zero3/status.h"
#endif

typedef struct z3_json z3_json;

enum { Z3J_NULL = 0, Z3J_FALSE, Z3J_TRUE, Z3J_NUMBER, Z3J_STRING, Z3J_ARRAY, Z3J_OBJECT };
/* Z3J_RELAXED also takes what people write in configuration files: a byte order mark, comments of the kinds
 * slash-slash, slash-star and #, a comma after the last entry, names without quotes, a line's end for a comma. */
enum { Z3J_STRICT = 0, Z3J_RELAXED = 1 };

typedef struct z3_json_node {
  int kind;                                       /* Z3J_... */
  int digits;                                     /* the number is written as digits only, "12" and not "12.0" */
  int exact;                                      /* `number` is the number as written: always so unless it is such
                                                     a row of digits that no double holds */
  int whole_ok;                                   /* the number is whole and fits `whole` */
  int64_t whole;
  double number;
  const char *key, *text;                         /* an object's member's name; a string's bytes. NUL-terminated, and
                                                     may hold NULs too */
  int64_t key_bytes, text_bytes;
  int64_t count;                                  /* entries of an array or object */
  int64_t next;                                   /* index of the first node that isn't below this one */
  int line, column;                               /* where the value starts, from 1; columns count characters */
  int key_line, key_column;
} z3_json_node;

/* Reads one JSON value. Duplicate names in an object, broken UTF-8, numbers beyond a double's range, more than 512
 * levels of nesting and more than 2^24 values are refused.
 * text  [in]  `bytes` bytes, not kept
 * name  [in]  what messages call the text (a file's name); NULL: they say "line L, column C"
 * flags [in]  Z3J_...
 * out   [out] free with z3_json_free; NULL on failure
 * Errors: Z3E_CORRUPT with line and column; Z3E_OOM; Z3E_ARG. */
int z3_json_parse(const char *text, int64_t bytes, const char *name, int flags, z3_json **out);
const z3_json_node *z3_json_nodes(const z3_json *doc);
int64_t z3_json_count(const z3_json *doc);        /* of nodes; at least 1 */
void z3_json_free(z3_json *doc);                  /* NULL is harmless */
#endif
