/* safetensors_write.c -- writes a safetensors file beside its place, then moves it there when it is whole.
 * Equal content gives equal bytes: the order depends on element sizes and names only. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/json.h"
#include "io/safetensors.h"

typedef struct tensor {
  char *name;
  int64_t name_bytes, bytes, offset;              /* offset: from the start of the data, then of the file */
  int64_t written;                                /* bytes so far, by the lengths of the writes */
  int64_t shape[Z3_MAX_DIMS];
  int dtype, ndim;
} tensor;

typedef struct pair {
  char *key, *value;
  int64_t key_bytes, value_bytes;
} pair;

struct z3_st_writer {
  char *path, *temporary;                         /* temporary: NULL while there is no file */
  int fd;
  tensor *tensors;                                /* in order of declaration */
  tensor **order;                                 /* as they lie in the file */
  pair *pairs;
  int64_t count, room, pair_count, pair_room;
};

/* ---- declaring ----------------------------------------------------------------------------------- */
int z3_st_writer_new(const char *path, z3_st_writer **out)
{
  Z3I_REQUIRE(out != NULL, "safetensors: out is NULL");
  *out = NULL;
  Z3I_REQUIRE(path != NULL && path[0] != '\0', "safetensors: the path to write is empty");
  z3_st_writer *w = z3i_alloc(sizeof *w);
  if (w == NULL) return Z3E_OOM;
  w->fd = -1;
  w->path = z3i_strdup(path);
  if (w->path == NULL) {
    z3i_free(w);
    return Z3E_OOM;
  }
  *out = w;
  return Z3E_OK;
}

static char *copy_bytes(const char *s, int64_t n)
{
  char *copy = z3i_alloc((size_t)n + 1);
  if (copy != NULL) memcpy(copy, s, (size_t)n);
  return copy;
}

/* The JSON of a file can only hold UTF-8. */
static int check_text(const z3_st_writer *w, const char *what, const char *s, int64_t n)
{
  Z3I_REQUIRE(s != NULL && n >= 0, "%s: %s is missing", w->path, what);
  z3i_text t = { 0 };
  z3_json *doc = NULL;
  z3i_json_quote(&t, s, (size_t)n);
  int rc = t.rc != Z3E_OK ? t.rc : z3i_json_parse(t.p, t.used, w->path, Z3J_STRICT, Z3E_ARG, &doc);
  z3_json_free(doc);
  z3i_text_free(&t);
  return rc == Z3E_ARG ? Z3I_FAIL(Z3E_ARG, "%s: %s is not valid UTF-8", w->path, what) : rc;
}

/* Room for one more in a growing array. */
static int room_for_one(void **array, int64_t count, int64_t *room, size_t each)
{
  if (count < *room) return Z3E_OK;
  int64_t wanted = *room + *room / 2 + 16;
  void *grown = z3i_realloc(*array, (size_t)wanted * each);
  if (grown == NULL) return Z3E_OOM;
  *array = grown;
  *room = wanted;
  return Z3E_OK;
}

static int tensor_bytes(const z3_st_writer *w, const char *name, int dtype, int ndim, const int64_t *shape,
                        int64_t *bytes)
{
  Z3I_REQUIRE(z3i_dtype_ok(dtype), "%s: '%.200s' has dtype %d, which is none", w->path, name, dtype);
  Z3I_REQUIRE(ndim >= 0 && ndim <= Z3_MAX_DIMS && (shape != NULL || ndim == 0),
              "%s: '%.200s' has %d dims, wants 0 to %d", w->path, name, ndim, (int)Z3_MAX_DIMS);
  *bytes = z3i_dtype_bytes(dtype);
  bool zero = false;
  for (int i = 0; i < ndim; i++) {
    Z3I_REQUIRE(shape[i] >= 0, "%s: '%.200s' has size %" PRId64 " in dim %d, wants >= 0", w->path, name, shape[i], i);
    zero = zero || shape[i] == 0;
  }
  for (int i = 0; i < ndim && !zero; i++)
    Z3I_REQUIRE(!__builtin_mul_overflow(*bytes, shape[i], bytes), "%s: '%.200s' is beyond 2^63 bytes", w->path, name);
  if (zero) *bytes = 0;
  return Z3E_OK;
}

