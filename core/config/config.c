/* config.c -- reads a configuration: text to nodes, nodes to values by the schema, then rules, status, dump. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "config/config_state.h"

enum { FILE_BYTES_MAX = 16 << 20 };

/* ---- walking ------------------------------------------------------------------------------------- */
static int unknown(const z3_config *c, int section, int64_t node)
{
  char here[256], nearest[256];
  const char *key = c->doc->nodes[node].key;
  z3i_schema_path(section, here, sizeof here);
  return z3i_config_fail(c, Z3E_CONFIG, node, true, "unknown key '%s%s%.100s'; the nearest known one is '%s'", here,
                         here[0] != '\0' ? "." : "", key, z3i_schema_nearest(section, key, nearest, sizeof nearest));
}

/* zero_optimization: true, the form of DeepSpeed's first versions. */
static int old_zero_switch(z3_config *c, int64_t node, bool keep)
{
  bool on = c->doc->nodes[node].kind == Z3J_TRUE;
  z3i_config_warn(c, node, "zero_optimization: %s is an old form; write { \"stage\": %d }", on ? "true" : "false", on);
  return keep ? z3i_config_set(c, z3i_schema_find("zero_optimization.stage"), on, on ? "1" : "0") : Z3E_OK;
}

static int walk_section(z3_config *c, int section, int64_t node, bool keep)
{
  const z3_json_node *n = &c->doc->nodes[node];
  char path[256], shown[100];
  z3i_schema_path(section, path, sizeof path);
  if (z3i_config_absent(c, section, node)) return Z3E_OK;
  if ((n->kind == Z3J_TRUE || n->kind == Z3J_FALSE) && strcmp(path, "zero_optimization") == 0)
    return old_zero_switch(c, node, keep);
  bool empty_list = n->kind == Z3J_ARRAY && n->count == 0 && c->name == NULL;    /* Lua's {} */
  if (n->kind != Z3J_OBJECT && !empty_list)
    return z3i_config_fail(c, Z3E_CONFIG, node, false, "%s is %s; wants an object", path,
                           z3i_config_show(c, node, shown, sizeof shown));
  if (keep) {
    c->values[section].given = true;
    c->values[section].node = node;
  }
  return z3i_config_walk(c, section, node, keep);
}

static int walk_groups(z3_config *c, int key, int64_t node)
{
  char path[256], shown[100];
  const z3_json_node *n = &c->doc->nodes[node];
  if (n->kind != Z3J_OBJECT) return Z3E_OK;       /* "auto", null */
  z3i_schema_path(key, path, sizeof path - 2);
  strcat(path, ".*");
  int section = z3i_schema_find(path);
  Z3I_ASSERT(section >= 0);
  for (int64_t i = node + 1; i < n->next; i = c->doc->nodes[i].next) {
    if (c->doc->nodes[i].kind != Z3J_OBJECT)
      return z3i_config_fail(c, Z3E_CONFIG, i, false, "%s: '%.100s' is %s; wants an object", path, c->doc->nodes[i].key,
                             z3i_config_show(c, i, shown, sizeof shown));
    Z3I_TRY(z3i_config_walk(c, section, i, false));
  }
  return Z3E_OK;
}

/* Another spelling: the key that it stands for must not be there too. */
static int walk_alias(z3_config *c, int alias, int64_t node, bool keep)
{
  const z3i_key *a = z3i_schema_at(alias);
  char path[256];
  z3i_schema_path(alias, path, sizeof path);
  bool old = a->type == Z3I_CT_OLD, named = a->value[0] != '\0';
  bool maps = named && strncmp(a->name, "cpu_offload", 11) != 0;
  if (old && keep) z3i_config_warn(c, node, "%s is an old key%s%s", path, named ? "; use " : "", a->value);
  if (!maps) {                                    /* config_rules.c says what these come to */
    if (keep) c->values[alias] = (z3i_value){ .given = true, .node = node };
    return Z3E_OK;
  }
  int target = z3i_schema_find(a->value);
  Z3I_ASSERT(target >= 0);
  const z3i_value *v = &c->values[target];
  if (keep && v->given)
    return z3i_config_fail(c, Z3E_CONFIG, node, true, "%s and %s are one key: give one of them", path,
                           c->doc->nodes[v->node].key);
  if (z3i_schema_at(target)->type == Z3I_CT_SECTION) return walk_section(c, target, node, keep);
  return z3i_config_value(c, target, node, keep);
}

