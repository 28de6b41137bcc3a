/* take.h -- rows picked by id, and the way back: sums of the rows that share an id.
 * Legend: data (outer, V, inner) holds V rows of `inner` elements; ids (N) name rows; picked (outer, N, inner). */
#ifndef Z3I_TAKE_H
#define Z3I_TAKE_H
#include "device/cpu/isa/rows.h"

#define z3i_rows_take Z3I_SYM(rows_take)
#define z3i_rows_sum Z3I_SYM(rows_sum)
/* picked[o][j] = data[o][ids[j]]; equal dtypes, ids checked before. */
void z3i_rows_take(const z3i_view *picked, const z3i_view *data, const z3i_view *ids, int64_t outer, int64_t V,
                   int64_t inner);
/* data[o][v] = (or += when add) the sum of picked[o][j] over the j with ids[j] == v, in the order of j whatever the
 * thread count, in f32, rounded once. Without add the other rows become 0; with it they aren't touched. */
int z3i_rows_sum(z3i_device *dev, const z3i_view *data, const z3i_view *picked, const z3i_view *ids, int64_t outer,
                 int64_t V, int64_t inner, bool add);
#endif
