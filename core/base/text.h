/* text.h -- a growing string. A failure to grow is remembered, so that a writer checks once, at the end. */
#ifndef Z3I_TEXT_H
#define Z3I_TEXT_H
#include "base/base.h"

typedef struct z3i_text {
  char *p;                                        /* NUL-terminated as soon as something was added; NULL before */
  size_t used, room;
  int rc;                                         /* Z3E_OOM once it could not grow: later additions do nothing */
} z3i_text;

void z3i_text_add(z3i_text *t, const char *bytes, size_t n);
void z3i_text_str(z3i_text *t, const char *s);
void z3i_text_fmt(z3i_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void z3i_text_free(z3i_text *t);                  /* empty again, ready for use */

/* The double nearest to a decimal number, and the shortest digits that read back as the same double. Both speak C's
 * decimal point whatever the process's locale. z3i_text_number writes whole numbers up to 2^53 in full. */
double z3i_decimal(const char *s, char **end);
void z3i_text_number(z3i_text *t, double value);
#endif
