/* json_scan.c -- one pass over a JSON text: the grammar, positions, exact numbers, and strict text for cJSON.
 * cJSON alone would cut strings at \u0000, round numbers, read 63 of their characters, accept 01 and broken UTF-8,
 * and tell no line. Sources: RFC 8259 (JSON), RFC 3629 (UTF-8). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "config/json.h"

typedef const unsigned char *bytes_t;

typedef struct scan {
  z3i_json_scan *out;
  bytes_t p, end;
  const char *name;
  int code;
  bool relaxed;
  bool line_ended;                                /* a line ended in the space just skipped */
  int depth;
  bytes_t mark;                                   /* position() has counted up to here */
  int line, column;
} scan;

/* Counts on from the last position asked for: positions are asked for in rising order, so the whole is linear. */
static void position(scan *s, bytes_t at, int *line, int *column)
{
  for (; s->mark < at; s->mark++) {
    if (*s->mark == '\n') {
      s->line++;
      s->column = 1;
    } else if ((*s->mark & 0xC0) != 0x80) {
      s->column++;
    }
  }
  *line = s->line;
  *column = s->column;
}

static int fail_at(scan *s, bytes_t at, const char *what)
{
  char place[300];
  int line, column;
  position(s, at, &line, &column);
  return Z3I_FAIL(s->code, "%s: %s", z3i_json_place(place, sizeof place, s->name, line, column), what);
}

static int fail_char(scan *s, const char *wanted)
{
  char what[200];
  if (s->p >= s->end) snprintf(what, sizeof what, "the text ends where %s should be", wanted);
  else if (*s->p > 0x20 && *s->p < 0x7F) snprintf(what, sizeof what, "'%c' where %s should be", *s->p, wanted);
  else snprintf(what, sizeof what, "byte 0x%02X where %s should be", *s->p, wanted);
  return fail_at(s, s->p, what);
}

static bool at(const scan *s, char c) { return s->p < s->end && *s->p == (unsigned char)c; }
static bool at2(const scan *s, char c, char d) { return s->end - s->p >= 2 && s->p[0] == c && s->p[1] == d; }

static int skip_space(scan *s)
{
  s->line_ended = false;
  for (; s->p < s->end; s->p++) {
    if (*s->p == '\n') {
      s->line_ended = true;
    } else if (*s->p == ' ' || *s->p == '\t' || *s->p == '\r') {
      continue;
    } else if (s->relaxed && (*s->p == '#' || at2(s, '/', '/'))) {
      while (s->p + 1 < s->end && s->p[1] != '\n') s->p++;
    } else if (s->relaxed && at2(s, '/', '*')) {
      bytes_t start = s->p;
      for (s->p += 2; !at2(s, '*', '/'); s->p++) {
        if (s->p >= s->end) return fail_at(s, start, "this comment has no end");
        if (*s->p == '\n') s->line_ended = true;
      }
      s->p++;                                     /* the loop steps over the second character */
    } else {
      return Z3E_OK;
    }
  }
  return Z3E_OK;
}

static int node_new(scan *s, int kind, int64_t *index)
{
  z3i_json_scan *o = s->out;
  if (o->count == Z3I_JSON_NODES) return fail_at(s, s->p, "more than 16777216 values");
  if (o->count == o->room) {
    int64_t room = o->room + o->room / 2 + 32;
    z3_json_node *grown = z3i_realloc(o->nodes, (size_t)room * sizeof *grown);
    if (grown == NULL) return Z3E_OOM;
    o->nodes = grown;
    o->room = room;
  }
  z3_json_node *n = &o->nodes[o->count];
  *n = (z3_json_node){ .kind = kind, .next = o->count + 1, .exact = 1 };
  position(s, s->p, &n->line, &n->column);
  *index = o->count++;
  return Z3E_OK;
}

