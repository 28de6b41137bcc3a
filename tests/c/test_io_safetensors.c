/* test_io_safetensors.c -- safetensors files: good and malformed ones, writing, full disks, memory, random damage.
 * Files: tests/parity/data/safetensors_bad; manifest.json there says which are valid by the format, and why not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <cjson/cJSON.h>
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/json.h"
#include "io/safetensors.h"

#define FOLDER "tests/parity/data/safetensors_bad/"

static char dir[64];                              /* files of this run */

static void *counted_alloc(size_t n) { return z3i_alloc(n); }

static int make_dir(void **state)
{
  (void)state;
  cJSON_InitHooks(&(cJSON_Hooks){ .malloc_fn = counted_alloc, .free_fn = z3i_free });
  /* Each file is flushed to disk: in memory that costs nothing. */
  snprintf(dir, sizeof dir, "%s/z3_st_%ld", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
  return mkdir(dir, 0700);
}

/* Names in the folder; each is removed when `clear`. */
static int entries(bool clear)
{
  DIR *d = opendir(dir);
  int count = 0;
  char path[400];
  for (struct dirent *e; (e = readdir(d)) != NULL;) {
    if (e->d_name[0] == '.') continue;
    count++;
    snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    if (clear) unlink(path);
  }
  closedir(d);
  return count;
}

static int remove_dir(void **state)
{
  (void)state;
  entries(true);
  return rmdir(dir);
}

static int nothing_left(void **state)
{
  (void)state;
  entries(true);
  assert_int_equal(z3i_alloc_live(), 0);
  return 0;
}

static const char *in_dir(const char *name)
{
  static char path[128];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  return path;
}

static int64_t read_file(const char *path, char *room, size_t room_bytes)
{
  FILE *f = fopen(path, "rb");
  if (f == NULL) return -1;
  size_t n = fread(room, 1, room_bytes, f);
  fclose(f);
  return (int64_t)n;
}

static void write_file(const char *path, const char *bytes, size_t n)
{
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  fclose(f);
}

/* ---- reading ------------------------------------------------------------------------------------- */
static void check_row(const z3_json *m, int64_t row)
{
  const char *file = m->nodes[z3i_json_member(m, row, "file")].text;
  bool valid = strcmp(m->nodes[z3i_json_member(m, row, "by_the_format")].text, "valid") == 0;
  char path[200];
  snprintf(path, sizeof path, FOLDER "%s", file);
  z3_st *f = (z3_st *)1;
  int rc = z3_st_open(path, &f);
  if (rc != (valid ? Z3E_OK : Z3E_CORRUPT)) fail_msg("%s: status %d, %s", file, rc, z3_last_error());
  if (!valid) {
    assert_null(f);
    assert_memory_equal(z3_last_error(), path, strlen(path));
    return;
  }
  int64_t theirs = z3i_json_member(m, z3i_json_member(m, row, "official"), "tensors");
  assert_int_equal(z3_st_count(f), m->nodes[theirs].count);
  for (int64_t i = theirs + 1; i < m->nodes[theirs].next; i = m->nodes[i].next) {
    z3_st_info t;
    int64_t index = z3_st_find(f, m->nodes[i].key, m->nodes[i].key_bytes), shape = z3i_json_member(m, i, "shape");
    assert_true(index >= 0);
    assert_int_equal(z3_st_info_get(f, index, &t), Z3E_OK);
    assert_string_equal(t.dtype_name, m->nodes[z3i_json_member(m, i, "dtype")].text);
    assert_int_equal(t.ndim, m->nodes[shape].count);
    for (int d = 0; d < t.ndim; d++) assert_int_equal(t.shape[d], m->nodes[shape + 1 + d].whole);
  }
  assert_int_equal(z3_st_find(f, "nowhere", 7), -1);
  z3_st_close(f);
}

static void test_io_safetensors_judges_files_by_the_format(void **state)
{
  (void)state;
  static char text[1 << 16];
  int64_t n = read_file(FOLDER "manifest.json", text, sizeof text);
  z3_json *m;
  assert_int_equal(z3_json_parse(text, n, "manifest.json", Z3J_STRICT, &m), Z3E_OK);
  int64_t list = z3i_json_member(m, 0, "files");
  assert_true(m->nodes[list].count >= 48);
  for (int64_t i = list + 1; i < m->nodes[list].next; i = m->nodes[i].next) check_row(m, i);
  z3_json_free(m);
}

static void test_io_safetensors_reads_values_and_metadata(void **state)
{
  (void)state;
  z3_st *f;
  float a[2];
  const void *map;
  const char *key, *value;
  int64_t key_bytes, value_bytes;
  assert_int_equal(z3_st_open(FOLDER "unaligned_f32.safetensors", &f), Z3E_OK);
  assert_int_equal(z3_st_read(f, z3_st_find(f, "a", 1), 0, 8, a), Z3E_OK);
  assert_true(a[0] == 1.5f && a[1] == -2.0f);
  assert_int_equal(z3_st_read(f, z3_st_find(f, "a", 1), 4, 4, a), Z3E_OK);
  assert_true(a[0] == -2.0f);
  assert_int_equal(z3_st_map(f, z3_st_find(f, "b", 1), &map), Z3E_OK);
  assert_memory_equal(map, "\1\2\3", 3);
  assert_int_equal(z3_st_read(f, 0, 2, 2, a), Z3E_ARG);
  assert_int_equal(z3_st_read(f, 0, -1, 1, a), Z3E_ARG);
  assert_int_equal(z3_st_read(f, 2, 0, 1, a), Z3E_ARG);
  z3_st_close(f);
  assert_int_equal(z3_st_open(FOLDER "metadata.safetensors", &f), Z3E_OK);
  assert_int_equal(z3_st_meta_count(f), 2);
  assert_int_equal(z3_st_meta_get(f, 1, &key, &key_bytes, &value, &value_bytes), Z3E_OK);
  assert_string_equal(key, "note");
  assert_string_equal(value, "caf\xC3\xA9");
  assert_int_equal(z3_st_meta_get(f, 2, &key, &key_bytes, &value, &value_bytes), Z3E_ARG);
  z3_st_close(f);
  assert_int_equal(z3_st_open(in_dir("absent"), &f), Z3E_IO);
  assert_int_equal(z3_st_open(dir, &f), Z3E_IO);
}

/* A file that shrinks after it was opened is an error, not a crash. */
static void test_io_safetensors_file_cut_short_while_open(void **state)
{
  (void)state;
  char bytes[400];
  int64_t n = read_file(FOLDER "unsorted_header.safetensors", bytes, sizeof bytes);
  write_file(in_dir("cut"), bytes, (size_t)n);
  z3_st *f;
  float a[2];
  assert_int_equal(z3_st_open(in_dir("cut"), &f), Z3E_OK);
  assert_int_equal(truncate(in_dir("cut"), n - 3), 0);
  assert_int_equal(z3_st_read(f, 0, 0, 8, a), Z3E_OK);
  assert_int_equal(z3_st_read(f, 1, 0, 8, a), Z3E_IO);
  assert_non_null(strstr(z3_last_error(), "cut short"));
  z3_st_close(f);
}

/* ---- writing ------------------------------------------------------------------------------------- */
static const struct { const char *name; int dtype, ndim; int64_t shape[3], bytes;
} sample[] = {
  { "b", Z3T_BF16, 2, { 3, 2 }, 12 },  { "u", Z3T_U8, 1, { 5 }, 5 },     { "z", Z3T_F32, 0, { 0 }, 4 },
  { "a", Z3T_I64, 1, { 2 }, 16 },      { "e", Z3T_F32, 2, { 0, 7 }, 0 }, { "i\"\n\xC3\xA9", Z3T_I32, 1, { 1 }, 4 },
  { "h", Z3T_F16, 3, { 1, 1, 1 }, 2 },
};
enum { SAMPLES = sizeof sample / sizeof *sample };

/* Writes the sample, declaring from `start` round and each tensor in `pieces` writes; stops at the first failure. */
static int write_sample(const char *path, int start, int pieces)
{
  z3_st_writer *w;
  int64_t ids[SAMPLES];
  int rc = z3_st_writer_new(path, &w);
  if (rc == Z3E_OK) rc = z3_st_writer_meta(w, "z", 1, "last", 4);
  if (rc == Z3E_OK) rc = z3_st_writer_meta(w, "format", 6, "p\0t", 3);
  for (int k = 0; k < SAMPLES && rc == Z3E_OK; k++) {
    int i = (k + start) % SAMPLES;
    rc = z3_st_writer_add(w, sample[i].name, (int64_t)strlen(sample[i].name), sample[i].dtype, sample[i].ndim,
                          sample[i].shape, &ids[i]);
  }
  if (rc == Z3E_OK) rc = z3_st_writer_begin(w);
  for (int k = 0; k < SAMPLES && rc == Z3E_OK; k++) {
    int i = (k + start) % SAMPLES;
    unsigned char bytes[16];
    for (int b = 0; b < 16; b++) bytes[b] = (unsigned char)(16 * i + b);
    for (int p = pieces - 1; p >= 0 && rc == Z3E_OK; p--) {      /* from the end: order is free */
      int64_t from = sample[i].bytes * p / pieces, to = sample[i].bytes * (p + 1) / pieces;
      rc = z3_st_writer_write(w, ids[i], from, bytes + from, to - from);
    }
  }
  if (rc == Z3E_OK) rc = z3_st_writer_commit(w);
  z3_st_writer_free(w);
  return rc;
}

static void test_io_safetensors_writes_equal_bytes_in_order(void **state)
{
  (void)state;
  static const char *const order[] = { "a", "e", "i\"\n\xC3\xA9", "z", "b", "h", "u" };
  char first[1000], other[1000];
  assert_int_equal(write_sample(in_dir("one"), 0, 1), Z3E_OK);
  int64_t n = read_file(in_dir("one"), first, sizeof first);
  for (int start = 1; start < SAMPLES; start++) {
    assert_int_equal(write_sample(in_dir("two"), start, start), Z3E_OK);
    assert_int_equal(read_file(in_dir("two"), other, sizeof other), n);
    assert_memory_equal(first, other, n);
  }
  assert_int_equal(entries(false), 2);            /* no temporary is left */
  assert_int_equal((first[0] & 7) + first[7], 0); /* the header's length is a multiple of 8 */
  z3_st *f;
  assert_int_equal(z3_st_open(in_dir("one"), &f), Z3E_OK);
  assert_int_equal(z3_st_count(f), SAMPLES);
  for (int k = 0; k < SAMPLES; k++) {
    z3_st_info t;
    unsigned char bytes[16];
    int i = 0;
    assert_int_equal(z3_st_info_get(f, k, &t), Z3E_OK);
    assert_string_equal(t.name, order[k]);
    while (strcmp(sample[i].name, order[k]) != 0) i++;
    assert_int_equal(t.dtype, sample[i].dtype);
    assert_int_equal(t.bytes, sample[i].bytes);
    assert_int_equal(z3_st_read(f, k, 0, t.bytes, bytes), Z3E_OK);
    for (int64_t b = 0; b < t.bytes; b++) assert_int_equal(bytes[b], 16 * i + b);
  }
  const char *key, *value;
  int64_t key_bytes, value_bytes;
  assert_int_equal(z3_st_meta_get(f, 0, &key, &key_bytes, &value, &value_bytes), Z3E_OK);
  assert_string_equal(key, "format");
  assert_int_equal(value_bytes, 3);
  assert_memory_equal(value, "p\0t", 3);
  z3_st_close(f);
}

static void test_io_safetensors_writer_refuses(void **state)
{
  (void)state;
  z3_st_writer *w;
  int64_t id, shape[2] = { 2, -1 }, huge[2] = { INT64_C(1) << 40, INT64_C(1) << 40 }, offset;
  assert_int_equal(z3_st_writer_new("", &w), Z3E_ARG);
  assert_int_equal(z3_st_writer_new(in_dir("w"), &w), Z3E_OK);
  assert_int_equal(z3_st_writer_add(w, "\xFF", 1, Z3T_F32, 1, shape, &id), Z3E_ARG);
  assert_int_equal(z3_st_writer_add(w, "__metadata__", 12, Z3T_F32, 1, shape, &id), Z3E_ARG);
  assert_int_equal(z3_st_writer_add(w, "x", 1, Z3T_F32, 2, shape, &id), Z3E_ARG);
  assert_int_equal(z3_st_writer_add(w, "x", 1, Z3T_F32, 2, huge, &id), Z3E_ARG);
  assert_int_equal(z3_st_writer_add(w, "x", 1, Z3T_COUNT, 1, shape, &id), Z3E_ARG);
  assert_int_equal(z3_st_writer_add(w, "x", 1, Z3T_F32, Z3_MAX_DIMS + 1, shape, &id), Z3E_ARG);
  assert_int_equal(z3_st_writer_commit(w), Z3E_ARG);
  assert_int_equal(z3_st_writer_add(w, "x", 1, Z3T_F32, 1, shape, &id), Z3E_OK);
  assert_int_equal(z3_st_writer_write(w, id, 0, shape, 8), Z3E_ARG);       /* before begin */
  assert_int_equal(z3_st_writer_begin(w), Z3E_OK);
  assert_int_equal(z3_st_writer_add(w, "y", 1, Z3T_F32, 1, shape, &id), Z3E_ARG);
  assert_int_equal(z3_st_writer_write(w, 0, 4, shape, 8), Z3E_ARG);
  assert_int_equal(z3_st_writer_write(w, 1, 0, shape, 8), Z3E_ARG);
  assert_int_equal(z3_st_writer_write(w, 0, 0, shape, 4), Z3E_OK);
  assert_int_equal(z3_st_writer_offset(w, 0, &offset), Z3E_OK);
  assert_int_equal(offset % 8, 0);
  assert_int_equal(z3_st_writer_commit(w), Z3E_ARG);
  assert_non_null(strstr(z3_last_error(), "'x' has 8 bytes, 4 were written"));
  assert_int_equal(entries(false), 1);            /* the temporary */
  z3_st_writer_free(w);
  assert_int_equal(entries(false), 0);
  assert_int_equal(z3_st_writer_new(in_dir("w"), &w), Z3E_OK);
  assert_int_equal(z3_st_writer_add(w, "x", 1, Z3T_F32, 1, shape, &id), Z3E_OK);
  assert_int_equal(z3_st_writer_add(w, "x", 1, Z3T_F32, 1, shape, &id), Z3E_OK);
  assert_int_equal(z3_st_writer_begin(w), Z3E_ARG);
  assert_non_null(strstr(z3_last_error(), "two tensors are called 'x'"));
  z3_st_writer_free(w);
  assert_int_equal(write_sample(in_dir("no/such/folder"), 0, 1), Z3E_IO);
}

/* A disk that is full in the middle: IO, the old file untouched, nothing left behind. */
static void test_io_safetensors_full_disk_leaves_nothing(void **state)
{
  (void)state;
  char before[1000], after[1000];
  struct rlimit old, limit;
  assert_int_equal(write_sample(in_dir("kept"), 0, 1), Z3E_OK);
  int64_t n = read_file(in_dir("kept"), before, sizeof before);
  getrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, SIG_IGN);
  for (int64_t bytes = 0; bytes < n; bytes += 37) {
    limit = (struct rlimit){ .rlim_cur = (rlim_t)bytes, .rlim_max = old.rlim_max };
    setrlimit(RLIMIT_FSIZE, &limit);
    int rc = write_sample(in_dir("kept"), 3, 2), fresh = write_sample(in_dir("fresh"), 0, 1);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(rc, Z3E_IO);
    assert_int_equal(fresh, Z3E_IO);
    assert_non_null(strstr(z3_last_error(), in_dir("fresh")));
    assert_int_equal(entries(false), 1);
    assert_int_equal(read_file(in_dir("kept"), after, sizeof after), n);
    assert_memory_equal(before, after, n);
  }
}

