/* embed.c -- embedding: rows of a table looked up by id; backward sums the rows' gradients by id.
 * Legend: ids (any shape, N of them), w (V,C), out (..,C). */
#include "device/cpu/isa/isa_kernels.h"
#include "device/cpu/isa/take.h"

int Z3I_SYM(embedding)(const z3i_call *c)
{
  const z3i_view *ids = &c->in[0], *w = &c->in[1];
  Z3I_TRY(z3i_ids_check(ids, w->shape[0], NULL, "embedding: id", "rows"));
  z3i_rows_take(&c->out[0], w, ids, 1, w->shape[0], w->shape[1]);
  return Z3E_OK;
}

int Z3I_SYM(embedding_grad)(const z3i_call *c)
{
  const z3i_view *gw = &c->gin[1];
  if (gw->data == NULL) return Z3E_OK;
  Z3I_TRY(z3i_ids_check(&c->in[0], gw->shape[0], NULL, "embedding: id", "rows"));
  return z3i_rows_sum(c->dev, gw, &c->gout[0], &c->in[0], 1, gw->shape[0], gw->shape[1], c->gin_add & 2u);
}
