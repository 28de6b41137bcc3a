/* config_value.c -- one value of a configuration: its type, its range, and how to say that it is wrong. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "config/config_state.h"

static const double MOST_WHOLE = 9007199254740992.0;   /* 2^53: beyond it a Lua number skips whole numbers */

/* ---- messages ------------------------------------------------------------------------------------ */
static void place(const z3_config *c, int64_t node, bool at_key, char *room, size_t room_bytes)
{
  if (c->name == NULL) {
    snprintf(room, room_bytes, "config");
  } else if (node < 0) {
    snprintf(room, room_bytes, "%.240s", c->name);
  } else {
    const z3_json_node *n = &c->doc->nodes[node];
    bool key = at_key && n->key_line > 0;
    z3i_json_place(room, room_bytes, c->name, key ? n->key_line : n->line, key ? n->key_column : n->column);
  }
}

int z3i_config_fail(const z3_config *c, int code, int64_t node, bool at_key, const char *fmt, ...)
{
  char where[300], what[1200];
  va_list args;
  va_start(args, fmt);
  vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  place(c, node, at_key, where, sizeof where);
  return Z3I_FAIL(code, "%s: %s", where, what);
}

void z3i_config_warn(z3_config *c, int64_t node, const char *fmt, ...)
{
  char where[300], what[600];
  va_list args;
  va_start(args, fmt);
  vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  place(c, node, true, where, sizeof where);
  z3i_text_fmt(&c->warnings, "%s%s: %s", c->warnings.used > 0 ? "\n" : "", where, what);
}

char *z3i_config_show(const z3_config *c, int64_t node, char *room, size_t room_bytes)
{
  z3i_text t = { 0 };
  const z3_json_node *n = &c->doc->nodes[node];
  if (n->kind == Z3J_OBJECT && n->count > 0) z3i_text_str(&t, "an object");
  else if (n->kind == Z3J_ARRAY && n->count > 8) z3i_text_fmt(&t, "a list of %" PRId64, n->count);
  else z3i_json_write(&t, c->doc, node);
  if (t.used > 80) snprintf(room, room_bytes, "%.77s...", t.p);
  else snprintf(room, room_bytes, "%s", t.p != NULL ? t.p : "?");
  z3i_text_free(&t);
  return room;
}

char *z3i_config_wants(int key, char *room, size_t room_bytes)
{
  const z3i_key *k = z3i_schema_at(key);
  static const char *const what[Z3I_CT_COUNT] = {
    [Z3I_CT_BOOL] = "true or false", [Z3I_CT_INT] = "a whole number", [Z3I_CT_LENGTH] = "a whole number",
    [Z3I_CT_NUM] = "a number", [Z3I_CT_RATE] = "a number", [Z3I_CT_STR] = "text", [Z3I_CT_PATH] = "a path as text",
    [Z3I_CT_SIZE] = "bytes: a whole number, or text like \"64MiB\",", [Z3I_CT_INTS] = "a list of whole numbers",
    [Z3I_CT_STRS] = "a list of texts", [Z3I_CT_PAIR] = "a list of two numbers",
    [Z3I_CT_INTAUTO] = "\"auto\" or a whole number",
    [Z3I_CT_ENUM] = "one of", [Z3I_CT_PARAMS] = "an object", [Z3I_CT_GROUPS] = "an object of objects",
    [Z3I_CT_SECTION] = "an object",
  };
  z3i_text t = { 0 };
  z3i_text_str(&t, what[k->type] != NULL ? what[k->type] : "a value");
  if (k->type == Z3I_CT_ENUM) {
    const char *words = k->range, *word;
    size_t n;
    for (int i = 0; (n = z3i_word_next(&words, &word)) > 0; i++)
      z3i_text_fmt(&t, "%s \"%.*s\"", i > 0 ? "," : "", (int)n, word);
  } else if (k->range[0] != '\0') {
    z3i_text_fmt(&t, "%s %s", k->range[0] == '>' || k->range[0] == '<' ? "" : " in", k->range);
  }
  if (k->unit[0] != '\0' && k->type != Z3I_CT_SIZE) z3i_text_fmt(&t, " (%s)", k->unit);
  snprintf(room, room_bytes, "%s", t.p != NULL ? t.p : "");
  z3i_text_free(&t);
  return room;
}

static int wrong(const z3_config *c, int key, int64_t node)
{
  char path[256], shown[100], wants[300];
  const z3i_key *k = z3i_schema_at(key);
  bool null = c->doc->nodes[node].kind == Z3J_NULL;
  return z3i_config_fail(c, Z3E_CONFIG, node, false, "%s is %s; wants %s%s%s", z3i_schema_path(key, path, sizeof path),
                         z3i_config_show(c, node, shown, sizeof shown), z3i_config_wants(key, wants, sizeof wants),
                         null && k->value[0] != '!' ? "; leave the key out for its default, " : "",
                         null && k->value[0] != '!' ? k->value : "");
}