static int walk_member(z3_config *c, int section, int64_t node, bool keep)
{
  const z3_json_node *n = &c->doc->nodes[node];
  int i = (int64_t)strlen(n->key) == n->key_bytes ? z3i_schema_child(section, n->key) : -1;
  if (i < 0) return unknown(c, section, node);
  switch (z3i_schema_at(i)->type) {
  case Z3I_CT_ALIAS:
  case Z3I_CT_OLD: return walk_alias(c, i, node, keep);
  default: break;
  }
  if (keep && c->values[i].given) {
    char path[256];
    return z3i_config_fail(c, Z3E_CONFIG, node, true, "%s and %s are one key: give one of them",
                           z3i_schema_path(i, path, sizeof path), c->doc->nodes[c->values[i].node].key);
  }
  if (z3i_schema_at(i)->type == Z3I_CT_SECTION) return walk_section(c, i, node, keep);
  if (z3i_schema_at(i)->type == Z3I_CT_GROUPS) Z3I_TRY(walk_groups(c, i, node));
  return z3i_config_value(c, i, node, keep);
}

int z3i_config_walk(z3_config *c, int section, int64_t node, bool keep)
{
  bool own = (strcmp(z3i_schema_at(section)->name, "optimizer") == 0 && (c->flags & Z3CFG_OWN_OPTIMIZER) != 0) ||
             (strcmp(z3i_schema_at(section)->name, "scheduler") == 0 && (c->flags & Z3CFG_OWN_SCHEDULE) != 0);
  if (own) c->values[section] = (z3i_value){ .given = false, .node = node };   /* what it asks for is overridden */
  for (int64_t i = node + 1; i < c->doc->nodes[node].next; i = c->doc->nodes[i].next)
    Z3I_TRY(walk_member(c, section, i, keep && !own));
  return Z3E_OK;
}

/* ---- entry points -------------------------------------------------------------------------------- */
static int read_text(z3_config *c, const char *text, size_t bytes)
{
  Z3I_TRY(z3i_json_parse(text, bytes, c->name, Z3J_RELAXED, Z3E_CONFIG, &c->doc));
  if (c->doc->nodes[0].kind != Z3J_OBJECT && !(c->name == NULL && c->doc->nodes[0].count == 0)) {
    char shown[100];
    return z3i_config_fail(c, Z3E_CONFIG, 0, false, "the text is %s; wants an object, { \"key\": value, ... }",
                           z3i_config_show(c, 0, shown, sizeof shown));
  }
  Z3I_TRY(z3i_config_walk(c, 0, 0, true));
  Z3I_TRY(z3i_config_rules(c));
  Z3I_TRY(z3i_config_status(c));
  Z3I_TRY(c->warnings.rc);
  Z3I_TRY(c->derived.rc);
  return z3i_config_dump_text(c);
}

int z3_config_parse(const char *text, int64_t bytes, const char *name, int world, int flags, z3_config **out)
{
  Z3I_REQUIRE(out != NULL, "config: out is NULL");
  *out = NULL;
  Z3I_REQUIRE(bytes >= 0 && (text != NULL || bytes == 0), "config: text is NULL or of %" PRId64 " bytes", bytes);
  Z3I_REQUIRE(world >= 1, "config: world is %d, wants >= 1", world);
  z3_config *c = z3i_alloc(sizeof *c);
  if (c == NULL) return Z3E_OOM;
  c->world = world;
  c->flags = flags;
  c->name = name != NULL && name[0] != '\0' ? z3i_strdup(name) : NULL;
  c->values = z3i_alloc((size_t)z3i_schema_count() * sizeof *c->values);
  int rc = c->values == NULL || (name != NULL && name[0] != '\0' && c->name == NULL) ? Z3E_OOM : Z3E_OK;
  for (int i = 0; rc == Z3E_OK && i < z3i_schema_count(); i++) c->values[i].node = -1;
  if (rc == Z3E_OK) rc = read_text(c, text, (size_t)bytes);
  if (rc != Z3E_OK) {
    z3_config_free(c);
    return z3i_trace(__FILE__, __LINE__, __func__, rc);
  }
  *out = c;
  return Z3E_OK;
}

static int read_file(FILE *f, const char *path, z3i_text *t)
{
  char part[4096];
  size_t n;
  errno = 0;
  while ((n = fread(part, 1, sizeof part, f)) > 0) {
    z3i_text_add(t, part, n);
    if (t->used > FILE_BYTES_MAX) return Z3I_FAIL(Z3E_CONFIG, "%s: more than 16 MiB is no configuration", path);
  }
  if (ferror(f)) return Z3I_FAIL(Z3E_IO, "cannot read configuration %s: %s", path, strerror(errno));
  return t->rc;
}