int z3_st_writer_add(z3_st_writer *w, const char *name, int64_t name_bytes, int dtype, int ndim, const int64_t *shape,
                     int64_t *id)
{
  int64_t bytes = 0;
  Z3I_REQUIRE(w != NULL && id != NULL, "safetensors: no writer or no room for the id");
  Z3I_REQUIRE(w->order == NULL, "%s: tensors are declared before begin", w->path);
  Z3I_TRY(check_text(w, "a tensor's name", name, name_bytes));
  bool reserved = name_bytes == 12 && memcmp(name, "__metadata__", 12) == 0;
  Z3I_REQUIRE(!reserved, "%s: a tensor can't be called __metadata__", w->path);
  Z3I_TRY(tensor_bytes(w, name, dtype, ndim, shape, &bytes));
  Z3I_TRY(room_for_one((void **)&w->tensors, w->count, &w->room, sizeof *w->tensors));
  tensor t = { .name_bytes = name_bytes, .bytes = bytes, .dtype = dtype, .ndim = ndim };
  for (int i = 0; i < ndim; i++) t.shape[i] = shape[i];
  t.name = copy_bytes(name, name_bytes);
  if (t.name == NULL) return Z3E_OOM;
  *id = w->count;
  w->tensors[w->count++] = t;
  return Z3E_OK;
}

int z3_st_writer_meta(z3_st_writer *w, const char *key, int64_t key_bytes, const char *value, int64_t value_bytes)
{
  Z3I_REQUIRE(w != NULL, "safetensors: no writer");
  Z3I_REQUIRE(w->order == NULL, "%s: metadata are declared before begin", w->path);
  Z3I_TRY(check_text(w, "a metadata key", key, key_bytes));
  Z3I_TRY(check_text(w, "a metadata value", value, value_bytes));
  Z3I_TRY(room_for_one((void **)&w->pairs, w->pair_count, &w->pair_room, sizeof *w->pairs));
  pair p = { .key = copy_bytes(key, key_bytes), .key_bytes = key_bytes, .value_bytes = value_bytes };
  if (p.key != NULL) p.value = copy_bytes(value, value_bytes);
  if (p.value == NULL) {
    z3i_free(p.key);
    return Z3E_OOM;
  }
  w->pairs[w->pair_count++] = p;
  return Z3E_OK;
}

/* ---- layout and header --------------------------------------------------------------------------- */
static int compare_bytes(const char *a, int64_t a_bytes, const char *b, int64_t b_bytes)
{
  int order = memcmp(a, b, (size_t)Z3I_MIN(a_bytes, b_bytes));
  return order != 0 ? order : a_bytes < b_bytes ? -1 : a_bytes > b_bytes;
}

static int compare_tensor_names(const tensor *x, const tensor *y)
{
  return compare_bytes(x->name, x->name_bytes, y->name, y->name_bytes);
}

static int by_size_then_name(const void *a, const void *b)
{
  const tensor *x = *(tensor *const *)a, *y = *(tensor *const *)b;
  int size_x = z3i_dtype_bytes(x->dtype), size_y = z3i_dtype_bytes(y->dtype);
  return size_x != size_y ? size_y - size_x : compare_tensor_names(x, y);
}

static int by_tensor_name(const void *a, const void *b)
{
  return compare_tensor_names(*(tensor *const *)a, *(tensor *const *)b);
}

static int by_key(const void *a, const void *b)
{
  const pair *x = a, *y = b;
  return compare_bytes(x->key, x->key_bytes, y->key, y->key_bytes);
}

static int check_names(z3_st_writer *w)
{
  qsort(w->order, (size_t)w->count, sizeof *w->order, by_tensor_name);
  for (int64_t i = 1; i < w->count; i++)
    Z3I_REQUIRE(compare_tensor_names(w->order[i - 1], w->order[i]) != 0, "%s: two tensors are called '%.200s'", w->path,
                w->order[i]->name);
  if (w->pair_count > 1) qsort(w->pairs, (size_t)w->pair_count, sizeof *w->pairs, by_key);
  for (int64_t i = 1; i < w->pair_count; i++)
    Z3I_REQUIRE(by_key(&w->pairs[i - 1], &w->pairs[i]) != 0, "%s: two metadata are called '%.200s'", w->path,
                w->pairs[i].key);
  return Z3E_OK;
}

