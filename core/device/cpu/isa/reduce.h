/* reduce.h -- how reductions see a tensor: outputs, and the elements that each one reduces.
 * Letters: K outputs (kept dims), R elements reduced into each. Row-major order within both. */
#ifndef Z3I_REDUCE_H
#define Z3I_REDUCE_H
#include "device/cpu/isa/elem.h"

typedef struct z3i_split {
  z3i_flat kept, red;                           /* both start at the view's first element */
  int64_t k, r;
  bool columns;                                 /* run along K inside, else along R: whichever lies closer in memory */
} z3i_split;

enum { Z3I_COLUMNS = 512 };                     /* outputs that one task sums side by side */

/* mask: bit d set where dim d is reduced; 0 means all. */
static inline z3i_split z3i_split_dims(const z3i_view *v, int64_t mask)
{
  z3i_view kept = { .data = v->data, .dtype = v->dtype }, red = kept;
  for (int d = 0; d < v->ndim; d++) {
    z3i_view *to = mask == 0 || (mask >> d & 1) ? &red : &kept;
    to->shape[to->ndim] = v->shape[d];
    to->stride[to->ndim++] = v->stride[d];
  }
  z3i_split s = { .kept = z3i_flatten(&kept), .red = z3i_flatten(&red) };
  s.k = s.kept.n;
  s.r = s.red.n;
  int64_t wide = s.kept.shape[s.kept.ndim - 1], step = s.kept.stride[s.kept.ndim - 1];
  s.columns = s.k > 1 && (s.r < 16 || (wide >= 16 && step < s.red.stride[s.red.ndim - 1]));
  return s;
}

/* The R elements of output o. */
static inline z3i_flat z3i_split_row(const z3i_split *s, int64_t o)
{
  z3i_flat f = s->red;
  f.data += z3i_offset(&s->kept, o) * f.bytes;
  return f;
}
/* Element i of every output. */
static inline z3i_flat z3i_split_column(const z3i_split *s, int64_t i)
{
  z3i_flat f = s->kept;
  f.data += z3i_offset(&s->red, i) * f.bytes;
  return f;
}
/* Outputs per task. Depends on the shape alone, as everything that shapes the order of adding. */
static inline int64_t z3i_split_block(const z3i_split *s)
{
  if (s->columns) return Z3I_COLUMNS;
  return Z3I_MAX(1, Z3I_MIN((int64_t)Z3I_COLUMNS, Z3I_PAR_MIN / Z3I_MAX(s->r, (int64_t)1)));
}
#endif
