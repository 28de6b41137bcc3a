/* grad_rules.c -- backward of operations that need no kernel of their own: the gradient is the incoming one seen,
 * scaled or summed in another way. Nothing is copied that a view can show. */
#include "ops/op.h"

#define GRAD(name) int z3i_grad_##name(z3i_back *b); int z3i_grad_##name(z3i_back *b)

GRAD(none)
{
  (void)b;
  return Z3E_OK;                                  /* results of these never require a gradient */
}

GRAD(pass)
{
  return b->want[0] ? z3i_sum_to(b->gout[0], &b->in_meta[0], &b->gin[0]) : Z3E_OK;
}

static int negated(z3i_back *b, int i)
{
  z3_tensor *neg;
  Z3I_TRY(z3i_op1(Z3OP_neg, b->gout[0], NULL, NULL, NULL, &neg));
  int rc = z3i_sum_to(neg, &b->in_meta[i], &b->gin[i]);
  z3_tensor_release(neg);
  return rc;
}

GRAD(neg) { return b->want[0] ? negated(b, 0) : Z3E_OK; }

static int scaled(z3i_back *b, double factor)
{
  z3_tensor *g;
  Z3I_TRY(z3i_op1(Z3OP_mul_scalar, b->gout[0], NULL, NULL, &(z3_attr){ .f = { factor } }, &g));
  int rc = z3i_sum_to(g, &b->in_meta[0], &b->gin[0]);
  z3_tensor_release(g);
  return rc;
}

GRAD(scale) { return b->want[0] ? scaled(b, b->attr->f[0]) : Z3E_OK; }

GRAD(add)
{
  for (int i = 0; i < 2; i++)
    if (b->want[i]) Z3I_TRY(z3i_sum_to(b->gout[0], &b->in_meta[i], &b->gin[i]));
  return Z3E_OK;
}

GRAD(sub)
{
  if (b->want[0]) Z3I_TRY(z3i_sum_to(b->gout[0], &b->in_meta[0], &b->gin[0]));
  return b->want[1] ? negated(b, 1) : Z3E_OK;
}

static int shaped(z3_tensor *t, const z3i_meta *m, z3_tensor **out)
{
  z3_attr attr = { .i = { m->ndim } };
  for (int i = 0; i < m->ndim; i++) attr.i[1 + i] = m->shape[i];
  attr.i[9] = 1;
  return z3i_op1(Z3OP_view, t, NULL, NULL, &attr, out);
}

/* The gradient of a sum is the same everywhere: an expanded view of it. */
static int spread(z3i_back *b, z3_tensor *g)
{
  const z3i_meta *m = &b->in_meta[0];
  z3i_meta kept = *m;
  for (int i = 0; i < m->ndim; i++)
    if ((b->attr->i[0] >> i) & 1) kept.shape[i] = 1;
  z3_tensor *small;
  Z3I_TRY(shaped(g, &kept, &small));
  z3_attr attr = { .i = { m->ndim } };
  for (int i = 0; i < m->ndim; i++) attr.i[1 + i] = m->shape[i];
  int rc = z3i_op1(Z3OP_expand, small, NULL, NULL, &attr, &b->gin[0]);
  z3_tensor_release(small);
  return rc;
}

GRAD(sum) { return b->want[0] ? spread(b, b->gout[0]) : Z3E_OK; }

GRAD(mean)
{
  if (!b->want[0]) return Z3E_OK;
  int64_t count = 1;
  for (int i = 0; i < b->in_meta[0].ndim; i++)
    if ((b->attr->i[0] >> i) & 1) count *= b->in_meta[0].shape[i];
  z3_tensor *g;
  Z3I_TRY(z3i_op1(Z3OP_div_scalar, b->gout[0], NULL, NULL, &(z3_attr){ .f = { (double)Z3I_MAX(count, 1) } }, &g));
  int rc = spread(b, g);
  z3_tensor_release(g);
  return rc;
}

GRAD(view) { return b->want[0] ? shaped(b->gout[0], &b->in_meta[0], &b->gin[0]) : Z3E_OK; }

GRAD(permute)
{
  if (!b->want[0]) return Z3E_OK;
  z3_attr back = { 0 };
  for (int i = 0; i < b->in_meta[0].ndim; i++) back.i[b->attr->i[i]] = i;
  return z3i_op1(Z3OP_permute, b->gout[0], NULL, NULL, &back, &b->gin[0]);
}

/* Zeros but for the part. The tape adds later parts of the same tensor in place (see tape/backward.c). */
GRAD(narrow)
{
  if (!b->want[0]) return Z3E_OK;
  const z3i_meta *m = &b->in_meta[0];
  z3_tensor *part = NULL;
  int rc;
  Z3I_TRY(z3i_tensor_alloc(b->dev, m->dtype, m->ndim, m->shape, Z3M_ACTIVATION, &b->gin[0]));
  Z3I_TRY_GOTO(rc, z3_tensor_fill(b->gin[0], 0), done);
  Z3I_TRY_GOTO(rc, z3i_op1(Z3OP_narrow, b->gin[0], NULL, NULL, b->attr, &part), done);
  rc = z3_tensor_copy(part, b->gout[0]);
done:
  z3_tensor_release(part);
  return rc;
}

GRAD(expand) { return b->want[0] ? z3i_sum_to(b->gout[0], &b->in_meta[0], &b->gin[0]) : Z3E_OK; }

GRAD(cat)
{
  z3_attr part = { .i = { b->attr->i[0] } };
  for (int i = 0; i < b->n_in; i++) {
    part.i[2] = b->in_meta[i].shape[b->attr->i[0]];
    if (b->want[i]) Z3I_TRY(z3i_op1(Z3OP_narrow, b->gout[0], NULL, NULL, &part, &b->gin[i]));
    part.i[1] += part.i[2];
  }
  return Z3E_OK;
}