/* Orders the tensors and gives each its place. */
static int lay_out(z3_st_writer *w)
{
  w->order = z3i_alloc((size_t)(w->count + 1) * sizeof *w->order);
  if (w->order == NULL) return Z3E_OOM;
  for (int64_t i = 0; i < w->count; i++) w->order[i] = &w->tensors[i];
  Z3I_TRY(check_names(w));
  qsort(w->order, (size_t)w->count, sizeof *w->order, by_size_then_name);
  int64_t end = 0;
  for (int64_t i = 0; i < w->count; i++) {
    w->order[i]->offset = end;
    Z3I_REQUIRE(!__builtin_add_overflow(end, w->order[i]->bytes, &end) && end < INT64_MAX / 2,
                "%s: the tensors come to more than 2^62 bytes", w->path);
  }
  return Z3E_OK;
}

static void header_text(const z3_st_writer *w, z3i_text *t)
{
  z3i_text_str(t, "{");
  if (w->pair_count > 0) z3i_text_str(t, "\"__metadata__\":{");
  for (int64_t i = 0; i < w->pair_count; i++) {
    if (i > 0) z3i_text_str(t, ",");
    z3i_json_quote(t, w->pairs[i].key, (size_t)w->pairs[i].key_bytes);
    z3i_text_str(t, ":");
    z3i_json_quote(t, w->pairs[i].value, (size_t)w->pairs[i].value_bytes);
  }
  if (w->pair_count > 0) z3i_text_str(t, w->count > 0 ? "}," : "}");
  for (int64_t i = 0; i < w->count; i++) {
    const tensor *x = w->order[i];
    if (i > 0) z3i_text_str(t, ",");
    z3i_json_quote(t, x->name, (size_t)x->name_bytes);
    z3i_text_fmt(t, ":{\"dtype\":\"%s\",\"shape\":[", z3i_st_dtype_name(x->dtype));
    for (int d = 0; d < x->ndim; d++) z3i_text_fmt(t, "%s%" PRId64, d > 0 ? "," : "", x->shape[d]);
    z3i_text_fmt(t, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", x->offset, x->offset + x->bytes);
  }
  z3i_text_str(t, "}");
  while (t->used % 8 != 0 && t->rc == Z3E_OK) z3i_text_add(t, " ", 1);
}

/* ---- the file ------------------------------------------------------------------------------------ */
static int io_error(const z3_st_writer *w, const char *what, const tensor *t)
{
  int why = errno;
  return Z3I_FAIL(Z3E_IO, "%s: cannot %s%s%.200s%s: %s", w->path, what, t != NULL ? " '" : "", t != NULL ? t->name : "",
                  t != NULL ? "'" : "", strerror(why));
}

static int write_at(const z3_st_writer *w, const void *data, int64_t bytes, int64_t offset, const tensor *t)
{
  for (const char *p = data; bytes > 0;) {
    ssize_t n = pwrite(w->fd, p, (size_t)Z3I_MIN(bytes, (int64_t)1 << 30), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(w, "write", t);
    p += n;
    bytes -= n;
    offset += n;
  }
  return Z3E_OK;
}

/* A file of its own beside `path`: same disk, so that the rename at the end is one step. */
static int make_temporary(z3_st_writer *w)
{
  static atomic_int serial;
  z3i_text t = { 0 };
  z3i_text_fmt(&t, "%s.%ld-%d.tmp", w->path, (long)getpid(), atomic_fetch_add(&serial, 1));
  if (t.rc != Z3E_OK) return t.rc;
  w->fd = open(t.p, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (w->fd < 0) {
    int rc = io_error(w, "write", NULL);
    z3i_text_free(&t);
    return rc;
  }
  w->temporary = t.p;
  return Z3E_OK;
}

static void discard(z3_st_writer *w)
{
  if (w->fd >= 0) close(w->fd);
  w->fd = -1;
  if (w->temporary != NULL) unlink(w->temporary);
  z3i_free(w->temporary);
  w->temporary = NULL;
}

int z3_st_writer_begin(z3_st_writer *w)
{
  Z3I_REQUIRE(w != NULL && w->order == NULL, "safetensors: begin comes once, on a writer");
  Z3I_TRY(lay_out(w));
  z3i_text t = { 0 };
  z3i_text_add(&t, "\0\0\0\0\0\0\0\0", 8);
  header_text(w, &t);
  int rc = t.rc;
  if (rc == Z3E_OK && t.used - 8 > Z3I_ST_HEADER_MAX)
    rc = Z3I_FAIL(Z3E_UNSUPPORTED, "%s: the header would be %zu bytes; readers take at most %d", w->path, t.used - 8,
                  (int)Z3I_ST_HEADER_MAX);
  if (rc == Z3E_OK) rc = make_temporary(w);
  for (int i = 0; rc == Z3E_OK && i < 8; i++) t.p[i] = (char)((t.used - 8) >> (8 * i) & 0xFF);
  if (rc == Z3E_OK) rc = write_at(w, t.p, (int64_t)t.used, 0, NULL);
  for (int64_t i = 0; i < w->count; i++) w->tensors[i].offset += (int64_t)t.used;
  z3i_text_free(&t);
  if (rc != Z3E_OK) discard(w);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

static int tensor_of(const z3_st_writer *w, int64_t id, tensor **out)
{
  Z3I_REQUIRE(w != NULL, "safetensors: no writer");
  Z3I_REQUIRE(w->temporary != NULL, "%s: nothing can be written before begin, or after an error or commit", w->path);
  Z3I_REQUIRE(id >= 0 && id < w->count, "%s: tensor %" PRId64 "; there are %" PRId64, w->path, id, w->count);
  *out = &w->tensors[id];
  return Z3E_OK;
}

int z3_st_writer_offset(const z3_st_writer *w, int64_t id, int64_t *offset)
{
  tensor *t;
  Z3I_TRY(tensor_of(w, id, &t));
  Z3I_REQUIRE(offset != NULL, "safetensors: no room for the offset");
  *offset = t->offset;
  return Z3E_OK;
}

int z3_st_writer_write(z3_st_writer *w, int64_t id, int64_t first, const void *data, int64_t bytes)
{
  tensor *t;
  Z3I_TRY(tensor_of(w, id, &t));
  Z3I_REQUIRE(
      first >= 0 && bytes >= 0 && first <= t->bytes && bytes <= t->bytes - first && (data != NULL || bytes == 0),
      "%s: bytes %" PRId64 " + %" PRId64 " of '%.200s', which has %" PRId64, w->path, first, bytes, t->name, t->bytes);
  Z3I_TRY(write_at(w, data, bytes, t->offset + first, t));
  t->written += bytes;
  return Z3E_OK;
}

/* A rename is on disk when its folder is. Some file systems can't flush a folder: that is no failure of ours. */
static void flush_folder(const char *path)
{
  char folder[PATH_MAX];
  const char *slash = strrchr(path, '/');
  snprintf(folder, sizeof folder, "%.*s",
           slash == NULL   ? 1
           : slash == path ? 1
                           : (int)(slash - path),
           slash == NULL ? "." : path);
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)fsync(fd);
  close(fd);
}

static int finish(z3_st_writer *w)
{
  if (fsync(w->fd) != 0) return io_error(w, "flush", NULL);
  int fd = w->fd;
  w->fd = -1;
  if (close(fd) != 0) return io_error(w, "close", NULL);
  if (rename(w->temporary, w->path) != 0) return io_error(w, "put in place", NULL);
  z3i_free(w->temporary);
  w->temporary = NULL;
  flush_folder(w->path);
  return Z3E_OK;
}

int z3_st_writer_commit(z3_st_writer *w)
{
  Z3I_REQUIRE(w != NULL, "safetensors: no writer");
  Z3I_REQUIRE(w->temporary != NULL, "%s: nothing can be committed before begin, or after an error or commit", w->path);
  for (int64_t i = 0; i < w->count; i++)
    Z3I_REQUIRE(w->tensors[i].written == w->tensors[i].bytes,
                "%s: '%.200s' has %" PRId64 " bytes, %" PRId64 " were written", w->path, w->tensors[i].name,
                w->tensors[i].bytes, w->tensors[i].written);
  int rc = finish(w);
  if (rc != Z3E_OK) discard(w);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

void z3_st_writer_free(z3_st_writer *w)
{
  if (w == NULL) return;
  discard(w);
  for (int64_t i = 0; i < w->count; i++) z3i_free(w->tensors[i].name);
  for (int64_t i = 0; i < w->pair_count; i++) {
    z3i_free(w->pairs[i].key);
    z3i_free(w->pairs[i].value);
  }
  z3i_free(w->tensors);
  z3i_free(w->order);
  z3i_free(w->pairs);
  z3i_free(w->path);
  z3i_free(w);
}
