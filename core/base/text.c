/* text.c -- a growing string, and numbers in it that no locale can change. */
#define _GNU_SOURCE
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"

static bool grow(z3i_text *t, size_t more)
{
  if (t->rc != Z3E_OK) return false;
  if (more < t->room - t->used && t->p != NULL) return true;
  if (more > SIZE_MAX / 4 || t->used > SIZE_MAX / 4) {
    t->rc = Z3I_FAIL(Z3E_OOM, "out of host memory: a text of %zu bytes", t->used);
    return false;
  }
  size_t room = Z3I_MAX((t->used + more + 1) + (t->used + more) / 2, (size_t)64);
  char *p = z3i_realloc(t->p, room);
  if (p == NULL) {
    t->rc = Z3E_OOM;
    return false;
  }
  t->p = p;
  t->room = room;
  return true;
}

void z3i_text_add(z3i_text *t, const char *bytes, size_t n)
{
  if (!grow(t, n)) return;
  memcpy(t->p + t->used, bytes, n);
  t->used += n;
  t->p[t->used] = '\0';
}

void z3i_text_str(z3i_text *t, const char *s) { z3i_text_add(t, s, strlen(s)); }

void z3i_text_fmt(z3i_text *t, const char *fmt, ...)
{
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  int n = vsnprintf(NULL, 0, fmt, args);
  va_end(args);
  if (n >= 0 && grow(t, (size_t)n)) {
    vsnprintf(t->p + t->used, (size_t)n + 1, fmt, again);
    t->used += (size_t)n;
  }
  va_end(again);
}

void z3i_text_free(z3i_text *t)
{
  z3i_free(t->p);
  *t = (z3i_text){ 0 };
}

static locale_t c_locale(void)
{
  static locale_t made;                           /* glibc's "C" is a constant: no allocation, no race that matters */
  locale_t l = __atomic_load_n(&made, __ATOMIC_ACQUIRE);
  if (l == (locale_t)0) {
    l = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    __atomic_store_n(&made, l, __ATOMIC_RELEASE);
  }
  return l;
}

double z3i_decimal(const char *s, char **end)
{
  locale_t l = c_locale();
  return l != (locale_t)0 ? strtod_l(s, end, l) : strtod(s, end);
}

void z3i_text_number(z3i_text *t, double value)
{
  char digits[40];
  locale_t l = c_locale(), before = l != (locale_t)0 ? uselocale(l) : (locale_t)0;
  if (value == floor(value) && fabs(value) <= 9007199254740992.0) {
    snprintf(digits, sizeof digits, "%.0f", value);
  } else {
    for (int precision = 15; precision <= 17; precision++) {
      snprintf(digits, sizeof digits, "%.*g", precision, value);
      if (strtod(digits, NULL) == value) break;
    }
  }
  if (before != (locale_t)0) uselocale(before);
  z3i_text_str(t, digits);
}
