/* norm.c -- layer norm and RMS norm over the last dim, forward and backward.
 * y = (x - mean) rstd w + b; RMS norm is the same with mean = 0, no b, and rstd of x itself.
 * Legend: R = rows, C = columns; xhat = (x - mean) rstd; gh = g w.
 * Sources: Ba, Kiros & Hinton 2016; Zhang & Sennrich 2019. */
#include <math.h>
#include "device/cpu/isa/isa_kernels.h"
#include "device/cpu/isa/rows.h"

typedef struct norm {
  const z3i_call *call;
  bool center;                                  /* layer norm */
  int64_t R, C;
  float *w, *b;                                 /* (C) as floats: 1 and 0 where not given */
  float *mean, *rstd;                           /* (R); mean NULL for RMS norm */
  double eps;
  int64_t block;                                /* backward: rows per partial sum */
  float *part_w, *part_b;                       /* backward: (blocks, C) sums over a block's rows; NULL: not wanted */
} norm;

/* ---- rows ------------------------------------------------------------------------------------------- */
/* Sums of x - mean and its square over a block. */
static void moments(const float *x, int64_t n, float mean, double *sum, double *sum2)
{
  float a[Z3I_LANES] = { 0 }, a2[Z3I_LANES] = { 0 };
  Z3I_EACH_LANE(n, float d = x[at] - mean; a[lane] += d; a2[lane] += d * d;);
  *sum += (double)z3i_lanes_sum(a);
  *sum2 += (double)z3i_lanes_sum(a2);
}

static void apply(float *restrict y, const float *restrict x, const float *restrict w, const float *restrict b,
                  int64_t n, float mean, float rstd)
{
  for (int64_t i = 0; i < n; i++) y[i] = z3i_fmaf((x[i] - mean) * rstd, w[i], b[i]);
}

/* The second pass also sums the deviations themselves: they correct the rounding of the mean, which matters where
 * the mean is large beside the deviations. */
static void forward_rows(void *ctx, int64_t lo, int64_t hi)
{
  const norm *f = ctx;
  const z3i_view *x = &f->call->in[0], *y = &f->call->out[0];
  const int64_t C = f->C;
  float buf[Z3I_BLOCK], out[Z3I_BLOCK];
  for (int64_t r = lo; r < hi; r++) {
    const float *p = NULL;                      /* a row that fits in one block is converted once */
    double sum = 0, sum2 = 0;
    float mean = 0;
    if (f->center) {
      for (int64_t i = 0; i < C; i += Z3I_BLOCK) {
        int64_t n = Z3I_MIN(C - i, (int64_t)Z3I_BLOCK);
        p = z3i_block_f32(buf, z3i_at(x, r * C + i), x->dtype, n);
        sum += (double)z3i_vsum(p, n);
      }
      mean = (float)(sum / (double)C);
    }
    sum = 0;
    for (int64_t i = 0; i < C; i += Z3I_BLOCK) {
      int64_t n = Z3I_MIN(C - i, (int64_t)Z3I_BLOCK);
      if (p == NULL || C > Z3I_BLOCK) p = z3i_block_f32(buf, z3i_at(x, r * C + i), x->dtype, n);
      moments(p, n, mean, &sum, &sum2);
    }
    double var = sum2 / (double)C;
    if (f->center) {
      double off = sum / (double)C;
      var = fmax(var - off * off, 0) + (var - var);    /* fmax drops a NaN, the second term brings it back */
      mean = (float)(mean + off);
      f->mean[r] = mean;
    }
    float rstd = (float)(1 / sqrt(var + f->eps));
    f->rstd[r] = rstd;
    for (int64_t i = 0; i < C; i += Z3I_BLOCK) {
      int64_t n = Z3I_MIN(C - i, (int64_t)Z3I_BLOCK);
      if (C > Z3I_BLOCK) p = z3i_block_f32(buf, z3i_at(x, r * C + i), x->dtype, n);
      void *dst = z3i_at(y, r * C + i);
      float *o = z3i_room_f32(out, dst, y->dtype, false);
      apply(o, p, f->w + i, f->b + i, n, mean, rstd);
      z3i_done_f32(dst, y->dtype, o, n, false);
    }
  }
}