/* Length of the UTF-8 character at p; 0 when it is broken, overlong, a surrogate or beyond U+10FFFF. */
static int utf8_bytes(bytes_t p, bytes_t end)
{
  int n = *p < 0x80 ? 1 : *p < 0xC2 ? 0 : *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : *p < 0xF5 ? 4 : 0;
  if (n == 0 || end - p < n) return 0;
  for (int i = 1; i < n; i++)
    if ((p[i] & 0xC0) != 0x80) return 0;
  if ((*p == 0xE0 && p[1] < 0xA0) || (*p == 0xED && p[1] > 0x9F)) return 0;
  if ((*p == 0xF0 && p[1] < 0x90) || (*p == 0xF4 && p[1] > 0x8F)) return 0;
  return n;
}

static int hex4(bytes_t p, bytes_t end, unsigned *out)
{
  if (end - p < 4) return -1;
  *out = 0;
  for (int i = 0; i < 4; i++) {
    int c = p[i], v = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    if (v < 0) return -1;
    *out = *out * 16 + (unsigned)v;
  }
  return 0;
}

/* An escape, s->p on its backslash: checks it, and copies it. */
static int scan_escape(scan *s)
{
  static const char simple[] = "\"\\/bfnrt";
  z3i_text *t = &s->out->strict;
  unsigned u, low;
  if (s->end - s->p < 2) return fail_at(s, s->p, "the text ends inside a string");
  if (s->p[1] != 'u') {
    if (s->p[1] == 0 || strchr(simple, s->p[1]) == NULL) return fail_at(s, s->p, "unknown escape in a string");
    z3i_text_add(t, (const char *)s->p, 2);
    s->p += 2;
    return Z3E_OK;
  }
  if (hex4(s->p + 2, s->end, &u) != 0) return fail_at(s, s->p, "\\u wants four hexadecimal digits");
  if (u >= 0xDC00 && u <= 0xDFFF) return fail_at(s, s->p, "\\u escape: a low surrogate without a high one before it");
  if (u >= 0xD800 && u <= 0xDBFF) {
    if (s->end - s->p < 12 || s->p[6] != '\\' || s->p[7] != 'u' || hex4(s->p + 8, s->end, &low) != 0 ||
        low < 0xDC00 || low > 0xDFFF)
      return fail_at(s, s->p, "\\u escape: a high surrogate without a low one after it");
    z3i_text_add(t, (const char *)s->p, 12);
    s->p += 12;
    return Z3E_OK;
  }
  if (u == 0) {
    z3i_text_add(t, "\xC0\x80", 2);
    s->out->has_nul = true;
  } else {
    z3i_text_add(t, (const char *)s->p, 6);
  }
  s->p += 6;
  return Z3E_OK;
}

static int scan_string(scan *s)
{
  z3i_text *t = &s->out->strict;
  bytes_t start = s->p++, run = s->p;
  z3i_text_add(t, "\"", 1);
  while (s->p < s->end && *s->p != '"') {
    if (*s->p == '\\') {
      z3i_text_add(t, (const char *)run, (size_t)(s->p - run));
      Z3I_TRY(scan_escape(s));
      run = s->p;
      continue;
    }
    if (*s->p == '\n') return fail_at(s, start, "this string has no end on its line");
    if (*s->p < 0x20) return fail_at(s, s->p, "a control character in a string; write it as an escape");
    int n = utf8_bytes(s->p, s->end);
    if (n == 0) return fail_at(s, s->p, "a string is not valid UTF-8");
    s->p += n;
  }
  if (s->p >= s->end) return fail_at(s, start, "this string has no end");
  z3i_text_add(t, (const char *)run, (size_t)(s->p - run));
  z3i_text_add(t, "\"", 1);
  s->p++;
  return t->rc;
}

static void scan_digits(scan *s)
{
  while (s->p < s->end && *s->p >= '0' && *s->p <= '9') s->p++;
}

