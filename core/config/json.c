/* json.c -- JSON text to nodes; the only user of cJSON.
 * json_scan.c has checked the text by the time cJSON builds its tree, which decodes and owns the strings. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

#include "config/json.h"

/* C0 80 back into NUL, in place; returns the length. */
static int64_t restore_nul(char *s, bool has_nul)
{
  size_t n = strlen(s), used = 0;
  if (!has_nul) return (int64_t)n;
  for (size_t i = 0; i < n; i++) {
    bool nul = (unsigned char)s[i] == 0xC0;       /* the scanner lets no other C0 through */
    s[used++] = nul ? '\0' : s[i];
    if (nul) i++;
  }
  s[used] = '\0';
  return (int64_t)used;
}

/* Gives nodes their keys and texts: the tree has the same values in the same order. */
static int attach(z3_json *doc, const cJSON *item, int64_t *index, bool has_nul)
{
  for (; item != NULL; item = item->next) {
    Z3I_ASSERT(*index < doc->count);
    z3_json_node *n = &doc->nodes[(*index)++];
    if (item->string != NULL) {
      n->key = item->string;
      n->key_bytes = restore_nul(item->string, has_nul);
    }
    if (n->kind == Z3J_STRING) {
      Z3I_ASSERT(cJSON_IsString(item));
      n->text = item->valuestring;
      n->text_bytes = restore_nul(item->valuestring, has_nul);
    }
    if (item->child != NULL) Z3I_TRY(attach(doc, item->child, index, has_nul));
  }
  return Z3E_OK;
}

static int compare_keys(const void *a, const void *b)
{
  const z3_json_node *x = *(z3_json_node *const *)a, *y = *(z3_json_node *const *)b;
  int order = memcmp(x->key, y->key, (size_t)Z3I_MIN(x->key_bytes, y->key_bytes));
  if (order != 0) return order;
  if (x->key_bytes != y->key_bytes) return x->key_bytes < y->key_bytes ? -1 : 1;
  return x < y ? -1 : x > y;
}

/* Sorting keeps an object of many names cheap whatever the names are; a hash table could be made to collide. */
static int check_duplicates(const z3_json *doc, const char *name, int code)
{
  int64_t most = 0;
  for (int64_t i = 0; i < doc->count; i++)
    if (doc->nodes[i].kind == Z3J_OBJECT) most = Z3I_MAX(most, doc->nodes[i].count);
  if (most < 2) return Z3E_OK;
  z3_json_node **sorted = z3i_alloc((size_t)most * sizeof *sorted);
  if (sorted == NULL) return Z3E_OOM;
  int rc = Z3E_OK;
  for (int64_t i = 0; i < doc->count && rc == Z3E_OK; i++) {
    if (doc->nodes[i].kind != Z3J_OBJECT || doc->nodes[i].count < 2) continue;
    size_t n = 0;
    for (int64_t j = i + 1; j < doc->nodes[i].next; j = doc->nodes[j].next) sorted[n++] = &doc->nodes[j];
    qsort(sorted, n, sizeof *sorted, compare_keys);
    for (size_t k = 1; k < n && rc == Z3E_OK; k++) {
      const z3_json_node *a = sorted[k - 1], *b = sorted[k];
      if (a->key_bytes != b->key_bytes || memcmp(a->key, b->key, (size_t)a->key_bytes) != 0) continue;
      char place[300];
      rc = Z3I_FAIL(code, "%s: duplicate key '%.200s' (first on line %d)",
                    z3i_json_place(place, sizeof place, name, b->key_line, b->key_column), b->key, a->key_line);
    }
  }
  z3i_free(sorted);
  return rc;
}

static int build(z3_json *doc, z3i_json_scan *scan, const char *name, int code)
{
  doc->nodes = scan->nodes;
  doc->count = scan->count;
  scan->nodes = NULL;
  doc->tree = cJSON_ParseWithLength(scan->strict.p, scan->strict.used);
  if (doc->tree == NULL) return Z3I_FAIL(Z3E_OOM, "out of host memory: the tree of a JSON text");
  int64_t index = 0;
  Z3I_TRY(attach(doc, doc->tree, &index, scan->has_nul));
  Z3I_ASSERT(index == doc->count);
  return check_duplicates(doc, name, code);
}