/* ---- backward: gx = rstd (gh - mean(gh) - xhat mean(gh xhat)), gw = sum g xhat, gb = sum g ------------ */
static void dots(const float *x, const float *g, const float *w, int64_t n, float mean, float rstd, double *s1,
                        double *s2)
{
  float a[Z3I_LANES] = { 0 }, a2[Z3I_LANES] = { 0 };
  Z3I_EACH_LANE(n, float gh = g[at] * w[at]; a[lane] += gh; a2[lane] += gh * ((x[at] - mean) * rstd););
  *s1 += (double)z3i_lanes_sum(a);
  *s2 += (double)z3i_lanes_sum(a2);
}

static void input_grad(float *restrict gx, const float *restrict x, const float *restrict g, const float *restrict w,
                       int64_t n, float mean, float rstd, float m1, float m2)
{
  for (int64_t i = 0; i < n; i++) {
    float xhat = (x[i] - mean) * rstd;
    gx[i] = rstd * z3i_fmaf(-xhat, m2, z3i_fmaf(g[i], w[i], -m1));
  }
}

static void weight_sums(float *restrict gw, float *restrict gb, const float *restrict x, const float *restrict g,
                        int64_t n, float mean, float rstd)
{
  if (gw != NULL)
    for (int64_t i = 0; i < n; i++) gw[i] = z3i_fmaf(g[i], (x[i] - mean) * rstd, gw[i]);
  if (gb != NULL)
    for (int64_t i = 0; i < n; i++) gb[i] += g[i];
}

static void backward_row(const norm *f, int64_t r, float *part_w, float *part_b)
{
  const z3i_view *x = &f->call->in[0], *g = &f->call->gout[0], *gx = &f->call->gin[0];
  const int64_t C = f->C;
  const bool add = f->call->gin_add & 1u;
  float bufx[Z3I_BLOCK], bufg[Z3I_BLOCK], out[Z3I_BLOCK];
  const float *px = NULL, *pg = NULL;
  float mean = f->center ? f->mean[r] : 0, rstd = f->rstd[r];
  double s1 = 0, s2 = 0;
  for (int64_t i = 0; i < C; i += Z3I_BLOCK) {
    int64_t n = Z3I_MIN(C - i, (int64_t)Z3I_BLOCK);
    px = z3i_block_f32(bufx, z3i_at(x, r * C + i), x->dtype, n);
    pg = z3i_block_f32(bufg, z3i_at(g, r * C + i), g->dtype, n);
    if (gx->data != NULL) dots(px, pg, f->w + i, n, mean, rstd, &s1, &s2);
    weight_sums(part_w ? part_w + i : NULL, part_b ? part_b + i : NULL, px, pg, n, mean, rstd);
  }
  if (gx->data == NULL) return;
  float m1 = f->center ? (float)(s1 / (double)C) : 0, m2 = (float)(s2 / (double)C);
  for (int64_t i = 0; i < C; i += Z3I_BLOCK) {
    int64_t n = Z3I_MIN(C - i, (int64_t)Z3I_BLOCK);
    if (C > Z3I_BLOCK) {
      px = z3i_block_f32(bufx, z3i_at(x, r * C + i), x->dtype, n);
      pg = z3i_block_f32(bufg, z3i_at(g, r * C + i), g->dtype, n);
    }
    void *dst = z3i_at(gx, r * C + i);
    float *o = z3i_room_f32(out, dst, gx->dtype, add);
    input_grad(o, px, pg, f->w + i, n, mean, rstd, m1, m2);
    z3i_done_f32(dst, gx->dtype, o, n, add);
  }
}

/* Exactly one block of f->block rows, whatever the thread: its sums over rows go to the block's own partials. */
static void backward_rows(void *ctx, int64_t lo, int64_t hi)
{
  const norm *f = ctx;
  int64_t at = lo / f->block * f->C;
  float *part_w = f->part_w ? f->part_w + at : NULL, *part_b = f->part_b ? f->part_b + at : NULL;
  if (part_w) memset(part_w, 0, (size_t)f->C * sizeof *part_w);
  if (part_b) memset(part_b, 0, (size_t)f->C * sizeof *part_b);
  for (int64_t r = lo; r < hi; r++) backward_row(f, r, part_w, part_b);
}

