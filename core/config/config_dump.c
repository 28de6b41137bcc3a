/* config_dump.c -- the effective configuration as JSON in DeepSpeed's structure, every default filled in. */
#include <stdio.h>

#include "config/config_state.h"

static void indent(z3i_text *t, int depth, bool first)
{
  z3i_text_fmt(t, "%s\n%*s", first ? "" : ",", depth * 2, "");
}

static void dump_value(z3i_text *t, const z3_config *c, int key)
{
  const z3i_key *k = z3i_schema_at(key);
  const char *json = c->values[key].json;
  bool text = k->type == Z3I_CT_STR || k->type == Z3I_CT_PATH || k->type == Z3I_CT_ENUM || k->type == Z3I_CT_INTAUTO;
  if (json != NULL) z3i_text_str(t, json);
  else if (k->value[0] == '!') z3i_text_str(t, "null");
  else if (text && strcmp(k->value, "null") != 0) z3i_text_fmt(t, "\"%s\"", k->value);
  else z3i_text_str(t, k->value);
}

static void dump_section(z3i_text *t, const z3_config *c, int section, int depth);

/* "params": its keys depend on the section's type. */
static void dump_params(z3i_text *t, const z3_config *c, int key, int depth)
{
  for (int i = 0; i < z3i_schema_count(); i++) {
    char path[256], params[256];
    const z3i_key *k = z3i_schema_at(i);
    if (k->type != Z3I_CT_SECTION || !c->values[i].given || strchr(k->name, '@') == NULL) continue;
    z3i_schema_path(i, path, sizeof path);
    if (strcmp(path, z3i_schema_path(key, params, sizeof params)) != 0) continue;
    dump_section(t, c, i, depth);
    return;
  }
  dump_value(t, c, key);
}

static void dump_section(z3i_text *t, const z3_config *c, int section, int depth)
{
  bool first = true;
  z3i_text_str(t, "{");
  for (int i = section + 1; i < z3i_schema_count() && z3i_schema_at(i)->type != Z3I_CT_SECTION; i++) {
    const z3i_key *k = z3i_schema_at(i);
    if (k->type == Z3I_CT_ALIAS || k->type == Z3I_CT_OLD) continue;
    indent(t, depth + 1, first);
    z3i_text_fmt(t, "\"%s\": ", k->name);
    if (k->type == Z3I_CT_PARAMS) dump_params(t, c, i, depth + 1);
    else dump_value(t, c, i);
    first = false;
  }
  for (int i = 0; i < z3i_schema_count(); i++) {
    const z3i_key *k = z3i_schema_at(i);
    if (k->type != Z3I_CT_SECTION || i == 0 || z3i_schema_parent(i) != section) continue;
    if (strpbrk(k->name, "@*") != NULL) continue;
    bool present = (k->value[0] != '+' && k->value[0] != '*') || c->values[i].given;
    const char *dot = strrchr(k->name, '.');
    indent(t, depth + 1, first);
    z3i_text_fmt(t, "\"%s\": ", dot != NULL ? dot + 1 : k->name);
    if (present) dump_section(t, c, i, depth + 1);
    else z3i_text_str(t, "null");
    first = false;
  }
  if (!first) indent(t, depth, true);
  z3i_text_str(t, "}");
}

int z3i_config_dump_text(z3_config *c)
{
  dump_section(&c->dump, c, 0, 0);
  z3i_text_str(&c->dump, "\n");
  return c->dump.rc;
}
