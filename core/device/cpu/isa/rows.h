/* rows.h -- tensors as rows over their last dim, and ids that name rows: what the model kernels share.
 * Legend: cols = elements of the last dim, rows = product of the dims before it. */
#ifndef Z3I_ROWS_H
#define Z3I_ROWS_H
#include <stdio.h>
#include "device/cpu/isa/vec.h"

static inline int64_t z3i_cols(const z3i_view *v) { return v->ndim > 0 ? v->shape[v->ndim - 1] : 1; }
static inline int64_t z3i_rows(const z3i_view *v)
{
  int64_t n = 1;
  for (int i = 0; i < v->ndim - 1; i++) n *= v->shape[i];
  return n;
}
/* Rows that one thread takes at a time, so that a piece of work is a few microseconds long. */
static inline int64_t z3i_rows_block(int64_t cols) { return Z3I_MAX(1, 8192 / Z3I_MAX(cols, 1)); }

/* Element i of contiguous data. */
static inline char *z3i_at(const z3i_view *v, int64_t i) { return (char *)v->data + i * z3i_dtype_bytes(v->dtype); }

/* Where a block's result is computed: in place when dst is plain f32, else in buf, which z3i_done_f32 then stores. */
static inline float *z3i_room_f32(float *buf, void *dst, int dtype, bool add)
{
  return dtype == Z3T_F32 && !add ? (float *)dst : buf;
}
static inline void z3i_done_f32(void *dst, int dtype, const float *src, int64_t n, bool add)
{
  if ((const void *)src != dst) z3i_grad_f32(dst, dtype, src, n, add);
}

/* ---- ids: contiguous i32 or i64 --------------------------------------------------------------------- */
static inline int64_t z3i_id(const z3i_view *ids, int64_t i)
{
  return ids->dtype == Z3T_I32 ? ((const int32_t *)ids->data)[i] : ((const int64_t *)ids->data)[i];
}

/* "3" or "1,3": the position of flat element i. */
static inline const char *z3i_place(const z3i_view *v, int64_t i, char text[200])
{
  int64_t index[Z3_MAX_DIMS] = { 0 };
  for (int d = v->ndim - 1; d >= 0; d--) {
    index[d] = i % v->shape[d];
    i /= v->shape[d];
  }
  size_t used = 0;
  text[0] = 0;
  for (int d = 0; d < v->ndim; d++)
    used += (size_t)snprintf(text + used, 200 - used, "%s%" PRId64, d ? "," : "", index[d]);
  return text;
}

/* Every id must be in [0, limit) or equal `ignore` (NULL: none is).
 * what: "embedding: id"; of: what the limit counts. Nothing may be written before this passed. */
static inline int z3i_ids_check(const z3i_view *ids, int64_t limit, const int64_t *ignore, const char *what,
                                const char *of)
{
  int64_t n = z3i_view_numel(ids);
  for (int64_t i = 0; i < n; i++) {
    int64_t id = z3i_id(ids, i);
    if ((uint64_t)id < (uint64_t)limit || (ignore != NULL && id == *ignore)) continue;
    char place[200], also[48] = "";
    if (ignore != NULL) snprintf(also, sizeof also, " or %" PRId64 " (ignored)", *ignore);
    return Z3I_FAIL(Z3E_ARG, "%s at [%s] is %" PRId64 ", wants 0 to %" PRId64 "%s: there are %" PRId64 " %s", what,
                    z3i_place(ids, i, place), id, limit - 1, also, limit, of);
  }
  return Z3E_OK;
}
#endif
