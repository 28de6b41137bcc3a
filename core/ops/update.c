/* update.c -- updates of parameters, and the sum of squares: checked here, done by the device. See zero3/optim.h. */
#include <math.h>

#include "prof/prof.h"
#include "tensor/tensor.h"
#include "zero3/optim.h"

static int want(const z3_tensor *t, const char *what, int64_t numel, bool f32)
{
  Z3I_TRY(z3i_tensor_check(t, what));
  if (t->numel != numel || !t->contiguous)
    return Z3I_FAIL(Z3E_SHAPE, "update: %s has %" PRId64 " elements%s, the master has %" PRId64, what, t->numel,
                    t->contiguous ? "" : " and isn't contiguous", numel);
  bool fits = f32 ? t->dtype == Z3T_F32 : t->dtype == Z3T_BF16 || t->dtype == Z3T_F16;
  if (!fits)
    return Z3I_FAIL(Z3E_DTYPE, "update: %s is %s, wants %s", what, z3_dtype_name(t->dtype),
                    f32 ? "f32" : "bf16 or f16");
  return Z3E_OK;
}

static void *data(z3_tensor *t)
{
  if (t == NULL) return NULL;
  t->storage->version++;
  return (char *)t->storage->data + t->offset * z3i_dtype_bytes(t->dtype);
}

static int check(z3_tensor *master, z3_tensor *m, z3_tensor *v, z3_tensor *grad, z3_tensor *weight16,
                 const z3_update_args *a)
{
  Z3I_REQUIRE(a != NULL, "update: args is NULL");
  Z3I_REQUIRE(a->kind >= Z3_ADAMW && a->kind <= Z3_LION, "update: kind is %d, wants 0 to 3", a->kind);
  Z3I_REQUIRE(a->step >= 1, "update: step is %" PRId64 ", wants >= 1", a->step);
  Z3I_TRY(z3i_tensor_check(master, "update: master"));
  int64_t n = master->numel;
  Z3I_TRY(want(master, "master", n, true));
  Z3I_TRY(want(grad, "gradient", n, true));
  bool adam = a->kind == Z3_ADAMW || a->kind == Z3_ADAM;
  if (adam || a->kind == Z3_LION || a->momentum != 0) Z3I_TRY(want(m, "first moment", n, true));
  if (adam) Z3I_TRY(want(v, "second moment", n, true));
  if (weight16 != NULL) Z3I_TRY(want(weight16, "weight", n, false));
  return Z3E_OK;
}

int z3_update(z3_tensor *master, z3_tensor *m, z3_tensor *v, z3_tensor *grad, z3_tensor *weight16,
              const z3_update_args *a)
{
  Z3I_TRY(check(master, m, v, grad, weight16, a));
  z3i_device *dev = master->storage->dev;
  if (master->numel == 0 || !dev->computes) return Z3E_OK;
  /* Bias corrections in double, once per call: in f32, 1 - 0.999f is already off by 1.3e-5. */
  double t = (double)a->step;
  z3i_update u = { .kind = a->kind,
                   .n = master->numel,
                   .master = data(master),
                   .m = data(m),
                   .v = data(v),
                   .grad = (float *)grad->storage->data + grad->offset,
                   .weight16 = data(weight16),
                   .weight16_dtype = weight16 ? weight16->dtype : 0,
                   .grad_scale = (float)a->grad_scale,
                   .lr = a->lr,
                   .beta1 = a->beta1,
                   .beta2 = a->beta2,
                   .eps = a->eps,
                   .weight_decay = a->weight_decay,
                   .momentum = a->momentum,
                   .bias1 = 1 - pow(a->beta1, t),
                   .bias2 = 1 - pow(a->beta2, t),
                   .nesterov = a->nesterov,
                   .first = a->step == 1 };
  int64_t start = z3i_prof_start();
  Z3I_TRY(dev->update(&u));
  z3i_prof_add(Z3P_UPDATE, a->kind, start,
               u.n * (12 + 8 * (u.m != NULL) + 8 * (u.v != NULL) + 2 * (u.weight16 != NULL)), 0, "");
  return Z3E_OK;
}

int z3_sumsq(z3_tensor *t, double *sum, int64_t *nonfinite)
{
  *sum = 0;
  *nonfinite = 0;
  Z3I_TRY(z3i_tensor_check(t, "sumsq"));
  if (t->numel == 0 || !t->storage->dev->computes) return Z3E_OK;
  z3i_view v;
  z3i_tensor_describe(t, &v);
  int64_t start = z3i_prof_start();
  Z3I_TRY(t->storage->dev->sumsq(&v, sum, nonfinite));
  z3i_prof_add(Z3P_NORM, 0, start, t->numel * z3i_dtype_bytes(t->dtype), 0, "");
  return Z3E_OK;
}
