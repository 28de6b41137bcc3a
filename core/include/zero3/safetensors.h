/* safetensors.h -- files of named tensors: a header of JSON, then their bytes. Reading checks every bound first; a file
 * that is written appears under its name only when it is whole.
 * Legend: index = a tensor's place in the file, in the order of its bytes, from 0.
 * Source: https://github.com/huggingface/safetensors (format), read strictly. */
#ifndef ZERO3_SAFETENSORS_H
#define ZERO3_SAFETENSORS_H
#ifndef Z3_CDEF
#include "zero3/status.h"
#include "zero3/dtype.h"
#endif

typedef struct z3_st z3_st;
typedef struct z3_st_writer z3_st_writer;

typedef struct z3_st_info {
  const char *name;                               /* NUL-terminated, and may hold NULs too */
  const char *dtype_name;                         /* as in the file: "F32", "F8_E4M3" */
  const int64_t *shape;                           /* ndim sizes >= 0 */
  int64_t name_bytes;
  int64_t offset, bytes;                          /* where its bytes are, from the start of the file */
  int dtype;                                      /* Z3T_..., -1: a type that tensors here don't have */
  int ndim;                                       /* may exceed Z3_MAX_DIMS */
} z3_st_info;

/* ---- reading: the header is checked whole at open; texts and shapes are borrowed until close ------------------ */
/* Errors: Z3E_IO (cannot open or read); Z3E_CORRUPT names the file, what is wrong and the tensor; Z3E_OOM. */
int z3_st_open(const char *path, z3_st **out);
void z3_st_close(z3_st *f);                       /* NULL is harmless; ends pointers from z3_st_map */
int64_t z3_st_count(const z3_st *f);
int z3_st_info_get(const z3_st *f, int64_t index, z3_st_info *out);
int64_t z3_st_find(const z3_st *f, const char *name, int64_t name_bytes);   /* index, -1: no such name */
/* Metadata: pair i of z3_st_meta_count, in the order of the file. */
int64_t z3_st_meta_count(const z3_st *f);
int z3_st_meta_get(const z3_st *f, int64_t i, const char **key, int64_t *key_bytes, const char **value,
                   int64_t *value_bytes);
/* Copies bytes [first, first + bytes) of a tensor. Errors: Z3E_ARG (range), Z3E_IO (disk failed, file cut short). */
int z3_st_read(z3_st *f, int64_t index, int64_t first, int64_t bytes, void *dst);
/* The tensor's bytes where the file is mapped, read-only, of any alignment; a file that is cut short meanwhile ends the
 * process on access, so this is for files that nobody writes. NULL for a tensor without bytes. Errors: Z3E_IO. */
int z3_st_map(z3_st *f, int64_t index, const void **out);

/* ---- writing: declare, begin, write in any order, commit ------------------------------------------------------ */
int z3_st_writer_new(const char *path, z3_st_writer **out);
/* Declares a tensor; *id counts from 0 in order of declaration. Errors: Z3E_ARG (name taken or not UTF-8, shape). */
int z3_st_writer_add(z3_st_writer *w, const char *name, int64_t name_bytes, int dtype, int ndim, const int64_t *shape,
                     int64_t *id);
int z3_st_writer_meta(z3_st_writer *w, const char *key, int64_t key_bytes, const char *value, int64_t value_bytes);
/* Lays the file out (largest element size first, then by name; metadata by key), makes a temporary file beside `path`,
 * writes the header. Nothing can be declared after. Errors: Z3E_IO, Z3E_OOM. */
int z3_st_writer_begin(z3_st_writer *w);
/* Where a tensor's bytes will be, from the start of the file; valid after begin. */
int z3_st_writer_offset(const z3_st_writer *w, int64_t id, int64_t *offset);
/* Writes bytes [first, first + bytes) of a tensor. Errors: Z3E_ARG (range), Z3E_IO (disk full, ...). */
int z3_st_writer_write(z3_st_writer *w, int64_t id, int64_t first, const void *data, int64_t bytes);
/* Every byte has to be written by now: flushes to disk and gives the file its name. Errors: Z3E_ARG, Z3E_IO. */
int z3_st_writer_commit(z3_st_writer *w);
void z3_st_writer_free(z3_st_writer *w);          /* NULL is harmless; without a commit nothing is left behind */
#endif
