/* cpu_kernels.h -- kernels of the CPU device that are not compiled per instruction set: they stand on the product
 * library (gemm.h) or pick their instruction set themselves. cpu.c puts them into the device's kernel table. */
#ifndef Z3I_CPU_KERNELS_H
#define Z3I_CPU_KERNELS_H
#include "device/device.h"

/* matmul.c */
int z3i_cpu_matmul_fwd(const z3i_call *c);
int z3i_cpu_matmul_bwd(const z3i_call *c);
/* linear.c */
int z3i_cpu_linear_fwd(const z3i_call *c);
int z3i_cpu_linear_bwd(const z3i_call *c);
/* linear_ce.c */
int z3i_cpu_linear_cross_entropy_fwd(const z3i_call *c);
int z3i_cpu_linear_cross_entropy_bwd(const z3i_call *c);
int z3i_cpu_linear_cross_entropy_dry_fwd(const z3i_call *c);
int z3i_cpu_linear_cross_entropy_dry_bwd(const z3i_call *c);
/* attention.c: calls isa/attn.c as compiled for the table in force */
int z3i_cpu_attention_fwd(const z3i_call *c);
int z3i_cpu_attention_bwd(const z3i_call *c);
#endif