int z3_config_load(const char *path, int world, int flags, z3_config **out)
{
  Z3I_REQUIRE(out != NULL && path != NULL, "config: path or out is NULL");
  *out = NULL;
  FILE *f = fopen(path, "rb");
  if (f == NULL) return Z3I_FAIL(Z3E_IO, "cannot open configuration %s: %s", path, strerror(errno));
  z3i_text text = { 0 };
  int rc = read_file(f, path, &text);
  fclose(f);
  if (rc == Z3E_OK) rc = z3_config_parse(text.p != NULL ? text.p : "", (int64_t)text.used, path, world, flags, out);
  z3i_text_free(&text);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

void z3_config_free(z3_config *c)
{
  if (c == NULL) return;
  for (int i = 0; c->values != NULL && i < z3i_schema_count(); i++) {
    z3i_free(c->values[i].json);
    z3i_free(c->values[i].text);
  }
  z3i_free(c->values);
  z3i_free(c->name);
  z3_json_free(c->doc);
  z3i_text_free(&c->warnings);
  z3i_text_free(&c->derived);
  z3i_text_free(&c->dump);
  z3i_free(c);
}

/* ---- effective values ---------------------------------------------------------------------------- */
int64_t z3i_config_node(const z3_config *c, const char *path) { return c->values[z3i_schema_find(path)].node; }
bool z3i_config_has(const z3_config *c, const char *path) { return c->values[z3i_schema_find(path)].given; }

static double number_of(const z3_config *c, int i)
{
  const char *value = z3i_schema_at(i)->value;
  if (c->values[i].json != NULL) return c->values[i].number;
  return strcmp(value, "true") == 0 ? 1 : z3i_decimal(value, NULL);
}

double z3i_config_num(const z3_config *c, const char *path) { return number_of(c, z3i_schema_find(path)); }

static const char *text_of(const z3_config *c, int i)
{
  const char *value = c->values[i].json != NULL ? c->values[i].text : z3i_schema_at(i)->value;
  return value != NULL && strcmp(value, "null") != 0 ? value : "";
}

bool z3i_config_is(const z3_config *c, const char *path, const char *text)
{
  return strcmp(text_of(c, z3i_schema_find(path)), text) == 0;
}

/* "optimizer.params.lr" is the lr of the type in force. */
static int find_typed(const z3_config *c, const char *key)
{
  static const char *const sections[] = { "optimizer.params.", "scheduler.params." };
  for (int s = 0; s < 2; s++) {
    size_t n = strlen(sections[s]);
    for (int i = 0; strncmp(key, sections[s], n) == 0 && i < z3i_schema_count(); i++) {
      const z3i_key *k = z3i_schema_at(i);
      bool typed = k->type == Z3I_CT_SECTION && strncmp(k->name, sections[s], n - 1) == 0 && k->name[n - 1] == '@';
      if (typed && c->values[i].given) return z3i_schema_child(i, key + n);
    }
  }
  return z3i_schema_find(key);
}

static int find_key(const z3_config *c, const char *key, int *index)
{
  char nearest[256];
  Z3I_REQUIRE(c != NULL && key != NULL, "config: no configuration or no key");
  *index = find_typed(c, key);
  Z3I_REQUIRE(*index >= 0 && z3i_schema_at(*index)->type >= Z3I_CT_BOOL, "config: no key '%s'; the nearest is '%s'",
              key, z3i_schema_nearest(0, key, nearest, sizeof nearest));
  return Z3E_OK;
}

int z3_config_number(const z3_config *c, const char *key, double *out)
{
  int i;
  Z3I_TRY(find_key(c, key, &i));
  const z3i_key *k = z3i_schema_at(i);
  bool number = k->type != Z3I_CT_STR && k->type != Z3I_CT_PATH && k->type != Z3I_CT_ENUM && k->type < Z3I_CT_INTS;
  bool null = c->values[i].json == NULL ? strcmp(k->value, "null") == 0 : strcmp(c->values[i].json, "null") == 0;
  Z3I_REQUIRE(number && !null && out != NULL, "config: %s is %s", key, null ? "null" : "no number");
  *out = number_of(c, i);
  return Z3E_OK;
}

int z3_config_string(const z3_config *c, const char *key, const char **out)
{
  int i;
  Z3I_TRY(find_key(c, key, &i));
  const z3i_key *k = z3i_schema_at(i);
  bool null = c->values[i].json == NULL && (strcmp(k->value, "null") == 0 || k->value[0] == '!');
  Z3I_REQUIRE((k->type == Z3I_CT_STR || k->type == Z3I_CT_PATH || k->type == Z3I_CT_ENUM) && !null && out != NULL,
              "config: %s is %s", key, null ? "null" : "no text");
  *out = text_of(c, i);
  return Z3E_OK;
}

bool z3_config_given(const z3_config *c, const char *key)
{
  int i = c != NULL && key != NULL ? find_typed(c, key) : -1;
  return i >= 0 && c->values[i].given;
}

const char *z3_config_dump(const z3_config *c) { return c != NULL && c->dump.p != NULL ? c->dump.p : ""; }
const char *z3_config_warnings(const z3_config *c) { return c != NULL && c->warnings.p != NULL ? c->warnings.p : ""; }
const char *z3_config_derived(const z3_config *c) { return c != NULL && c->derived.p != NULL ? c->derived.p : ""; }
