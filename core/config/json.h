/* json.h -- JSON for core: the parser with the caller's error code, and helpers over its nodes. */
#ifndef Z3I_JSON_H
#define Z3I_JSON_H
#include "base/text.h"
#include "zero3/json.h"

enum { Z3I_JSON_DEPTH = 512, Z3I_JSON_NODES = 1 << 24 };

struct z3_json {
  z3_json_node *nodes;
  int64_t count;
  struct cJSON *tree;                             /* owns every key and text */
};

/* As z3_json_parse, with `code` for what is wrong with the text. */
int z3i_json_parse(const char *text, size_t bytes, const char *name, int flags, int code, z3_json **out);

/* json_scan.c: checks the whole grammar and fills nodes with all but keys and texts. `strict` gets the same value as
 * JSON that cJSON reads without loss: no comments, numbers as 0, and the two bytes C0 80 (which no UTF-8 text has)
 * for the NUL of a \u0000. */
typedef struct z3i_json_scan {
  z3i_text strict;
  z3_json_node *nodes;
  int64_t count, room;
  bool has_nul;
} z3i_json_scan;
int z3i_json_scan_text(z3i_json_scan *s, const char *text, size_t bytes, const char *name, int flags, int code);

/* Index of the member called `key` of the object at node `object`; -1 when it has none. */
int64_t z3i_json_member(const z3_json *doc, int64_t object, const char *key);
/* Writes a string in quotes, escaped. */
void z3i_json_quote(z3i_text *t, const char *bytes, size_t n);
/* Writes a node and all below it on one line. */
void z3i_json_write(z3i_text *t, const z3_json *doc, int64_t node);
/* "file:3:7", or "line 3, column 7" when the text has no name. */
const char *z3i_json_place(char *room, size_t room_bytes, const char *name, int line, int column);
#endif