/* ---- reading ------------------------------------------------------------------------------------- */
static bool is_text(const z3_json_node *n, const char *text)
{
  return n->kind == Z3J_STRING && n->text_bytes == (int64_t)strlen(text) && strcasecmp(n->text, text) == 0;
}

/* Numbers, also in quotes: DeepSpeed takes those. Digits only when `whole`. */
static bool read_number(const z3_json_node *n, bool whole, double *out)
{
  if (n->kind == Z3J_NUMBER) {
    *out = n->whole_ok ? (double)n->whole : n->number;
    return !whole || n->number == floor(n->number);
  }
  if (n->kind != Z3J_STRING || n->text_bytes == 0 || n->text_bytes > 60) return false;
  size_t digits = strspn(n->text + (n->text[0] == '-'), whole ? "0123456789" : "0123456789.eE+-");
  if (digits == 0 || digits + (n->text[0] == '-') != (size_t)n->text_bytes) return false;
  char *end;
  *out = z3i_decimal(n->text, &end);
  return *end == '\0' && isfinite(*out);
}

static bool read_bool(const z3_json_node *n, double *out)
{
  bool yes = n->kind == Z3J_TRUE || is_text(n, "true") || (n->kind == Z3J_NUMBER && n->number == 1);
  bool no = n->kind == Z3J_FALSE || is_text(n, "false") || (n->kind == Z3J_NUMBER && n->number == 0);
  *out = yes;
  return yes || no;
}

/* "64MiB", "1.5 GB": decimal and binary units. */
static bool read_size(const z3_json_node *n, double *out)
{
  static const struct { const char *unit; double bytes; } units[] = {
    { "", 1 }, { "B", 1 }, { "kB", 1e3 }, { "MB", 1e6 }, { "GB", 1e9 }, { "TB", 1e12 },
    { "KiB", 1024.0 }, { "MiB", 1048576.0 }, { "GiB", 1073741824.0 }, { "TiB", 1099511627776.0 },
  };
  if (n->kind != Z3J_STRING) return read_number(n, true, out);
  bool plain = (int64_t)strlen(n->text) == n->text_bytes && n->text_bytes <= 60;
  if (!plain || n->text[0] < '0' || n->text[0] > '9') return false;
  size_t digits = strspn(n->text, "0123456789.");   /* no exponent: "1EB" would be one */
  char number[64], *end;
  memcpy(number, n->text, digits);
  number[digits] = '\0';
  double value = z3i_decimal(number, &end);
  const char *unit = n->text + digits + (n->text[digits] == ' ');
  if (*end != '\0') return false;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (strcasecmp(unit, units[i].unit) != 0) continue;
    *out = value * units[i].bytes;
    return *out == floor(*out);
  }
  return false;
}

static bool one_number(const z3i_key *k, const z3_json_node *n, double *out)
{
  bool whole = k->type == Z3I_CT_INT || k->type == Z3I_CT_LENGTH || k->type == Z3I_CT_INTAUTO || k->type == Z3I_CT_INTS;
  bool ok = k->type == Z3I_CT_SIZE ? read_size(n, out) : k->type == Z3I_CT_BOOL ? read_bool(n, out)
                                                                                  : read_number(n, whole, out);
  /* zero_optimization.stage: DeepSpeed reads true as 1. */
  if (!ok && k->type == Z3I_CT_INT && strcmp(k->name, "stage") == 0) ok = read_bool(n, out);
  if (!ok || !z3i_range_holds(k->range, *out)) return false;
  if (!whole && k->type != Z3I_CT_SIZE) return true;
  if (strcmp(k->unit, "elements") == 0 && *out > MOST_WHOLE) *out = MOST_WHOLE;   /* as good as no bound */
  return fabs(*out) <= MOST_WHOLE;
}

/* A list, and what stands for one: a single text for a list of texts, and Lua's {}. */
static bool read_list(const z3_config *c, const z3i_key *k, int64_t node, z3i_text *json)
{
  const z3_json_node *n = &c->doc->nodes[node];
  bool texts = k->type == Z3I_CT_STRS, single = texts && n->kind == Z3J_STRING;
  bool empty = n->kind == Z3J_OBJECT && n->count == 0;
  if (n->kind != Z3J_ARRAY && !single && !empty) return false;
  if (k->type == Z3I_CT_PAIR && n->count != 2) return false;
  z3i_text_str(json, "[");
  for (int64_t i = single ? node : node + 1; i < n->next; i = c->doc->nodes[i].next) {
    const z3_json_node *entry = &c->doc->nodes[i];
    double number = 0;
    if (json->used > 1) z3i_text_str(json, ", ");
    if (texts ? entry->kind != Z3J_STRING : !one_number(k, entry, &number)) return false;
    if (texts) z3i_json_write(json, c->doc, i);
    else z3i_text_number(json, number);
  }
  z3i_text_str(json, "]");
  return true;
}

