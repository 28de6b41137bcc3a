/* safetensors.c -- reads safetensors files. Nothing in a header is believed: every size and range is checked against
 * the file before any use, with arithmetic that notices overflow.
 * File: 8 bytes little-endian length n, n bytes of JSON starting with '{' and padded with spaces, then the data, which
 * the tensors cover without holes or overlap. Source: https://github.com/huggingface/safetensors#format. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/json.h"
#include "io/safetensors.h"

struct z3_st {
  char *path;
  int fd;
  int64_t file_bytes, data;                       /* where the data start */
  z3_json *header;                                /* owns names and metadata */
  z3_st_info *entries;                               /* in the order of their bytes */
  int64_t *by_name;                               /* indices in the order of names */
  int64_t *shapes;
  int64_t count, meta;                            /* meta: node of the metadata, -1: none */
  unsigned char *map;
};

static const struct { const char *name; int bits, dtype; } types[] = {
  { "F32", 32, Z3T_F32 }, { "BF16", 16, Z3T_BF16 }, { "F16", 16, Z3T_F16 },   { "I32", 32, Z3T_I32 },
  { "I64", 64, Z3T_I64 }, { "U8", 8, Z3T_U8 },      { "BOOL", 8, -1 },        { "I8", 8, -1 },
  { "I16", 16, -1 },      { "U16", 16, -1 },        { "U32", 32, -1 },        { "U64", 64, -1 },
  { "F64", 64, -1 },      { "C64", 64, -1 },        { "F8_E5M2", 8, -1 },     { "F8_E4M3", 8, -1 },
  { "F8_E8M0", 8, -1 },   { "F8_E5M2FNUZ", 8, -1 }, { "F8_E4M3FNUZ", 8, -1 }, { "F6_E2M3", 6, -1 },
  { "F6_E3M2", 6, -1 },   { "F4", 4, -1 },
};
enum { TYPES = sizeof types / sizeof *types };

int z3i_st_dtype_bits(const char *name)
{
  for (int i = 0; i < TYPES; i++)
    if (strcmp(types[i].name, name) == 0) return types[i].bits;
  return -1;
}

int z3i_st_dtype_from(const char *name)
{
  for (int i = 0; i < TYPES; i++)
    if (strcmp(types[i].name, name) == 0) return types[i].dtype;
  return -1;
}

const char *z3i_st_dtype_name(int dtype)
{
  for (int i = 0; i < TYPES; i++)
    if (types[i].dtype == dtype && dtype >= 0) return types[i].name;
  return "?";
}

#define CORRUPT(f, fmt, ...) Z3I_FAIL(Z3E_CORRUPT, "%s: " fmt, (f)->path, __VA_ARGS__)
#define CORRUPT_IN(f, n, fmt, ...) CORRUPT(f, "tensor '%.200s' " fmt, (n)->key, __VA_ARGS__)

