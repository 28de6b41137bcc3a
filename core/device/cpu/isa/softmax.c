/* softmax.c -- softmax and log-softmax over the last dim, forward and backward.
 * softmax: gx = y (g - sum(g y)); log-softmax: gx = g - exp(y) sum(g). A row of only -inf gives NaN, as in PyTorch.
 * Legend: R = rows, C = columns. */
#include "device/cpu/isa/isa_kernels.h"
#include "device/cpu/isa/lse.h"

typedef struct softmax {
  const z3i_call *call;
  int64_t C;
  bool log;
} softmax;

static void scale(float *x, int64_t n, float by)
{
  for (int64_t i = 0; i < n; i++) x[i] *= by;
}
static void log_block(float *restrict y, const float *restrict x, int64_t n, float max, float log_sum)
{
  for (int64_t i = 0; i < n; i++) y[i] = (x[i] - max) - log_sum;
}

static void forward_rows(void *ctx, int64_t lo, int64_t hi)
{
  const softmax *f = ctx;
  const z3i_view *x = &f->call->in[0], *y = &f->call->out[0];
  const int64_t C = f->C;
  float buf[Z3I_BLOCK], e[Z3I_BLOCK];
  for (int64_t r = lo; r < hi; r++) {
    z3i_lse s = z3i_lse_row(z3i_at(x, r * C), x->dtype, C, buf, e);
    const float shift = z3i_lse_shift(s.max), inv = (float)(1 / s.sum), log_sum = (float)log(s.sum);
    for (int64_t i = 0; i < C; i += Z3I_BLOCK) {
      int64_t n = Z3I_MIN(C - i, (int64_t)Z3I_BLOCK);
      void *dst = z3i_at(y, r * C + i);
      if (C <= Z3I_BLOCK && !f->log) {          /* e still holds the exponentials */
        scale(e, n, inv);
        z3i_store_f32(dst, y->dtype, e, n);
        continue;
      }
      const float *p = z3i_block_f32(buf, z3i_at(x, r * C + i), x->dtype, n);
      float *o = z3i_room_f32(e, dst, y->dtype, false);
      if (f->log) log_block(o, p, n, shift, log_sum);
      else {
        z3i_exp_block(o, p, n, shift);
        scale(o, n, inv);
      }
      z3i_done_f32(dst, y->dtype, o, n, false);
    }
  }
}

static void softmax_grad(float *restrict gx, const float *restrict y, const float *restrict g, int64_t n, float sum)
{
  for (int64_t i = 0; i < n; i++) gx[i] = y[i] * (g[i] - sum);
}
static void log_softmax_grad(float *restrict gx, const float *restrict y, const float *restrict g, int64_t n, float sum)
{
  for (int64_t i = 0; i < n; i++) gx[i] = z3i_fmaf(-z3i_exp_low(y[i]), sum, g[i]);
}

static void backward_rows(void *ctx, int64_t lo, int64_t hi)
{
  const softmax *f = ctx;
  const z3i_view *y = &f->call->out[0], *g = &f->call->gout[0], *gx = &f->call->gin[0];
  const int64_t C = f->C;
  const bool add = f->call->gin_add & 1u;
  float bufy[Z3I_BLOCK], bufg[Z3I_BLOCK], out[Z3I_BLOCK];
  for (int64_t r = lo; r < hi; r++) {
    const float *py = NULL, *pg = NULL;
    double sum = 0;
    for (int64_t i = 0; i < C; i += Z3I_BLOCK) {
      int64_t n = Z3I_MIN(C - i, (int64_t)Z3I_BLOCK);
      pg = z3i_block_f32(bufg, z3i_at(g, r * C + i), g->dtype, n);
      if (!f->log || C <= Z3I_BLOCK) py = z3i_block_f32(bufy, z3i_at(y, r * C + i), y->dtype, n);
      sum += (double)(f->log ? z3i_vsum(pg, n) : z3i_vdot(pg, py, n));
    }
    for (int64_t i = 0; i < C; i += Z3I_BLOCK) {
      int64_t n = Z3I_MIN(C - i, (int64_t)Z3I_BLOCK);
      if (C > Z3I_BLOCK) {
        pg = z3i_block_f32(bufg, z3i_at(g, r * C + i), g->dtype, n);
        py = z3i_block_f32(bufy, z3i_at(y, r * C + i), y->dtype, n);
      }
      void *dst = z3i_at(gx, r * C + i);
      float *o = z3i_room_f32(out, dst, gx->dtype, add);
      if (f->log) log_softmax_grad(o, py, pg, n, (float)sum);
      else softmax_grad(o, py, pg, n, (float)sum);
      z3i_done_f32(dst, gx->dtype, o, n, add);
    }
  }
}

static int run(const z3i_call *c, bool log_form, const z3i_view *shape, void (*rows)(void *ctx, int64_t lo, int64_t hi))
{
  softmax f = { .call = c, .C = z3i_cols(shape), .log = log_form };
  int64_t R = z3i_rows(shape);
  z3i_for_blocks(R, z3i_rows_block(f.C), R * f.C, rows, &f);
  return Z3E_OK;
}

int Z3I_SYM(softmax)(const z3i_call *c) { return run(c, false, &c->out[0], forward_rows); }
int Z3I_SYM(softmax_grad)(const z3i_call *c) { return run(c, false, &c->out[0], backward_rows); }
int Z3I_SYM(log_softmax)(const z3i_call *c) { return run(c, true, &c->out[0], forward_rows); }
int Z3I_SYM(log_softmax_grad)(const z3i_call *c) { return run(c, true, &c->out[0], backward_rows); }