static void test_io_safetensors_survives_every_failed_allocation(void **state)
{
  (void)state;
  int rc = Z3E_OOM;
  for (int n = 1; rc == Z3E_OOM; n++) {
    assert_true(n < 2000);
    z3i_alloc_fail_at(n);
    rc = write_sample(in_dir("oom"), 0, 1);
    z3i_alloc_fail_at(0);
    assert_int_equal(entries(false), rc == Z3E_OK ? 1 : 0);
    assert_int_equal(z3i_alloc_live(), 0);
  }
  assert_int_equal(rc, Z3E_OK);
  rc = Z3E_OOM;
  for (int n = 1; rc == Z3E_OOM; n++) {
    z3_st *f = NULL;
    z3i_alloc_fail_at(n);
    rc = z3_st_open(in_dir("oom"), &f);
    z3i_alloc_fail_at(0);
    assert_true((rc == Z3E_OK) == (f != NULL));
    z3_st_close(f);
    assert_int_equal(z3i_alloc_live(), 0);
  }
  assert_int_equal(rc, Z3E_OK);
}

/* Whatever the bytes, the answer is a status; what is accepted lies within the file and can be read. */
static void test_io_safetensors_survives_random_damage(void **state)
{
  (void)state;
  static const char letters[] = "0123456789-,:[]{}\" \\eaFU.";
  char good[1000], bytes[1000];
  assert_int_equal(write_sample(in_dir("good"), 0, 1), Z3E_OK);
  int64_t n = read_file(in_dir("good"), good, sizeof good), accepted = 0;
  for (uint64_t round = 0; round < 2000; round++) {
    uint32_t random[4];
    memcpy(bytes, good, (size_t)n);
    z3i_philox(13, 0, round, random);
    for (uint32_t edit = 0; edit <= random[0] % 2; edit++) {
      z3i_philox(13, 1 + edit, round, random);
      if (random[1] % 16 == 0) bytes[random[2] % 8] = (char)random[3];
      else bytes[8 + random[2] % ((uint32_t)n - 8)] = letters[random[3] % (sizeof letters - 1)];
    }
    int64_t length = random[1] % 8 == 0 ? random[2] % (n + 1) : n;
    write_file(in_dir("bad"), bytes, (size_t)length);
    z3_st *f;
    int rc = z3_st_open(in_dir("bad"), &f);
    assert_true(rc == Z3E_OK || rc == Z3E_CORRUPT);
    for (int64_t i = 0; i < z3_st_count(f); i++) {
      z3_st_info t;
      char room[1000];
      assert_int_equal(z3_st_info_get(f, i, &t), Z3E_OK);
      assert_true(t.offset >= 8 && t.bytes >= 0 && t.offset + t.bytes <= length);
      assert_int_equal(z3_st_read(f, i, 0, t.bytes, room), Z3E_OK);
      assert_int_equal(z3_st_find(f, t.name, t.name_bytes), i);
      accepted++;
    }
    z3_st_close(f);
  }
  assert_true(accepted > 500);
}

int main(void)
{
#define T(name) cmocka_unit_test_teardown(name, nothing_left)
  const struct CMUnitTest tests[] = {
    T(test_io_safetensors_judges_files_by_the_format), T(test_io_safetensors_reads_values_and_metadata),
    T(test_io_safetensors_file_cut_short_while_open), T(test_io_safetensors_writes_equal_bytes_in_order),
    T(test_io_safetensors_writer_refuses), T(test_io_safetensors_full_disk_leaves_nothing),
    T(test_io_safetensors_survives_every_failed_allocation), T(test_io_safetensors_survives_random_damage),
  };
  return cmocka_run_group_tests_name("io_safetensors", tests, make_dir, remove_dir);
}
