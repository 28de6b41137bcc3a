/* hash.c -- 64-bit FNV-1a over bytes. Source: Fowler, Noll, Vo (RFC 9923). */
#include "base/base.h"

uint64_t z3i_hash_bytes(const void *p, size_t bytes, uint64_t seed)
{
  const unsigned char *c = p;
  uint64_t h = 14695981039346656037ull ^ seed;
  for (size_t i = 0; i < bytes; i++) h = (h ^ c[i]) * 1099511628211ull;
  return h;
}
