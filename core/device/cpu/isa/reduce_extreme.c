/* reduce_extreme.c -- max, min and argmax over any dims; backward sends the gradient to the position found, or in equal
 * parts to all that equal the extreme (amax, amin).
 * Position: row-major within the reduced dims. The first on ties; the first NaN beats everything, as in PyTorch.
 * Letters: K outputs, R elements of each (reduce.h). */
#include "device/cpu/isa/isa_kernels.h"
#include "device/cpu/isa/reduce.h"

typedef struct extreme_task {
  z3i_split s;
  z3i_flat values, positions;                   /* data NULL where not wanted */
  bool smallest;
} extreme_task;

/* ---- along R: a whole block's maximum first (vector code), its position only when it is better ------------- */
static bool has_nan(const float *x, int64_t n)
{
  uint32_t found = 0;
  for (int64_t i = 0; i < n; i++) found |= (uint32_t)(x[i] != x[i]);
  return found != 0;
}

static void row_f32(const extreme_task *t, int64_t o, float *value, int64_t *position)
{
  z3i_flat row = z3i_split_row(&t->s, o);
  float buf[Z3I_BLOCK], best = 0;
  *position = -1;
  for (int64_t lo = 0; lo < t->s.r && best == best; lo += Z3I_BLOCK) {
    int64_t n = Z3I_MIN(t->s.r - lo, (int64_t)Z3I_BLOCK), at = 0;
    const float *x = z3i_get_f32(buf, &row, lo, n);
    if (t->smallest) {
      for (int64_t i = 0; i < n; i++) buf[i] = -x[i];
      x = buf;
    }
    bool nan = has_nan(x, n);
    float top = nan ? 0 : z3i_vmax(x, n);
    if (!nan && *position >= 0 && !(top > best)) continue;
    while (nan ? x[at] == x[at] : x[at] != top) at++;
    best = x[at];
    *position = lo + at;
  }
  *value = t->smallest ? -best : best;
}

static void row_i64(const extreme_task *t, int64_t o, int64_t *value, int64_t *position)
{
  z3i_flat row = z3i_split_row(&t->s, o);
  int64_t buf[Z3I_BLOCK], best = 0;
  *position = -1;
  for (int64_t lo = 0; lo < t->s.r; lo += Z3I_BLOCK) {
    int64_t n = Z3I_MIN(t->s.r - lo, (int64_t)Z3I_BLOCK);
    const int64_t *x = z3i_get_i64(buf, &row, lo, n);
    for (int64_t i = 0; i < n; i++) {
      if (*position >= 0 && !(t->smallest ? x[i] < best : x[i] > best)) continue;
      best = x[i];
      *position = lo + i;
    }
  }
  *value = best;
}

/* ---- along K: side by side ------------------------------------------------------------------------------ */
/* position[j] < 0: nothing seen yet. Written without branches, so that it becomes vector code. */
static void better_f32(float *restrict best, int64_t *restrict position, const float *restrict x, int64_t n, int64_t i,
                       float sign)
{
  for (int64_t j = 0; j < n; j++) {
    float a = sign * x[j], b = sign * best[j];
    int32_t take = (position[j] < 0) | (a > b) | ((a != a) & (b == b));
    best[j] = take ? x[j] : best[j];
    position[j] = take ? i : position[j];
  }
}

static void columns_f32(const extreme_task *t, int64_t klo, int64_t n, float *best, int64_t *position)
{
  float buf[Z3I_COLUMNS];
  for (int64_t j = 0; j < n; j++) best[j] = 0;
  for (int64_t j = 0; j < n; j++) position[j] = -1;
  for (int64_t i = 0; i < t->s.r; i++) {
    z3i_flat column = z3i_split_column(&t->s, i);
    better_f32(best, position, z3i_get_f32(buf, &column, klo, n), n, i, t->smallest ? -1.0f : 1.0f);
  }
}

static void columns_i64(const extreme_task *t, int64_t klo, int64_t n, int64_t *best, int64_t *position)
{
  int64_t buf[Z3I_COLUMNS];
  for (int64_t j = 0; j < n; j++) position[j] = -1;
  for (int64_t i = 0; i < t->s.r; i++) {
    z3i_flat column = z3i_split_column(&t->s, i);
    const int64_t *x = z3i_get_i64(buf, &column, klo, n);
    for (int64_t j = 0; j < n; j++) {
      if (position[j] >= 0 && !(t->smallest ? x[j] < best[j] : x[j] > best[j])) continue;
      best[j] = x[j];
      position[j] = i;
    }
  }
}

static void block_f32(void *ctx, int64_t klo, int64_t khi)
{
  const extreme_task *t = ctx;
  int64_t n = khi - klo, position[Z3I_COLUMNS];
  float value[Z3I_COLUMNS];
  if (t->s.columns) columns_f32(t, klo, n, value, position);
  else
    for (int64_t j = 0; j < n; j++) row_f32(t, klo + j, &value[j], &position[j]);
  if (t->values.data != NULL) z3i_put_f32(&t->values, klo, n, value, false);
  if (t->positions.data != NULL) z3i_put_i64(&t->positions, klo, n, position);
}