/* Fills the number's fields from its characters, `digits` being those in [text, text + n) without a terminator. */
static int number_fill(z3_json_node *node, const char *text, size_t n, bool *too_large)
{
  char room[64], shown[512], *copy = n < sizeof room ? room : z3i_alloc(n + 1);
  if (copy == NULL) return Z3E_OOM;
  memcpy(copy, text, n);
  copy[n] = '\0';
  double d = node->number = z3i_decimal(copy, NULL);
  *too_large = !isfinite(d);
  if (!*too_large && d == floor(d)) {
    int64_t magnitude = 0;
    bool fits = node->digits != 0;
    for (const char *c = copy + (*copy == '-'); fits && *c != '\0'; c++)
      fits = !__builtin_mul_overflow(magnitude, 10, &magnitude) &&
             !__builtin_add_overflow(magnitude, *c - '0', &magnitude);
    if (fits) node->whole = *copy == '-' ? -magnitude : magnitude;
    else if (fabs(d) <= 9007199254740992.0) node->whole = (int64_t)d;
    node->whole_ok = fits || (!node->digits && fabs(d) <= 9007199254740992.0);
    if (node->digits) {                           /* exact when the double, written out, is the same row of digits */
      int shown_bytes = snprintf(shown, sizeof shown, "%.0f", d);
      node->exact = shown_bytes == (int)n && memcmp(shown, copy, n) == 0;
    }
  }
  if (copy != room) z3i_free(copy);
  return Z3E_OK;
}

static int scan_number(scan *s, int64_t index)
{
  z3_json_node *node = &s->out->nodes[index];
  bytes_t start = s->p;
  bool too_large = false;
  if (at(s, '-')) s->p++;
  if (at(s, '0')) s->p++;
  else if (s->p < s->end && *s->p >= '1' && *s->p <= '9') scan_digits(s);
  else return fail_char(s, "a digit");
  if (s->p < s->end && *s->p >= '0' && *s->p <= '9') return fail_at(s, start, "a number starts with a needless 0");
  node->digits = 1;
  if (at(s, '.')) {
    bytes_t fraction = ++s->p;
    node->digits = 0;
    scan_digits(s);
    if (s->p == fraction) return fail_char(s, "a digit after the decimal point");
  }
  if (at(s, 'e') || at(s, 'E')) {
    s->p++;
    node->digits = 0;
    if (at(s, '+') || at(s, '-')) s->p++;
    bytes_t exponent = s->p;
    scan_digits(s);
    if (s->p == exponent) return fail_char(s, "a digit of the exponent");
  }
  Z3I_TRY(number_fill(node, (const char *)start, (size_t)(s->p - start), &too_large));
  if (too_large) return fail_at(s, start, "this number is beyond a double's range");
  z3i_text_add(&s->out->strict, "0", 1);
  return Z3E_OK;
}

static bool word_char(int c, bool first)
{
  if (c == '_' || ((c | 32) >= 'a' && (c | 32) <= 'z')) return true;
  return !first && ((c >= '0' && c <= '9') || c == '-' || c == '.');
}

static int scan_word(scan *s, int64_t index)
{
  static const struct { const char *text; int kind; } words[] = {
    { "null", Z3J_NULL }, { "false", Z3J_FALSE }, { "true", Z3J_TRUE },
  };
  bytes_t start = s->p;
  while (s->p < s->end && word_char(*s->p, s->p == start)) s->p++;
  size_t n = (size_t)(s->p - start);
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (n != strlen(words[i].text) || memcmp(start, words[i].text, n) != 0) continue;
    s->out->nodes[index].kind = words[i].kind;
    z3i_text_str(&s->out->strict, words[i].text);
    return Z3E_OK;
  }
  char what[120];
  snprintf(what, sizeof what, "'%.*s' is no JSON value: write true, false, null, a number, or text in double quotes",
           (int)Z3I_MIN(n, (size_t)40), (const char *)start);
  return fail_at(s, start, what);
}

static int scan_value(scan *s, int64_t *index);