static bool read_enum(const z3i_key *k, const z3_json_node *n, z3i_text *text)
{
  const char *words = k->range, *word;
  size_t bytes;
  if (n->kind != Z3J_STRING) return false;
  while ((bytes = z3i_word_next(&words, &word)) > 0) {
    if (bytes != (size_t)n->text_bytes || strncasecmp(word, n->text, bytes) != 0) continue;
    z3i_text_add(text, word, bytes);
    return true;
  }
  return false;
}

/* Fills json (always) and number or text (by type); false: of another type or out of range. */
static bool read_value(const z3_config *c, int key, int64_t node, z3i_text *json, z3i_text *text, double *number)
{
  const z3i_key *k = z3i_schema_at(key);
  const z3_json_node *n = &c->doc->nodes[node];
  switch (k->type) {
  case Z3I_CT_STR:
  case Z3I_CT_PATH:
    if (n->kind != Z3J_STRING || (int64_t)strlen(n->text) != n->text_bytes) return false;
    z3i_text_add(text, n->text, (size_t)n->text_bytes);
    break;
  case Z3I_CT_ENUM:
    if (!read_enum(k, n, text)) return false;
    break;
  case Z3I_CT_INTS:
  case Z3I_CT_STRS:
  case Z3I_CT_PAIR: return read_list(c, k, node, json);
  case Z3I_CT_PARAMS:
  case Z3I_CT_GROUPS:
    if (n->kind != Z3J_OBJECT) return false;      /* fallthrough */
  case Z3I_CT_ANY:
    z3i_json_write(json, c->doc, node);
    return true;
  case Z3I_CT_BOOL:
    if (!one_number(k, n, number)) return false;
    z3i_text_str(json, *number != 0 ? "true" : "false");
    return true;
  default:
    if (!one_number(k, n, number)) return false;
    z3i_text_number(json, *number);
    return true;
  }
  z3i_json_quote(json, text->p != NULL ? text->p : "", text->used);
  return true;
}

bool z3i_config_absent(const z3_config *c, int key, int64_t node)
{
  const z3i_key *k = z3i_schema_at(key);
  const z3_json_node *n = &c->doc->nodes[node];
  if (n->kind == Z3J_NULL) return k->type == Z3I_CT_SECTION || strcmp(k->value, "null") == 0;
  return n->kind == Z3J_STRING && n->text_bytes == 4 && memcmp(n->text, "auto", 4) == 0;
}

static void replace(z3i_value *v, z3i_text *json, z3i_text *text, double number)
{
  z3i_free(v->json);
  z3i_free(v->text);
  v->json = json->p;
  v->text = text->p;
  v->number = number;
  *json = *text = (z3i_text){ 0 };
}

int z3i_config_value(z3_config *c, int key, int64_t node, bool keep)
{
  const z3i_key *k = z3i_schema_at(key);
  z3i_value *v = &c->values[key];
  char path[256];
  if (z3i_config_absent(c, key, node)) {
    bool rate = k->type == Z3I_CT_RATE || k->type == Z3I_CT_LENGTH;
    if (!rate || !keep || c->doc->nodes[node].kind == Z3J_NULL) return Z3E_OK;
    return z3i_config_fail(c, Z3E_CONFIG, node, false, "%s is \"auto\", and nothing here could tell it; wants %s",
                           z3i_schema_path(key, path, sizeof path), z3i_config_wants(key, (char[300]){ 0 }, 300));
  }
  if (k->type == Z3I_CT_RATE && c->doc->nodes[node].kind == Z3J_ARRAY)
    return z3i_config_fail(c, Z3E_UNSUPPORTED, node, false, "not supported yet: %s as a list of one rate per group",
                           z3i_schema_path(key, path, sizeof path));
  z3i_text json = { 0 }, text = { 0 };
  double number = 0;
  bool fits = read_value(c, key, node, &json, &text, &number);
  if (fits && text.p == NULL && text.rc == Z3E_OK) z3i_text_str(&text, "");
  int rc = json.rc != Z3E_OK ? json.rc : text.rc;
  if (rc == Z3E_OK && !fits) rc = wrong(c, key, node);
  if (rc == Z3E_OK && keep) {
    replace(v, &json, &text, number);
    v->given = true;
    v->node = node;
  }
  z3i_text_free(&json);
  z3i_text_free(&text);
  return rc;
}

int z3i_config_set(z3_config *c, int key, double number, const char *json)
{
  z3i_text copy = { 0 }, text = { 0 };
  z3i_text_str(&copy, json);
  z3i_text_str(&text, "");
  if (json[0] == '"') {                           /* only plain words come here */
    z3i_text_free(&text);
    z3i_text_add(&text, json + 1, strlen(json) - 2);
  }
  int rc = copy.rc != Z3E_OK ? copy.rc : text.rc;
  if (rc == Z3E_OK) replace(&c->values[key], &copy, &text, number);
  z3i_text_free(&copy);
  z3i_text_free(&text);
  return rc;
}
