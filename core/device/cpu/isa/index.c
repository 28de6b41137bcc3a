/* index.c -- index_select and gather along one dim, any dtype; backward adds back in the order of the ids.
 * Legend: dim = attr i0; a line = a run of ids along their last dim; slab = all of x behind one index of the dims
 * before dim. gather: out[..,j,..] = x[..,ids[..,j,..],..]; ids may be smaller than x in the other dims. */
#include <omp.h>
#include "device/cpu/isa/isa_kernels.h"
#include "device/cpu/isa/take.h"

static int64_t product(const z3i_view *v, int lo, int hi)
{
  int64_t n = 1;
  for (int i = lo; i < hi; i++) n *= v->shape[i];
  return n;
}

/* ---- index_select ----------------------------------------------------------------------------------- */
int Z3I_SYM(index_select)(const z3i_call *c)
{
  const z3i_view *x = &c->in[0], *ids = &c->in[1];
  const int dim = (int)c->attr->i[0];
  Z3I_TRY(z3i_ids_check(ids, x->shape[dim], NULL, "index_select: id", "entries"));
  z3i_rows_take(&c->out[0], x, ids, product(x, 0, dim), x->shape[dim], product(x, dim + 1, x->ndim));
  return Z3E_OK;
}

int Z3I_SYM(index_select_grad)(const z3i_call *c)
{
  const z3i_view *gx = &c->gin[0], *ids = &c->in[1];
  const int dim = (int)c->attr->i[0];
  if (gx->data == NULL) return Z3E_OK;
  Z3I_TRY(z3i_ids_check(ids, gx->shape[dim], NULL, "index_select: id", "entries"));
  return z3i_rows_sum(c->dev, gx, &c->gout[0], ids, product(gx, 0, dim), gx->shape[dim], product(gx, dim + 1, gx->ndim),
                      c->gin_add & 1u);
}

/* ---- gather ----------------------------------------------------------------------------------------- */
typedef struct gather {
  const z3i_view *x, *ids, *out;                /* backward: x is gin, out is gout */
  int dim;
  int64_t line;                                 /* ids in a line */
  int64_t step;                                 /* elements of x from one id to the next */
  int64_t slide;                                /* and from one element of a line to the next: 0 when dim is the last */
  int64_t slab;
  bool add;
} gather;

static gather gather_of(const z3i_call *c, const z3i_view *x, const z3i_view *out)
{
  gather f = { .x = x, .ids = &c->in[1], .out = out, .dim = (int)c->attr->i[0], .add = c->gin_add & 1u };
  f.line = z3i_cols(f.ids);
  f.step = product(x, f.dim + 1, x->ndim);
  f.slide = f.dim < x->ndim - 1;
  f.slab = product(x, f.dim, x->ndim);
  return f;
}

/* Where line `l` begins in x, were all its ids 0. */
static int64_t line_base(const gather *f, int64_t l)
{
  int64_t base = 0, stride = f->x->shape[f->x->ndim - 1];
  for (int d = f->x->ndim - 2; d >= 0; d--) {
    if (d != f->dim) base += l % f->ids->shape[d] * stride;
    l /= f->ids->shape[d];
    stride *= f->x->shape[d];
  }
  return base;
}

#define GATHER(T)                                                                                   \
  for (int64_t i = 0; i < f->line; i++)                                                             \
  ((T *)f->out->data)[at + i] = ((const T *)f->x->data)[base + z3i_id(f->ids, at + i) * f->step + i * f->slide]

static void gather_lines(void *ctx, int64_t lo, int64_t hi)
{
  const gather *f = ctx;
  for (int64_t l = lo; l < hi; l++) {
    const int64_t base = line_base(f, l), at = l * f->line;
    switch (z3i_dtype_bytes(f->x->dtype)) {
    case 1: GATHER(uint8_t); break;
    case 2: GATHER(uint16_t); break;
    case 4: GATHER(uint32_t); break;
    default: GATHER(uint64_t);
    }
  }
}

int Z3I_SYM(gather_op)(const z3i_call *c)
{
  gather f = gather_of(c, &c->in[0], &c->out[0]);
  Z3I_TRY(z3i_ids_check(f.ids, f.x->shape[f.dim], NULL, "gather: id", "entries"));
  int64_t n = z3i_view_numel(f.ids);
  if (n > 0) z3i_for_blocks(n / f.line, z3i_rows_block(f.line), n, gather_lines, &f);
  return Z3E_OK;
}

/* The index in ids of the lines behind outer index o of x; -1 when ids don't reach there. */
static int64_t outer_of_ids(const gather *f, int64_t o)
{
  int64_t at = 0, stride = 1;
  for (int d = f->dim - 1; d >= 0; d--) {
    int64_t index = o % f->x->shape[d];
    if (index >= f->ids->shape[d]) return -1;
    at += index * stride;
    stride *= f->ids->shape[d];
    o /= f->x->shape[d];
  }
  return at;
}

/* Slab o: sums in plane (the slab itself when it is f32 and written), stored or added whole. */
static void scatter_slab(const gather *f, int64_t o, int64_t lines, float *plane)
{
  const z3i_view *gx = f->x, *g = f->out;
  const int64_t io = outer_of_ids(f, o);
  void *dst = z3i_at(gx, o * f->slab);
  if (io < 0 && f->add) return;
  float *sum = z3i_room_f32(plane, dst, gx->dtype, f->add);
  memset(sum, 0, (size_t)f->slab * sizeof *sum);
  for (int64_t l = io * lines; io >= 0 && l < (io + 1) * lines; l++) {
    const int64_t base = line_base(f, l) - o * f->slab;
    for (int64_t i = 0; i < f->line; i += Z3I_BLOCK) {
      const int64_t n = Z3I_MIN(f->line - i, (int64_t)Z3I_BLOCK), at = l * f->line + i;
      float buf[Z3I_BLOCK];
      const float *p = z3i_block_f32(buf, z3i_at(g, at), g->dtype, n);
      for (int64_t j = 0; j < n; j++) sum[base + z3i_id(f->ids, at + j) * f->step + (i + j) * f->slide] += p[j];
    }
  }
  z3i_done_f32(dst, gx->dtype, sum, f->slab, f->add);
}

int Z3I_SYM(gather_grad)(const z3i_call *c)
{
  if (c->gin[0].data == NULL) return Z3E_OK;
  gather f = gather_of(c, &c->gin[0], &c->gout[0]);
  Z3I_TRY(z3i_ids_check(f.ids, f.x->shape[f.dim], NULL, "gather: id", "entries"));
  const int64_t outer = product(f.x, 0, f.dim), work = outer * f.slab;
  const int64_t lines = f.line > 0 ? product(f.ids, f.dim, f.ids->ndim) / f.line : 0;
  const int threads = (int)Z3I_MAX(1, Z3I_MIN(work < Z3I_PAR_MIN ? 1 : omp_get_max_threads(), outer));
  const bool direct = f.x->dtype == Z3T_F32 && !f.add;
  float *planes = NULL;
  if (!direct) Z3I_TRY(z3i_scratch(c->dev, (size_t)(threads * f.slab) * sizeof *planes, (void **)&planes));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t o = 0; o < outer; o++)
    scatter_slab(&f, o, lines, direct ? NULL : planes + omp_get_thread_num() * f.slab);
  z3i_pool_free(c->dev, planes);
  return Z3E_OK;
}
