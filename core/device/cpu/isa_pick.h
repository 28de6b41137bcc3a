/* isa_pick.h -- choosing the kernel table once per process (see isa_pick.c). */
#ifndef Z3I_ISA_PICK_H
#define Z3I_ISA_PICK_H
#include <stdbool.h>

/* Z3E_ARG when Z3_CPU asks for what isn't known or isn't there; z3i_isa() then is the least table. */
int z3i_isa_pick(void);
/* Whether the processor has AMX with bf16, the system saves its tiles, and Z3_CPU doesn't cap it. */
bool z3i_isa_amx(void);
#endif
