/* loss.c -- cross-entropy of given logits, forward and backward, and its two row steps for linear_cross_entropy.
 * loss = log(sum exp(x - max)) - (x[target] - max): the maximum cancels before anything is rounded, so logits of 1e4
 * cost no accuracy. gx = scale (exp(x - lse) - onehot). Legend: N = rows, V = classes. */
#include "device/cpu/isa/isa_kernels.h"
#include "device/cpu/isa/lse.h"

typedef struct loss {
  const z3i_call *call;
  int64_t V, ignore;
  double *row;                                  /* forward: (N) loss of each row, 0 where ignored */
  double scale;                                 /* backward: of all rows; of NONE each row has its own */
} loss;

static int64_t counted(const z3i_view *targets, int64_t ignore)
{
  int64_t n = 0;
  for (int64_t i = 0; i < targets->shape[0]; i++) n += z3i_id(targets, i) != ignore;
  return n;
}

/* ---- forward ---------------------------------------------------------------------------------------- */
static float element(const z3i_view *x, int64_t i)
{
  float v;
  z3i_load_f32(&v, z3i_at(x, i), x->dtype, 1);
  return v;
}

static void forward_rows(void *ctx, int64_t lo, int64_t hi)
{
  const loss *f = ctx;
  const z3i_view *x = &f->call->in[0], *targets = &f->call->in[1];
  float *lse = f->call->aux[0].data;
  float buf[Z3I_BLOCK], e[Z3I_BLOCK];
  for (int64_t r = lo; r < hi; r++) {
    int64_t target = z3i_id(targets, r);
    lse[r] = 0;
    f->row[r] = 0;
    if (target == f->ignore) continue;          /* its logits are never read */
    z3i_lse s = z3i_lse_row(z3i_at(x, r * f->V), x->dtype, f->V, buf, e);
    double log_sum = log(s.sum);
    lse[r] = (float)((double)s.max + log_sum);
    f->row[r] = log_sum - ((double)element(x, r * f->V + target) - (double)s.max);
  }
}

int Z3I_SYM(cross_entropy)(const z3i_call *c)
{
  const z3i_view *x = &c->in[0], *targets = &c->in[1];
  const int64_t N = x->shape[0];
  loss f = { .call = c, .V = x->shape[1], .ignore = c->attr->i[0] };
  Z3I_TRY(z3i_ids_check(targets, f.V, &f.ignore, "cross_entropy: target", "classes"));
  Z3I_TRY(z3i_scratch(c->dev, (size_t)N * sizeof *f.row, (void **)&f.row));
  z3i_for_blocks(N, z3i_rows_block(f.V), N * f.V, forward_rows, &f);
  const int64_t count = counted(targets, f.ignore);
  float *out = c->out[0].data;
  double sum = 0;
  for (int64_t r = 0; r < N; r++) sum += f.row[r];
  if (c->attr->i[1] == Z3RED_NONE)
    for (int64_t r = 0; r < N; r++) out[r] = (float)f.row[r];
  else if (c->attr->i[1] == Z3RED_MEAN) out[0] = count > 0 ? (float)(sum / (double)count) : 0;
  else out[0] = (float)sum;
  if (c->out[1].data != NULL) *(int64_t *)c->out[1].data = count;
  z3i_pool_free(c->dev, f.row);
  return Z3E_OK;
}

/* ---- backward --------------------------------------------------------------------------------------- */
static void grad_block(float *restrict o, const float *restrict x, int64_t n, float lse, float scale)
{
  for (int64_t i = 0; i < n; i++) o[i] = z3i_exp_low(x[i] - lse) * scale;
}

/* A log-sum-exp beyond 64 is rounded so coarsely in f32 that the probabilities' sum shows it: there they are
 * normalised again by their own sum. Returns 1 / that sum. */
