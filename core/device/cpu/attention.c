/* attention.c -- attention on tiles where the machine has them (attn_amx.c), else as compiled for the level in force
 * (isa/attn.c, isa/attn_bwd.c). */
#include "device/cpu/attn_amx.h"
#include "device/cpu/cpu_kernels.h"
#include "device/cpu/isa/attn_levels.h"

#ifdef __x86_64__
int z3i_cpu_attention_fwd(const z3i_call *c)
{
  const char *level = z3i_isa()->name;
  if (z3i_attn_amx_takes(c, false)) return z3i_attn_amx_fwd(c);
  if (strcmp(level, "v4") == 0) return z3i_attention_v4(c);
  return strcmp(level, "v3") == 0 ? z3i_attention_v3(c) : z3i_attention_v2(c);
}
int z3i_cpu_attention_bwd(const z3i_call *c)
{
  const char *level = z3i_isa()->name;
  if (z3i_attn_amx_takes(c, true)) return z3i_attn_amx_bwd(c);
  if (strcmp(level, "v4") == 0) return z3i_attention_grad_v4(c);
  return strcmp(level, "v3") == 0 ? z3i_attention_grad_v3(c) : z3i_attention_grad_v2(c);
}
#else
int z3i_cpu_attention_fwd(const z3i_call *c) { return z3i_attention_base(c); }
int z3i_cpu_attention_bwd(const z3i_call *c) { return z3i_attention_grad_base(c); }
#endif
