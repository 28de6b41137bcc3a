/* slab.h -- slots for tensor handles (see slab.c). Private to tensor/. */
#ifndef Z3I_SLAB_H
#define Z3I_SLAB_H
#include "tensor/tensor.h"

z3_tensor *z3i_slab_take(void);                   /* zeroed, magic set, one reference; NULL: no memory (error set) */
void z3i_slab_give(z3_tensor *t);
#endif