/* ---- the header ---------------------------------------------------------------------------------- */
static int read_at(const z3_st *f, void *dst, int64_t bytes, int64_t offset)
{
  for (char *p = dst; bytes > 0;) {
    ssize_t n = pread(f->fd, p, (size_t)Z3I_MIN(bytes, (int64_t)1 << 30), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Z3I_FAIL(Z3E_IO, "%s: cannot read: %s", f->path, strerror(errno));
    if (n == 0) return Z3I_FAIL(Z3E_IO, "%s: was cut short while it was read", f->path);
    p += n;
    bytes -= n;
    offset += n;
  }
  return Z3E_OK;
}

static int header_bytes(z3_st *f, int64_t *bytes)
{
  unsigned char raw[8];
  uint64_t n = 0;
  if (f->file_bytes < 8) return CORRUPT(f, "%" PRId64 " bytes; a safetensors file has at least 8", f->file_bytes);
  Z3I_TRY(read_at(f, raw, 8, 0));
  for (int i = 7; i >= 0; i--) n = n << 8 | raw[i];
  if (n > Z3I_ST_HEADER_MAX)
    return CORRUPT(f, "header of %" PRIu64 " bytes; at most %d are allowed", n, (int)Z3I_ST_HEADER_MAX);
  if ((int64_t)n > f->file_bytes - 8)
    return CORRUPT(f, "header of %" PRIu64 " bytes in a file of %" PRId64, n, f->file_bytes);
  if (n < 2) return CORRUPT(f, "header of %" PRIu64 " bytes; the shortest is {}", n);
  *bytes = (int64_t)n;
  f->data = 8 + *bytes;
  return Z3E_OK;
}

static int read_header(z3_st *f)
{
  int64_t bytes = 0;
  Z3I_TRY(header_bytes(f, &bytes));
  char *text = z3i_alloc((size_t)bytes);
  if (text == NULL) return Z3E_OOM;
  int rc = read_at(f, text, bytes, 8);
  int64_t end = bytes;
  while (end > 0 && text[end - 1] == ' ') end--;
  if (rc == Z3E_OK && (text[0] != '{' || end == 0 || text[end - 1] != '}'))
    rc = CORRUPT(f, "the header does not go from '%c' to '}' and spaces", '{');
  if (rc == Z3E_OK) rc = z3i_json_parse(text, (size_t)end, f->path, Z3J_STRICT, Z3E_CORRUPT, &f->header);
  z3i_free(text);
  return rc == Z3E_OK ? rc : z3i_trace(__FILE__, __LINE__, __func__, rc);
}

static int check_metadata(z3_st *f, int64_t node)
{
  const z3_json_node *nodes = f->header->nodes;
  if (nodes[node].kind != Z3J_OBJECT) return CORRUPT(f, "__metadata__ is no object%s", "");
  for (int64_t i = node + 1; i < nodes[node].next; i = nodes[i].next)
    if (nodes[i].kind != Z3J_STRING) return CORRUPT(f, "metadata '%.200s' is not a text", nodes[i].key);
  f->meta = node;
  return Z3E_OK;
}

/* ---- one tensor ---------------------------------------------------------------------------------- */
/* A whole number >= 0, written as one. */
static bool is_size(const z3_json_node *n)
{
  return n->kind == Z3J_NUMBER && n->digits && n->whole_ok && n->whole >= 0;
}

/* Fills in ndim and shape (in f->shapes from *used on) and the number of elements; overflow is no valid shape. */
static int read_shape(z3_st *f, const z3_json_node *tensor, int64_t node, int64_t *used, z3_st_info *info,
                      int64_t *numel)
{
  const z3_json_node *nodes = f->header->nodes;
  bool zero = false;
  if (node < 0 || nodes[node].kind != Z3J_ARRAY) return CORRUPT_IN(f, tensor, "has no list 'shape'%s", "");
  if (nodes[node].count > Z3I_ST_DIMS_MAX)
    return CORRUPT_IN(f, tensor, "has %" PRId64 " dimensions; at most %d are read", nodes[node].count,
                      (int)Z3I_ST_DIMS_MAX);
  info->ndim = (int)nodes[node].count;
  info->shape = f->shapes + *used;
  for (int64_t i = node + 1; i < nodes[node].next; i = nodes[i].next) {
    if (!is_size(&nodes[i])) return CORRUPT_IN(f, tensor, "has a shape with something that is no size%s", "");
    f->shapes[(*used)++] = nodes[i].whole;
    zero = zero || nodes[i].whole == 0;
  }
  *numel = 1;
  for (int i = 0; i < info->ndim && !zero; i++)
    if (__builtin_mul_overflow(*numel, info->shape[i], numel))
      return CORRUPT_IN(f, tensor, "has a shape beyond 2^63%s", "");
  if (zero) *numel = 0;
  return Z3E_OK;
}

static int read_range(z3_st *f, const z3_json_node *tensor, int64_t node, z3_st_info *info)
{
  const z3_json_node *nodes = f->header->nodes;
  bool pair = node >= 0 && nodes[node].kind == Z3J_ARRAY && nodes[node].count == 2;
  const z3_json_node *a = pair ? &nodes[node + 1] : NULL, *b = pair ? &nodes[node + 2] : NULL;
  if (!pair || !is_size(a) || !is_size(b)) return CORRUPT_IN(f, tensor, "has no 'data_offsets' of two sizes%s", "");
  if (b->whole < a->whole || b->whole > f->file_bytes - f->data)
    return CORRUPT_IN(f, tensor, "has data_offsets %" PRId64 " to %" PRId64 " in data of %" PRId64 " bytes", a->whole,
                      b->whole, f->file_bytes - f->data);
  info->offset = f->data + a->whole;
  info->bytes = b->whole - a->whole;
  return Z3E_OK;
}

static int read_tensor(z3_st *f, int64_t node, int64_t *used, z3_st_info *info)
{
  const z3_json_node *t = &f->header->nodes[node];
  if (t->kind != Z3J_OBJECT) return CORRUPT_IN(f, t, "is no object%s", "");
  int64_t dtype = z3i_json_member(f->header, node, "dtype"), numel = 0, bits;
  if (dtype < 0 || f->header->nodes[dtype].kind != Z3J_STRING) return CORRUPT_IN(f, t, "has no text 'dtype'%s", "");
  info->name = t->key;
  info->name_bytes = t->key_bytes;
  info->dtype_name = f->header->nodes[dtype].text;
  info->dtype = z3i_st_dtype_from(info->dtype_name);
  int element = z3i_st_dtype_bits(info->dtype_name);
  if (element < 0) return CORRUPT_IN(f, t, "has dtype \"%.60s\", which the format doesn't know", info->dtype_name);
  Z3I_TRY(read_shape(f, t, z3i_json_member(f->header, node, "shape"), used, info, &numel));
  Z3I_TRY(read_range(f, t, z3i_json_member(f->header, node, "data_offsets"), info));
  if (__builtin_mul_overflow(numel, (int64_t)element, &bits) || bits % 8 != 0 || bits / 8 != info->bytes)
    return CORRUPT_IN(f, t, "has %" PRId64 " elements of %s in %" PRId64 " bytes", numel, info->dtype_name,
                      info->bytes);
  return Z3E_OK;
}

/* ---- the file as a whole ------------------------------------------------------------------------- */
static int by_range(const void *a, const void *b)
{
  const z3_st_info *x = (const z3_st_info *)a, *y = (const z3_st_info *)b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
  return strcmp(x->name, y->name);
}

static int compare_names(const char *a, int64_t a_bytes, const char *b, int64_t b_bytes)
{
  int order = memcmp(a, b, (size_t)Z3I_MIN(a_bytes, b_bytes));
  return order != 0 ? order : a_bytes < b_bytes ? -1 : a_bytes > b_bytes;
}

static int by_name(const void *a, const void *b, void *context)
{
  const z3_st_info *entries = context;
  const z3_st_info *x = &entries[*(const int64_t *)a], *y = &entries[*(const int64_t *)b];
  return compare_names(x->name, x->name_bytes, y->name, y->name_bytes);
}

/* The tensors have to cover the data exactly. */
static int check_cover(const z3_st *f)
{
  int64_t end = f->data;
  for (int64_t i = 0; i < f->count; i++) {
    const z3_st_info *t = &f->entries[i];
    if (t->offset != end)
      return CORRUPT(f, "tensor '%.200s' starts at byte %" PRId64 " of the data, %s the end of the last one, %" PRId64,
                     t->name, t->offset - f->data, t->offset < end ? "before" : "after", end - f->data);
    end = t->offset + t->bytes;
  }
  if (end != f->file_bytes) return CORRUPT(f, "%" PRId64 " bytes after the last tensor", f->file_bytes - end);
  return Z3E_OK;
}

/* Numbers in the header bound the dimensions of all tensors together. */
static int reserve(z3_st *f)
{
  const z3_json *h = f->header;
  f->entries = z3i_alloc((size_t)(h->nodes[0].count + 1) * sizeof *f->entries);
  f->by_name = z3i_alloc((size_t)(h->nodes[0].count + 1) * sizeof *f->by_name);
  f->shapes = z3i_alloc((size_t)h->count * sizeof *f->shapes);
  return f->entries != NULL && f->by_name != NULL && f->shapes != NULL ? Z3E_OK : Z3E_OOM;
}

static int read_tensors(z3_st *f)
{
  Z3I_TRY(reserve(f));
  const z3_json_node *nodes = f->header->nodes;
  int64_t used = 0;
  for (int64_t i = 1; i < nodes[0].next; i = nodes[i].next) {
    bool metadata = nodes[i].key_bytes == 12 && memcmp(nodes[i].key, "__metadata__", 12) == 0;
    if (metadata) Z3I_TRY(check_metadata(f, i));
    else Z3I_TRY(read_tensor(f, i, &used, &f->entries[f->count++]));
  }
  qsort(f->entries, (size_t)f->count, sizeof *f->entries, by_range);
  for (int64_t i = 0; i < f->count; i++) f->by_name[i] = i;
  qsort_r(f->by_name, (size_t)f->count, sizeof *f->by_name, by_name, f->entries);
  return check_cover(f);
}

static int open_file(z3_st *f)
{
  struct stat st;
  f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
  if (f->fd < 0) return Z3I_FAIL(Z3E_IO, "cannot open %s: %s", f->path, strerror(errno));
  if (fstat(f->fd, &st) != 0) return Z3I_FAIL(Z3E_IO, "cannot read %s: %s", f->path, strerror(errno));
  if (!S_ISREG(st.st_mode)) return Z3I_FAIL(Z3E_IO, "cannot read %s: not a regular file", f->path);
  f->file_bytes = st.st_size;
  Z3I_TRY(read_header(f));
  return read_tensors(f);
}

int z3_st_open(const char *path, z3_st **out)
{
  Z3I_REQUIRE(path != NULL && out != NULL, "safetensors: path or out is NULL");
  *out = NULL;
  z3_st *f = z3i_alloc(sizeof *f);
  if (f == NULL) return Z3E_OOM;
  f->fd = -1;
  f->meta = -1;
  f->path = z3i_strdup(path);
  int rc = f->path == NULL ? Z3E_OOM : open_file(f);
  if (rc != Z3E_OK) {
    z3_st_close(f);
    return z3i_trace(__FILE__, __LINE__, __func__, rc);
  }
  *out = f;
  return Z3E_OK;
}

void z3_st_close(z3_st *f)
{
  if (f == NULL) return;
  if (f->map != NULL) munmap(f->map, (size_t)f->file_bytes);
  if (f->fd >= 0) close(f->fd);
  z3_json_free(f->header);
  z3i_free(f->entries);
  z3i_free(f->by_name);
  z3i_free(f->shapes);
  z3i_free(f->path);
  z3i_free(f);
}

/* ---- questions ----------------------------------------------------------------------------------- */
int64_t z3_st_count(const z3_st *f) { return f == NULL ? 0 : f->count; }

int z3_st_info_get(const z3_st *f, int64_t index, z3_st_info *out)
{
  Z3I_REQUIRE(f != NULL && out != NULL, "safetensors: no file or no room");
  Z3I_REQUIRE(index >= 0 && index < f->count, "%s: tensor %" PRId64 "; there are %" PRId64, f->path, index, f->count);
  *out = f->entries[index];
  return Z3E_OK;
}

int64_t z3_st_find(const z3_st *f, const char *name, int64_t name_bytes)
{
  int64_t low = 0, high = f == NULL || name == NULL ? 0 : f->count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2, index = f->by_name[middle];
    const z3_st_info *t = &f->entries[index];
    int order = compare_names(name, name_bytes, t->name, t->name_bytes);
    if (order == 0) return index;
    if (order < 0) high = middle;
    else low = middle + 1;
  }
  return -1;
}

