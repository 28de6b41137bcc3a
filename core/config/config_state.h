/* config_state.h -- a configuration while it is read, and the steps of reading. */
#ifndef Z3I_CONFIG_STATE_H
#define Z3I_CONFIG_STATE_H
#include "config/json.h"
#include "config/schema.h"
#include "zero3/config.h"

/* What one schema entry came to. */
typedef struct z3i_value {
  bool given;                                     /* stands in the text, and not as "auto" or null */
  int64_t node;                                   /* where; -1: nowhere (a default, or derived) */
  char *json;                                     /* the value as JSON; NULL: the default */
  char *text;                                     /* of strings */
  double number;                                  /* of numbers and booleans */
} z3i_value;

struct z3_config {
  char *name;                                     /* NULL: there is no file */
  int world, flags;
  z3_json *doc;
  z3i_value *values;                              /* one per schema entry */
  z3i_text warnings, derived, dump;
};

/* config_value.c: checks a node against an entry, and keeps it unless `keep` is false. */
int z3i_config_value(z3_config *c, int key, int64_t node, bool keep);
/* Sets a value that no text gave. */
int z3i_config_set(z3_config *c, int key, double number, const char *json);
/* Fails with "file:line:column: " before the message (of node's value, or of its name when at_key), or "config: " when
 * there is no file; node -1: only the file's name. */
int z3i_config_fail(const z3_config *c, int code, int64_t node, bool at_key, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void z3i_config_warn(z3_config *c, int64_t node, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A node as text for a message, cut at 80 bytes. */
char *z3i_config_show(const z3_config *c, int64_t node, char *room, size_t room_bytes);
/* Whether a node reads as an absent key. */
bool z3i_config_absent(const z3_config *c, int key, int64_t node);
/* What an entry accepts, in words. */
char *z3i_config_wants(int key, char *room, size_t room_bytes);

/* config.c: walks an object against a section. */
int z3i_config_walk(z3_config *c, int section, int64_t node, bool keep);
/* config_rules.c, config_batch.c: what single keys can't tell. */
int z3i_config_rules(z3_config *c);
int z3i_config_batch(z3_config *c);
/* config_status.c: refuses what isn't built. */
int z3i_config_status(const z3_config *c);
/* config_dump.c */
int z3i_config_dump_text(z3_config *c);

/* Effective values by path; the path has to be right. */
double z3i_config_num(const z3_config *c, const char *path);
bool z3i_config_is(const z3_config *c, const char *path, const char *text);   /* of strings; null is "" */
bool z3i_config_has(const z3_config *c, const char *path);                     /* given */
int64_t z3i_config_node(const z3_config *c, const char *path);
#endif
