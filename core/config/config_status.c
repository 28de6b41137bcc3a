/* config_status.c -- refuses, by name, what a configuration asks for and the library doesn't do yet. */
#include <stdio.h>

#include "config/config_state.h"

static bool is_default(const z3_config *c, int key)
{
  const z3i_key *k = z3i_schema_at(key);
  const z3i_value *v = &c->values[key];
  if (v->json == NULL) return true;
  if (strcmp(k->value, "null") == 0 || k->type >= Z3I_CT_INTS) return strcmp(v->json, k->value) == 0;
  if (v->text != NULL && v->json[0] == '"') return strcmp(v->text, k->value) == 0;
  return v->number == (strcmp(k->value, "true") == 0 ? 1 : z3i_decimal(k->value, NULL));
}

/* The key that turns a section on; -1: it has none. */
static int switch_of(int section)
{
  const z3i_key *k = z3i_schema_at(section);
  char path[256];
  if (k->value[0] == '\0' || k->value[0] == '+' || k->value[0] == '*') return -1;
  snprintf(path, sizeof path, "%s.%s", k->name, k->value);
  return z3i_schema_find(path);
}

/* A section whose switch is off asks for nothing; nor does one inside it. */
static bool switched_off(const z3_config *c, int section)
{
  for (int s = section; s > 0; s = z3i_schema_parent(s))
    if (switch_of(s) >= 0 && is_default(c, switch_of(s))) return true;   /* every switch's default is off */
  return false;
}

/* Values that come to what the library does anyway. */
static bool works_anyway(const z3_config *c, int key)
{
  char path[256];
  z3i_schema_path(key, path, sizeof path);
  if (strcmp(path, "data_types.grad_accum_dtype") == 0) return z3i_config_is(c, path, "fp32");
  if (strcmp(path, "data_types.param_dtype") == 0) return true;   /* config_rules.c: it is the compute type */
  return false;
}

static bool refused(const z3_config *c, int i)
{
  const z3i_key *k = z3i_schema_at(i);
  if (k->type == Z3I_CT_SECTION)
    return k->value[0] == '*' && c->values[i].given && !switched_off(c, z3i_schema_parent(i));
  bool open = k->status == Z3I_CS_BUILT || k->status == Z3I_CS_HINT || (k->status == Z3I_CS_RANKS && c->world == 1);
  if (open || k->type < Z3I_CT_BOOL || c->values[i].node < 0) return false;
  int section = z3i_schema_section(i);
  if (switch_of(section) >= 0 && switch_of(section) != i) return false;   /* the switch answers for its section */
  return !is_default(c, i) && !switched_off(c, section) && !works_anyway(c, i);
}

int z3i_config_status(const z3_config *c)
{
  z3i_text rest = { 0 };
  int first = -1, more = 0;
  char path[256], value[100] = "";
  for (int i = 0; i < z3i_schema_count(); i++) {
    if (!refused(c, i)) continue;
    if (first < 0) first = i;
    else if (more++ < 12)
      z3i_text_fmt(&rest, "%s%s", more > 1 ? ", " : "; nor ", z3i_schema_path(i, path, sizeof path));
  }
  int rc = rest.rc;
  if (first >= 0 && rc == Z3E_OK) {
    if (c->values[first].json != NULL) snprintf(value, sizeof value, " = %.80s", c->values[first].json);
    rc = z3i_config_fail(c, Z3E_UNSUPPORTED, c->values[first].node, true, "not supported yet: %s%s%s%s",
                         z3i_schema_path(first, path, sizeof path), value,
                         z3i_schema_at(first)->status == Z3I_CS_RANKS ? " on more than one rank" : "",
                         rest.p != NULL ? rest.p : "");
  }
  z3i_text_free(&rest);
  return rc;
}