int64_t z3_st_meta_count(const z3_st *f) { return f == NULL || f->meta < 0 ? 0 : f->header->nodes[f->meta].count; }

int z3_st_meta_get(const z3_st *f, int64_t i, const char **key, int64_t *key_bytes, const char **value,
                   int64_t *value_bytes)
{
  Z3I_REQUIRE(i >= 0 && i < z3_st_meta_count(f), "safetensors: metadata %" PRId64 "; there are %" PRId64, i,
              z3_st_meta_count(f));
  const z3_json_node *n = &f->header->nodes[f->meta + 1 + i];   /* texts only: one node each */
  *key = n->key;
  *key_bytes = n->key_bytes;
  *value = n->text;
  *value_bytes = n->text_bytes;
  return Z3E_OK;
}

int z3_st_read(z3_st *f, int64_t index, int64_t first, int64_t bytes, void *dst)
{
  z3_st_info t;
  Z3I_TRY(z3_st_info_get(f, index, &t));
  Z3I_REQUIRE(first >= 0 && bytes >= 0 && first <= t.bytes && bytes <= t.bytes - first && (dst != NULL || bytes == 0),
              "%s: bytes %" PRId64 " + %" PRId64 " of '%.200s', which has %" PRId64, f->path, first, bytes, t.name,
              t.bytes);
  return read_at(f, dst, bytes, t.offset + first);
}

int z3_st_map(z3_st *f, int64_t index, const void **out)
{
  z3_st_info t;
  Z3I_REQUIRE(out != NULL, "safetensors: out is NULL");
  *out = NULL;
  Z3I_TRY(z3_st_info_get(f, index, &t));
  if (t.bytes == 0) return Z3E_OK;
  if (f->map == NULL) {
    void *map = mmap(NULL, (size_t)f->file_bytes, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (map == MAP_FAILED) return Z3I_FAIL(Z3E_IO, "%s: cannot map: %s", f->path, strerror(errno));
    f->map = map;
  }
  *out = f->map + t.offset;
  return Z3E_OK;
}
