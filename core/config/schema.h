/* schema.h -- the table of configuration keys as code sees it. */
#ifndef Z3I_SCHEMA_H
#define Z3I_SCHEMA_H
#include "base/text.h"

enum {
  Z3I_CT_SECTION, Z3I_CT_ALIAS, Z3I_CT_OLD,       /* not keys */
  Z3I_CT_BOOL, Z3I_CT_INT, Z3I_CT_NUM, Z3I_CT_RATE, Z3I_CT_LENGTH, Z3I_CT_SIZE, Z3I_CT_STR, Z3I_CT_PATH, Z3I_CT_ENUM,
  Z3I_CT_INTS, Z3I_CT_STRS, Z3I_CT_PAIR, Z3I_CT_INTAUTO, Z3I_CT_PARAMS, Z3I_CT_GROUPS, Z3I_CT_ANY,
  Z3I_CT_COUNT
};
enum { Z3I_CS_BUILT, Z3I_CS_HINT, Z3I_CS_RANKS, Z3I_CS_LATER };

typedef struct z3i_key {
  const char *name;                               /* of a section: its whole path */
  const char *value;                              /* default; a section's switch; the key that an alias stands for */
  const char *range, *unit, *doc;
  int type, status;
} z3i_key;

int z3i_schema_count(void);
const z3i_key *z3i_schema_at(int i);
/* Entry of a path "a.b.c", key or section; -1: none. */
int z3i_schema_find(const char *path);
/* Entry for a name inside a section: a key, an alias, or a section below it; -1: none. */
int z3i_schema_child(int section, const char *name);
/* The section that an entry belongs to (a section: itself), and the section around a section (-1 for the top). */
int z3i_schema_section(int i);
int z3i_schema_parent(int s);
/* "a.b.c" of an entry, without the "@TYPE" of sections that are picked by type. Returns room. */
char *z3i_schema_path(int i, char *room, size_t room_bytes);
/* Nearest path to a name that `section` doesn't have: in the section by spelling, elsewhere when spelt the same. */
char *z3i_schema_nearest(int section, const char *name, char *room, size_t room_bytes);
/* Edits (insert, delete, replace, swap neighbours) between two words. */
int z3i_edit_distance(const char *a, const char *b);
/* The next of "a|b|c": its length, and *words moves behind it; 0 at the end. */
size_t z3i_word_next(const char **words, const char **word);
/* A range's test of a number; "" allows all. */
bool z3i_range_holds(const char *range, double value);
#endif