static void block_i64(void *ctx, int64_t klo, int64_t khi)
{
  const extreme_task *t = ctx;
  int64_t n = khi - klo, position[Z3I_COLUMNS], value[Z3I_COLUMNS];
  if (t->s.columns) columns_i64(t, klo, n, value, position);
  else
    for (int64_t j = 0; j < n; j++) row_i64(t, klo + j, &value[j], &position[j]);
  if (t->values.data != NULL) z3i_put_i64(&t->values, klo, n, value);
  if (t->positions.data != NULL) z3i_put_i64(&t->positions, klo, n, position);
}

int Z3I_SYM(extreme)(const z3i_call *c)
{
  extreme_task t = { .s = z3i_split_dims(&c->in[0], c->attr->i[0]),
                     .smallest = c->op == Z3OP_min || c->op == Z3OP_amin };
  bool position_only = c->op == Z3OP_argmax, value_only = c->op == Z3OP_amax || c->op == Z3OP_amin;
  if (!value_only) t.positions = z3i_flatten(position_only ? &c->out[0] : &c->aux[0]);
  if (!position_only) t.values = z3i_flatten(&c->out[0]);
  z3i_for_blocks(t.s.k, z3i_split_block(&t.s), t.s.k * t.s.r, z3i_dtype_float(c->in[0].dtype) ? block_f32 : block_i64,
                 &t);
  return Z3E_OK;
}

/* ---- backward ------------------------------------------------------------------------------------------- */
typedef struct scatter_task {
  z3i_split gin;
  z3i_flat gout, positions;
  bool add;
} scatter_task;

/* Each output owns its elements of the gradient: zeroed unless added to, then one of them gets g. */
static void scatter_block(void *ctx, int64_t klo, int64_t khi)
{
  const scatter_task *t = ctx;
  static const float zeros[Z3I_BLOCK];
  for (int64_t o = klo; o < khi; o++) {
    z3i_flat row = z3i_split_row(&t->gin, o);
    int64_t p0;
    float g0;
    for (int64_t lo = 0; lo < t->gin.r && !t->add; lo += Z3I_BLOCK)
      z3i_put_f32(&row, lo, Z3I_MIN(t->gin.r - lo, (int64_t)Z3I_BLOCK), zeros, false);
    z3i_put_f32(&row, *z3i_get_i64(&p0, &t->positions, o, 1), 1, z3i_get_f32(&g0, &t->gout, o, 1), t->add);
  }
}

int Z3I_SYM(extreme_grad)(const z3i_call *c)
{
  if (c->gin[0].data == NULL) return Z3E_OK;
  scatter_task t = { .gin = z3i_split_dims(&c->gin[0], c->attr->i[0]), .gout = z3i_flatten(&c->gout[0]),
                     .positions = z3i_flatten(&c->aux[0]), .add = c->gin_add & 1u };
  z3i_for_blocks(t.gin.k, z3i_split_block(&t.gin), t.gin.k * t.gin.r, scatter_block, &t);
  return Z3E_OK;
}

typedef struct share_task {
  z3i_split x, gin;
  z3i_flat y, gout;
  bool add;
} share_task;

/* Where the extreme is NaN, the NaNs are what it equals. */
static bool hits(float x, float top) { return x == top || x != x; }

static void share_block(void *ctx, int64_t klo, int64_t khi)
{
  const share_task *t = ctx;
  float buf[Z3I_BLOCK], d[Z3I_BLOCK], y0, g0;
  for (int64_t o = klo; o < khi; o++) {
    z3i_flat row = z3i_split_row(&t->x, o), to = z3i_split_row(&t->gin, o);
    float top = *z3i_get_f32(&y0, &t->y, o, 1), g = *z3i_get_f32(&g0, &t->gout, o, 1);
    int64_t count = 0;
    for (int64_t lo = 0; lo < t->x.r; lo += Z3I_BLOCK) {
      int64_t n = Z3I_MIN(t->x.r - lo, (int64_t)Z3I_BLOCK);
      const float *x = z3i_get_f32(buf, &row, lo, n);
      for (int64_t i = 0; i < n; i++) count += hits(x[i], top);
    }
    const float share = g / (float)count;
    for (int64_t lo = 0; lo < t->x.r; lo += Z3I_BLOCK) {
      int64_t n = Z3I_MIN(t->x.r - lo, (int64_t)Z3I_BLOCK);
      const float *x = z3i_get_f32(buf, &row, lo, n);
      for (int64_t i = 0; i < n; i++) d[i] = hits(x[i], top) ? share : 0.0f;
      z3i_put_f32(&to, lo, n, d, t->add);
    }
  }
}

int Z3I_SYM(shared_extreme_grad)(const z3i_call *c)
{
  if (c->gin[0].data == NULL) return Z3E_OK;
  int64_t mask = c->attr->i[0];
  share_task t = { .x = z3i_split_dims(&c->in[0], mask), .gin = z3i_split_dims(&c->gin[0], mask),
                   .y = z3i_flatten(&c->out[0]), .gout = z3i_flatten(&c->gout[0]), .add = c->gin_add & 1u };
  z3i_for_blocks(t.x.k, z3i_split_block(&t.x), t.x.k * t.x.r, share_block, &t);
  return Z3E_OK;
}