static double renormalise(const void *x, int dtype, int64_t n, float lse, float buf[Z3I_BLOCK], float e[Z3I_BLOCK])
{
  double sum = 0;
  if (!(z3i_absf(lse) > 64.0f)) return 1;
  for (int64_t i = 0; i < n; i += Z3I_BLOCK) {
    int64_t m = Z3I_MIN(n - i, (int64_t)Z3I_BLOCK);
    z3i_exp_block(e, z3i_block_f32(buf, (const char *)x + i * z3i_dtype_bytes(dtype), dtype, m), m, lse);
    sum += (double)z3i_vsum(e, m);
  }
  return 1 / sum;
}

static void grad_row(const loss *f, int64_t r, float buf[Z3I_BLOCK], float e[Z3I_BLOCK])
{
  const z3i_call *c = f->call;
  const z3i_view *x = &c->in[0], *gx = &c->gin[0];
  const int64_t V = f->V, target = z3i_id(&c->in[1], r);
  const bool add = c->gin_add & 1u;
  if (target == f->ignore) {
    if (!add) memset(z3i_at(gx, r * V), 0, (size_t)(V * z3i_dtype_bytes(gx->dtype)));
    return;
  }
  const float lse = ((const float *)c->aux[0].data)[r];
  const double scale = c->attr->i[1] == Z3RED_NONE ? (double)((const float *)c->gout[0].data)[r] : f->scale;
  const double inv = renormalise(z3i_at(x, r * V), x->dtype, V, lse, buf, e);
  for (int64_t i = 0; i < V; i += Z3I_BLOCK) {
    int64_t n = Z3I_MIN(V - i, (int64_t)Z3I_BLOCK);
    const float *p = z3i_block_f32(buf, z3i_at(x, r * V + i), x->dtype, n);
    void *dst = z3i_at(gx, r * V + i);
    float *o = z3i_room_f32(e, dst, gx->dtype, add);
    grad_block(o, p, n, lse, (float)(scale * inv));
    if (target >= i && target < i + n)
      o[target - i] = (float)(scale * ((double)z3i_exp_low(p[target - i] - lse) * inv - 1));
    z3i_done_f32(dst, gx->dtype, o, n, add);
  }
}

static void backward_rows(void *ctx, int64_t lo, int64_t hi)
{
  float buf[Z3I_BLOCK], e[Z3I_BLOCK];
  for (int64_t r = lo; r < hi; r++) grad_row(ctx, r, buf, e);
}

int Z3I_SYM(cross_entropy_grad)(const z3i_call *c)
{
  const z3i_view *x = &c->in[0];
  const int64_t N = x->shape[0];
  loss f = { .call = c, .V = x->shape[1], .ignore = c->attr->i[0] };
  if (c->gin[0].data == NULL) return Z3E_OK;
  if (c->attr->i[1] != Z3RED_NONE) f.scale = (double)*(const float *)c->gout[0].data;
  if (c->attr->i[1] == Z3RED_MEAN) {
    int64_t count = counted(&c->in[1], f.ignore);
    f.scale = count > 0 ? f.scale / (double)count : 0;
  }
  z3i_for_blocks(N, z3i_rows_block(f.V), N * f.V, backward_rows, &f);
  return Z3E_OK;
}

/* ---- row steps on f32 logits: one thread each -------------------------------------------------------- */
float Z3I_SYM(row_lse)(const float *logits, int64_t n)
{
  float e[Z3I_BLOCK];
  z3i_lse s = z3i_lse_row(logits, Z3T_F32, n, NULL, e);
  return (float)((double)s.max + log(s.sum));
}

void Z3I_SYM(row_ce_grad)(float *logits, int64_t n, int64_t target, float lse, float scale)
{
  float e[Z3I_BLOCK];
  const double inv = renormalise(logits, Z3T_F32, n, lse, NULL, e);
  const bool hit = target >= 0 && target < n;
  const float at_target = hit ? (float)(scale * ((double)z3i_exp_low(logits[target] - lse) * inv - 1)) : 0;
  const float by = (float)(scale * inv);
  for (int64_t i = 0; i < n; i++) logits[i] = z3i_exp_low(logits[i] - lse) * by;
  if (hit) logits[target] = at_target;
}