/* Columns [lo, hi) of a weight's gradient: the partials in order, in double, rounded once. */
static void combine(const norm *f, const float *part, const z3i_view *gw, bool add, int64_t lo, int64_t hi)
{
  enum { W = 256 };
  const int64_t blocks = (f->R + f->block - 1) / f->block;
  for (int64_t i = lo; i < hi; i += W) {
    int64_t n = Z3I_MIN(hi - i, (int64_t)W);
    double sum[W] = { 0 };
    float total[W];
    for (int64_t k = 0; k < blocks; k++)
      for (int64_t j = 0; j < n; j++) sum[j] += (double)part[k * f->C + i + j];
    for (int64_t j = 0; j < n; j++) total[j] = (float)sum[j];
    z3i_grad_f32(z3i_at(gw, i), gw->dtype, total, n, add);
  }
}

static void combine_cols(void *ctx, int64_t lo, int64_t hi)
{
  const norm *f = ctx;
  const z3i_call *c = f->call;
  if (f->part_w) combine(f, f->part_w, &c->gin[1], c->gin_add & 2u, lo, hi);
  if (f->part_b) combine(f, f->part_b, &c->gin[2], c->gin_add & 4u, lo, hi);
}

/* ---- entry points ----------------------------------------------------------------------------------- */
static void weight_f32(float *dst, const z3i_view *w, int64_t n, float missing)
{
  if (w->data != NULL) z3i_load_f32(dst, w->data, w->dtype, n);
  else
    for (int64_t i = 0; i < n; i++) dst[i] = missing;
}

static int norm_new(norm *f, const z3i_call *c, bool center, int64_t partials, float **scratch)
{
  *f = (norm){ .call = c, .center = center, .R = z3i_rows(&c->in[0]), .C = z3i_cols(&c->in[0]), .eps = c->attr->f[0] };
  f->block = Z3I_MAX(32, (f->R + 127) / 128);
  int64_t blocks = (f->R + f->block - 1) / f->block;
  Z3I_TRY(z3i_scratch(c->dev, (size_t)(2 + partials * blocks) * (size_t)f->C * sizeof(float), (void **)scratch));
  f->w = *scratch;
  f->b = f->w + f->C;
  f->part_w = f->b + f->C;
  f->part_b = f->part_w + blocks * f->C;
  f->mean = center ? c->aux[0].data : NULL;
  f->rstd = center ? c->aux[1].data : c->aux[0].data;
  weight_f32(f->w, &c->in[1], f->C, 1);
  weight_f32(f->b, &c->in[2], f->C, 0);
  return Z3E_OK;
}

static int norm_forward(const z3i_call *c, bool center)
{
  norm f;
  float *scratch;
  Z3I_TRY(norm_new(&f, c, center, 0, &scratch));
  z3i_for_blocks(f.R, z3i_rows_block(f.C), f.R * f.C, forward_rows, &f);
  z3i_pool_free(c->dev, scratch);
  return Z3E_OK;
}

static int norm_backward(const z3i_call *c, bool center)
{
  norm f;
  float *scratch;
  bool want_w = c->gin[1].data != NULL, want_b = center && c->gin[2].data != NULL;
  Z3I_TRY(norm_new(&f, c, center, want_w || want_b ? 2 : 0, &scratch));
  if (!want_w) f.part_w = NULL;
  if (!want_b) f.part_b = NULL;
  z3i_for_blocks(f.R, f.block, f.R * f.C, backward_rows, &f);
  if (want_w || want_b) z3i_for_blocks(f.C, 256, f.R * f.C / f.block * 2, combine_cols, &f);
  z3i_pool_free(c->dev, scratch);
  return Z3E_OK;
}

int Z3I_SYM(layer_norm)(const z3i_call *c) { return norm_forward(c, true); }
int Z3I_SYM(layer_norm_grad)(const z3i_call *c) { return norm_backward(c, true); }
int Z3I_SYM(rms_norm)(const z3i_call *c) { return norm_forward(c, false); }
int Z3I_SYM(rms_norm_grad)(const z3i_call *c) { return norm_backward(c, false); }
