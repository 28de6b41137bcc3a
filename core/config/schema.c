/* schema.c -- the table of configuration keys, and finding one's way in it. */
#include <stdio.h>
#include <strings.h>

#include "config/schema.h"
#include "zero3/config.h"

#define Z3SEC(path, on, text) { path, on, "", "", text, Z3I_CT_SECTION, Z3I_CS_BUILT },
#define Z3KEY(name, type, value, range, unit, status, text) \
  { name, value, range, unit, text, Z3I_CT_##type, Z3I_CS_##status },
#define Z3ALIAS(name, key) { name, key, "", "", "", Z3I_CT_ALIAS, Z3I_CS_BUILT },
#define Z3OLD(name, key) { name, key, "", "", "", Z3I_CT_OLD, Z3I_CS_BUILT },
static const z3i_key table[] = {
#include "config/schema.def"
#include "config/schema_more.def"
#include "config/schema_data.def"
};
enum { TABLE_COUNT = sizeof table / sizeof *table };

int z3i_schema_count(void) { return TABLE_COUNT; }
const z3i_key *z3i_schema_at(int i) { return &table[i]; }

int z3i_schema_section(int i)
{
  while (table[i].type != Z3I_CT_SECTION) i--;
  return i;
}

/* Length of a section's path without "@TYPE". */
static size_t plain_length(const char *path) { return strcspn(path, "@"); }

static int section_find(const char *path, size_t n)
{
  for (int i = 0; i < TABLE_COUNT; i++)
    if (table[i].type == Z3I_CT_SECTION && strlen(table[i].name) == n && memcmp(table[i].name, path, n) == 0) return i;
  return -1;
}

int z3i_schema_find(const char *path)
{
  const char *dot = strrchr(path, '.');
  int whole = section_find(path, strlen(path));
  if (whole >= 0) return whole;
  int section = dot == NULL ? 0 : section_find(path, (size_t)(dot - path));
  if (section < 0) return -1;
  const char *name = dot == NULL ? path : dot + 1;
  for (int i = section + 1; i < TABLE_COUNT && table[i].type != Z3I_CT_SECTION; i++)
    if (strcmp(table[i].name, name) == 0) return i;
  return -1;
}

/* The name of section i when it lies directly below `parent` (a path), else NULL. */
static const char *name_below(int i, const char *parent)
{
  const char *path = table[i].name;
  size_t n = strlen(parent);
  if (table[i].type != Z3I_CT_SECTION || path[0] == '\0') return NULL;
  if (n > 0 && (strncmp(path, parent, n) != 0 || path[n] != '.')) return NULL;
  const char *rest = n > 0 ? path + n + 1 : path;
  return strpbrk(rest, ".@") == NULL ? rest : NULL;
}

int z3i_schema_child(int section, const char *name)
{
  for (int i = section + 1; i < TABLE_COUNT && table[i].type != Z3I_CT_SECTION; i++)
    if (strcmp(table[i].name, name) == 0) return i;
  for (int i = 0; i < TABLE_COUNT; i++) {
    const char *below = name_below(i, table[section].name);
    if (below != NULL && strcmp(below, name) == 0) return i;
  }
  return -1;
}

int z3i_schema_parent(int s)
{
  const char *path = table[s].name;
  if (path[0] == '\0') return -1;
  const char *dot = strrchr(path, '.');
  if (dot == NULL) return 0;
  int up = section_find(path, (size_t)(dot - path));
  if (up >= 0) return up;
  /* "a.groups.*" lies below the key a.groups, and so below a. */
  for (dot--; dot > path && *dot != '.'; dot--) continue;
  return dot > path ? section_find(path, (size_t)(dot - path)) : 0;
}

char *z3i_schema_path(int i, char *room, size_t room_bytes)
{
  const z3i_key *k = &table[i];
  const char *section = table[z3i_schema_section(i)].name;
  int n = (int)plain_length(section);
  if (k->type == Z3I_CT_SECTION) snprintf(room, room_bytes, "%.*s", n, section);
  else snprintf(room, room_bytes, "%.*s%s%s", n, section, n > 0 ? "." : "", k->name);
  return room;
}

int z3i_edit_distance(const char *a, const char *b)
{
  enum { LONGEST = 64 };
  int before[LONGEST + 1], last[LONGEST + 1], row[LONGEST + 1];
  int n = (int)Z3I_MIN(strlen(a), (size_t)LONGEST), m = (int)Z3I_MIN(strlen(b), (size_t)LONGEST);
  for (int j = 0; j <= m; j++) last[j] = before[j] = j;
  for (int i = 1; i <= n; i++) {
    row[0] = i;
    for (int j = 1; j <= m; j++) {
      row[j] = Z3I_MIN(Z3I_MIN(row[j - 1], last[j]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = Z3I_MIN(row[j], before[j - 2] + 1);
    }
    memcpy(before, last, sizeof before);
    memcpy(last, row, sizeof last);
  }
  return last[m];
}

char *z3i_schema_nearest(int section, const char *name, char *room, size_t room_bytes)
{
  int best = -1, best_distance = 0;
  for (int i = section + 1; i < TABLE_COUNT && table[i].type != Z3I_CT_SECTION; i++) {
    if (table[i].type == Z3I_CT_OLD) continue;
    int d = z3i_edit_distance(name, table[i].name);
    if (best < 0 || d < best_distance) best = i, best_distance = d;
  }
  for (int i = 0; i < TABLE_COUNT; i++) {
    const char *below = name_below(i, table[section].name);
    int d = below != NULL ? z3i_edit_distance(name, below) : 0;
    if (below != NULL && (best < 0 || d < best_distance)) best = i, best_distance = d;
  }
  /* A key in the wrong section is nearer than a word that merely looks like it. */
  if (best < 0 || best_distance > 2)
    for (int i = TABLE_COUNT - 1; i >= 0; i--)
      if (table[i].type >= Z3I_CT_BOOL && strcmp(table[i].name, name) == 0) best = i;
  if (best < 0) best = 0;
  return z3i_schema_path(best, room, room_bytes);
}

size_t z3i_word_next(const char **words, const char **word)
{
  *word = *words;
  size_t n = strcspn(*words, "|");
  *words += n + ((*words)[n] == '|');
  return n;
}

bool z3i_range_holds(const char *range, double value)
{
  double low, high;
  char *end;
  if (range[0] == '\0') return true;
  if (range[0] != '>' && range[0] != '<') {       /* "low .. high" */
    low = z3i_decimal(range, &end);
    high = z3i_decimal(end + 4, NULL);
    return value >= low && value <= high;
  }
  for (const char *p = range; *p != '\0';) {      /* ">= 0, < 1" */
    bool more = *p == '>', equal = p[1] == '=';
    double bound = z3i_decimal(p + 1 + equal, &end);
    if (!(equal && value == bound) && !(more ? value > bound : value < bound)) return false;
    p = end + strspn(end, ", ");
  }
  return true;
}

int z3_config_key_count(void)
{
  int n = 0;
  for (int i = 0; i < TABLE_COUNT; i++) n += table[i].type >= Z3I_CT_BOOL;
  return n;
}

int z3_config_key_get(int i, z3_config_key *out)
{
  static const char *const types[Z3I_CT_COUNT] = {
    "section", "alias", "old", "bool", "int", "number", "rate", "length", "size", "string", "path", "enum",
    "list of ints", "list of strings", "two numbers", "int or \"auto\"", "params", "groups", "any",
  };
  static const char *const statuses[] = { "built", "hint", "ranks", "later" };
  Z3I_REQUIRE(out != NULL, "config key: out is NULL");
  Z3I_REQUIRE(i >= 0 && i < z3_config_key_count(), "config key %d: there are %d", i, z3_config_key_count());
  int at = -1;
  for (int left = i; left >= 0; left -= table[at].type >= Z3I_CT_BOOL) at++;
  const z3i_key *k = &table[at];
  *out = (z3_config_key){ .section = table[z3i_schema_section(at)].name, .name = k->name, .type = types[k->type],
                          .value = k->value[0] == '!' ? "" : k->value, .range = k->range, .unit = k->unit,
                          .status = statuses[k->status], .doc = k->doc };
  return Z3E_OK;
}
