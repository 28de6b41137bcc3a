/* zero3.h -- the whole public interface of libzero3.so.
 * The same text is the C header and, through `cc -E -P -DZ3_CDEF`, what LuaJIT's ffi.cdef reads: nothing is declared
 * twice. Hence the rules of the headers: only types, enums and functions; directives hidden from Z3_CDEF. */
#ifndef ZERO3_ZERO3_H
#define ZERO3_ZERO3_H
#include "zero3/status.h"
#include "zero3/dtype.h"
#include "zero3/tensor.h"
#include "zero3/ops.h"
#include "zero3/tape.h"
#include "zero3/optim.h"
#include "zero3/device.h"
#include "zero3/json.h"
#include "zero3/config.h"
#include "zero3/safetensors.h"
#include "zero3/prof.h"

/* What this library was built with, one line of name=value: "onednn=2.6 openmp=1 luajit=2.1-gc64 mpi=0 cuda=0 ...". */
const char *z3_build_features(void);
#endif