int z3i_json_parse(const char *text, size_t bytes, const char *name, int flags, int code, z3_json **out)
{
  *out = NULL;
  z3i_json_scan scan = { 0 };
  z3_json *doc = z3i_alloc(sizeof *doc);
  int rc = doc == NULL ? Z3E_OOM : z3i_json_scan_text(&scan, text, bytes, name, flags, code);
  if (rc == Z3E_OK) rc = build(doc, &scan, name, code);
  z3i_text_free(&scan.strict);
  z3i_free(scan.nodes);
  if (rc != Z3E_OK) {
    z3_json_free(doc);
    return z3i_trace(__FILE__, __LINE__, __func__, rc);
  }
  *out = doc;
  return Z3E_OK;
}

int z3_json_parse(const char *text, int64_t bytes, const char *name, int flags, z3_json **out)
{
  Z3I_REQUIRE(out != NULL, "json: out is NULL");
  *out = NULL;
  Z3I_REQUIRE(bytes >= 0 && (text != NULL || bytes == 0), "json: text is NULL or of %" PRId64 " bytes", bytes);
  return z3i_json_parse(text, (size_t)bytes, name, flags, Z3E_CORRUPT, out);
}

const z3_json_node *z3_json_nodes(const z3_json *doc) { return doc == NULL ? NULL : doc->nodes; }
int64_t z3_json_count(const z3_json *doc) { return doc == NULL ? 0 : doc->count; }

void z3_json_free(z3_json *doc)
{
  if (doc == NULL) return;
  cJSON_Delete(doc->tree);
  z3i_free(doc->nodes);
  z3i_free(doc);
}

int64_t z3i_json_member(const z3_json *doc, int64_t object, const char *key)
{
  if (object < 0 || doc->nodes[object].kind != Z3J_OBJECT) return -1;
  size_t n = strlen(key);
  for (int64_t i = object + 1; i < doc->nodes[object].next; i = doc->nodes[i].next)
    if (doc->nodes[i].key_bytes == (int64_t)n && memcmp(doc->nodes[i].key, key, n) == 0) return i;
  return -1;
}

void z3i_json_quote(z3i_text *t, const char *bytes, size_t n)
{
  z3i_text_add(t, "\"", 1);
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)bytes[i];
    if (c == '"' || c == '\\') z3i_text_fmt(t, "\\%c", c);
    else if (c == '\n') z3i_text_add(t, "\\n", 2);
    else if (c == '\t') z3i_text_add(t, "\\t", 2);
    else if (c < 0x20) z3i_text_fmt(t, "\\u%04x", c);
    else z3i_text_add(t, &bytes[i], 1);
  }
  z3i_text_add(t, "\"", 1);
}

void z3i_json_write(z3i_text *t, const z3_json *doc, int64_t node)
{
  const z3_json_node *n = &doc->nodes[node];
  switch (n->kind) {
  case Z3J_NULL: z3i_text_str(t, "null"); return;
  case Z3J_FALSE: z3i_text_str(t, "false"); return;
  case Z3J_TRUE: z3i_text_str(t, "true"); return;
  case Z3J_STRING: z3i_json_quote(t, n->text, (size_t)n->text_bytes); return;
  case Z3J_NUMBER:
    if (n->whole_ok) z3i_text_fmt(t, "%" PRId64, n->whole);
    else z3i_text_number(t, n->number);
    return;
  default: break;
  }
  bool object = n->kind == Z3J_OBJECT;
  z3i_text_str(t, object ? "{" : "[");
  for (int64_t i = node + 1; i < n->next; i = doc->nodes[i].next) {
    if (i != node + 1) z3i_text_str(t, ", ");
    if (object) {
      z3i_json_quote(t, doc->nodes[i].key, (size_t)doc->nodes[i].key_bytes);
      z3i_text_str(t, ": ");
    }
    z3i_json_write(t, doc, i);
  }
  z3i_text_str(t, object ? "}" : "]");
}

const char *z3i_json_place(char *room, size_t room_bytes, const char *name, int line, int column)
{
  if (name != NULL && name[0] != '\0') snprintf(room, room_bytes, "%.240s:%d:%d", name, line, column);
  else snprintf(room, room_bytes, "line %d, column %d", line, column);
  return room;
}
