/* version.c -- which library this is: version, features, and the hash of the headers that it was built from.
 * The Makefile passes the three values; a binding made from other headers sees another hash and refuses to load. */
#include "zero3/zero3.h"

const char *z3_version(void)
{
  return Z3I_VERSION;
}

const char *z3_build_features(void)
{
  return Z3I_FEATURES;
}

uint64_t z3_abi_hash(void)
{
  return Z3I_ABI_HASH;
}