/* A name and its colon, in quotes or, where that is allowed, without. */
static int scan_key(scan *s, int *line, int *column)
{
  position(s, s->p, line, column);
  if (at(s, '"')) {
    Z3I_TRY(scan_string(s));
  } else if (s->relaxed && s->p < s->end && word_char(*s->p, true)) {
    bytes_t start = s->p;
    while (s->p < s->end && word_char(*s->p, false)) s->p++;
    z3i_text_add(&s->out->strict, "\"", 1);
    z3i_text_add(&s->out->strict, (const char *)start, (size_t)(s->p - start));
    z3i_text_add(&s->out->strict, "\"", 1);
  } else {
    return fail_char(s, "a name in double quotes");
  }
  Z3I_TRY(skip_space(s));
  if (!at(s, ':')) return fail_char(s, "':'");
  s->p++;
  z3i_text_add(&s->out->strict, ":", 1);
  return skip_space(s);
}

/* The entries of an array or object up to its closing bracket. */
static int scan_entries(scan *s, int64_t parent, bool object)
{
  char close = object ? '}' : ']';
  s->p++;
  z3i_text_add(&s->out->strict, object ? "{" : "[", 1);
  Z3I_TRY(skip_space(s));
  int64_t count = 0;
  while (!at(s, close)) {
    int64_t child;
    int line = 0, column = 0;
    if (count > 0) z3i_text_add(&s->out->strict, ",", 1);
    if (object) Z3I_TRY(scan_key(s, &line, &column));
    Z3I_TRY(scan_value(s, &child));
    s->out->nodes[child].key_line = line;
    s->out->nodes[child].key_column = column;
    count++;
    Z3I_TRY(skip_space(s));
    bool comma = at(s, ',');
    if (comma) {
      s->p++;
      Z3I_TRY(skip_space(s));
      if (at(s, close) && !s->relaxed) return fail_char(s, "another entry (a comma stands before it)");
    } else if (!at(s, close) && !(s->relaxed && s->line_ended && s->p < s->end)) {
      return fail_char(s, object ? "',' or '}'" : "',' or ']'");
    }
  }
  s->p++;
  z3i_text_add(&s->out->strict, object ? "}" : "]", 1);
  s->out->nodes[parent].count = count;
  s->out->nodes[parent].next = s->out->count;
  return Z3E_OK;
}

static int scan_value(scan *s, int64_t *index)
{
  if (s->p >= s->end) return fail_char(s, "a value");
  bool object = *s->p == '{';
  Z3I_TRY(node_new(s, Z3J_NULL, index));
  int *kind = &s->out->nodes[*index].kind;
  if (object || *s->p == '[') {
    *kind = object ? Z3J_OBJECT : Z3J_ARRAY;
    if (s->depth == Z3I_JSON_DEPTH) return fail_at(s, s->p, "more than 512 levels of nesting");
    s->depth++;
    Z3I_TRY(scan_entries(s, *index, object));
    s->depth--;
    return Z3E_OK;
  }
  if (*s->p == '"') {
    *kind = Z3J_STRING;
    return scan_string(s);
  }
  if (*s->p == '-' || (*s->p >= '0' && *s->p <= '9')) {
    *kind = Z3J_NUMBER;
    return scan_number(s, *index);
  }
  if (word_char(*s->p, true)) return scan_word(s, *index);
  return fail_char(s, *s->p == '\'' ? "a value (text stands in double quotes)" : "a value");
}

int z3i_json_scan_text(z3i_json_scan *out, const char *text, size_t bytes, const char *name, int flags, int code)
{
  bytes_t p = (bytes_t)text;
  scan s = { .out = out, .p = p, .end = p + bytes, .name = name, .code = code, .relaxed = (flags & Z3J_RELAXED) != 0,
             .mark = p, .line = 1, .column = 1 };
  int64_t root;
  if (s.relaxed && bytes >= 3 && memcmp(p, "\xEF\xBB\xBF", 3) == 0) s.mark = s.p = p + 3;
  Z3I_TRY(skip_space(&s));
  if (s.p >= s.end) return fail_at(&s, s.p, "there is no value: the text is empty");
  Z3I_TRY(scan_value(&s, &root));
  Z3I_TRY(skip_space(&s));
  if (s.p < s.end) return fail_char(&s, "the text's end");
  return out->strict.rc;
}
