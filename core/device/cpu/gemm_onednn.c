/* gemm_onednn.c -- the adapter to oneDNN: its matmul primitive, API versions 2 and 3, behind a bounded cache.
 * A primitive costs from 0.1 ms up to make (code is generated), so each is kept with its shape; the least recently used
 * goes when CACHE are kept. Scratchpads come from the caller: one that oneDNN owned would belong to a single thread.
 * Z3_CPU=v2 or v3 in the environment also caps the library's instruction set (to SSE4.1 or AVX2); v4 leaves it what the
 * machine has, bf16 and AMX included. It is read once, before the first product. */
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <pthread.h>
#include <stdlib.h>

#include "device/cpu/gemm_onednn.h"

#define API3 (DNNL_VERSION_MAJOR >= 3)
#if API3
typedef const_dnnl_memory_desc_t md_ref;
#define MD_REF(m) ((md_ref)(m))
#define MD_FREE(m) ((m) != NULL ? (void)dnnl_memory_desc_destroy(m) : (void)0)
#else
typedef const dnnl_memory_desc_t *md_ref;
#define MD_REF(m) ((md_ref)&(m))
#define MD_FREE(m) ((void)(m))
#endif

enum { CACHE = 256 };
static z3i_mm_plan cache[CACHE];
static uint64_t use_clock;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dnnl_engine_t engine;                    /* made under the lock, then constant */

static int refused(dnnl_status_t status, const char *what, const z3i_mm_key *k)
{
  return Z3I_FAIL(status == dnnl_out_of_memory ? Z3E_OOM : Z3E_BUG,
                  "oneDNN %s: %s (%s product, M %" PRId64 ", N %" PRId64 ", K %" PRId64 ", %" PRId64 " times)", what,
                  dnnl_status2str(status), z3_dtype_name(k->in_dtype), k->m, k->n, k->k, k->batch);
}
#define TRY_DNNL(call, what, key)                                                                   \
  do {                                                                                              \
    dnnl_status_t status_ = (call);                                                                 \
    if (status_ != dnnl_success) return refused(status_, what, key);                                \
  } while (0)

/* ---- making a plan ---------------------------------------------------------------------------------- */
static int start(const z3i_mm_key *key)
{
  if (engine != NULL) return Z3E_OK;
  const char *cap = getenv("Z3_CPU");
  dnnl_status_t status = dnnl_success;
  if (cap != NULL && strcmp(cap, "v2") == 0) status = dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
  if (cap != NULL && strcmp(cap, "v3") == 0) status = dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
  if (status != dnnl_success)
    return Z3I_FAIL(Z3E_UNSUPPORTED,
                    "Z3_CPU=%s: oneDNN can't be capped any more (%s): unset it, or set it before anything in this "
                    "process uses oneDNN", cap, dnnl_status2str(status));
  TRY_DNNL(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine", key);
  return Z3E_OK;
}

static dnnl_data_type_t type_of(int dtype)
{
  return dtype == Z3T_F32 ? dnnl_f32 : dtype == Z3T_BF16 ? dnnl_bf16 : dnnl_f16;
}

/* A description of batch matrices of (rows, cols); one batch is described in 2 dims. stride NULL: the library's
 * choice. */
static dnnl_status_t describe(dnnl_memory_desc_t *md, bool batched, const int64_t dim[3], int dtype,
                              const int64_t stride[3])
{
  int ndim = batched ? 3 : 2;
  dnnl_dims_t d = { 0 }, s = { 0 };
  memcpy(d, dim + 3 - ndim, (size_t)ndim * sizeof *d);
  if (stride != NULL) memcpy(s, stride + 3 - ndim, (size_t)ndim * sizeof *s);
#if API3
  if (stride == NULL) return dnnl_memory_desc_create_with_tag(md, ndim, d, type_of(dtype), dnnl_format_tag_any);
  return dnnl_memory_desc_create_with_strides(md, ndim, d, type_of(dtype), s);
#else
  if (stride == NULL) return dnnl_memory_desc_init_by_tag(md, ndim, d, type_of(dtype), dnnl_format_tag_any);
  return dnnl_memory_desc_init_by_strides(md, ndim, d, type_of(dtype), s);
#endif
}

enum { MD_A, MD_B, MD_C, MD_BIAS, MD_B_ANY, MDS };

static dnnl_status_t describe_all(dnnl_memory_desc_t *md, const z3i_mm_key *k)
{
  bool batched = k->batch > 1;
  int64_t a[3] = { k->a_batch_stride ? k->batch : 1, k->m, k->k };
  int64_t b[3] = { k->b_batch_stride ? k->batch : 1, k->k, k->n };
  int64_t c[3] = { k->batch, k->m, k->n }, bias[3] = { 1, 1, k->n }, bias_stride[3] = { k->n, k->n, 1 };
  /* The stride of a dim of size 1 means nothing; the dense one lets the library see a dense matrix. */
  int64_t a_stride[3] = { k->a_batch_stride, k->a_t ? 1 : k->lda, k->a_t ? k->lda : 1 };
  int64_t b_stride[3] = { k->b_batch_stride, k->b_t ? 1 : k->ldb, k->b_t ? k->ldb : 1 };
  if (a_stride[0] == 0) a_stride[0] = k->m * k->k;
  if (b_stride[0] == 0) b_stride[0] = k->k * k->n;
  int64_t c_stride[3] = { k->c_batch_stride, k->ldc, 1 };
  dnnl_status_t s = describe(&md[MD_A], batched, a, k->in_dtype, a_stride);
  if (s == dnnl_success) s = describe(&md[MD_B], batched, b, k->in_dtype, b_stride);
  if (s == dnnl_success) s = describe(&md[MD_C], batched, c, k->out_dtype, c_stride);
  if (s == dnnl_success && k->bias) s = describe(&md[MD_BIAS], batched, bias, k->in_dtype, bias_stride);
  if (s == dnnl_success && k->pack_b) s = describe(&md[MD_B_ANY], batched, b, k->in_dtype, NULL);
  return s;
}

static size_t scratch_of(dnnl_primitive_desc_t pd)
{
  return dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
}

/* Makes the primitives from the descriptions. dnnl_unimplemented: no code for these types here. */
static dnnl_status_t make_product(z3i_mm_plan *p, dnnl_memory_desc_t *md, const_dnnl_primitive_attr_t attr)
{
  dnnl_primitive_desc_t pd = NULL, rd = NULL;
  bool bias = p->key.bias, pack = p->key.pack_b;
#if API3
  dnnl_status_t s = dnnl_matmul_primitive_desc_create(&pd, engine, md[MD_A], md[pack ? MD_B_ANY : MD_B],
                                                      bias ? md[MD_BIAS] : NULL, md[MD_C], attr);
#else
  dnnl_matmul_desc_t op;
  dnnl_status_t s = dnnl_matmul_desc_init(&op, &md[MD_A], &md[pack ? MD_B_ANY : MD_B], bias ? &md[MD_BIAS] : NULL,
                                          &md[MD_C]);
  if (s == dnnl_success) s = dnnl_primitive_desc_create(&pd, &op, attr, engine, NULL);
#endif
  if (s != dnnl_success) return s;
  p->product_desc = pd;
  const char *name = "";
  dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
  /* "ref:any" is the library's plain loop: for 16-bit types, widening to f32 is far faster. */
  if (p->key.in_dtype != Z3T_F32 && strncmp(name, "ref", 3) == 0) return dnnl_unimplemented;
  s = dnnl_primitive_create((dnnl_primitive_t *)&p->product, pd);
  p->scratch_bytes = scratch_of(pd);
  md_ref wants = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
  if (s != dnnl_success || !pack || dnnl_memory_desc_equal(wants, MD_REF(md[MD_B]))) return s;
  s = dnnl_reorder_primitive_desc_create(&rd, MD_REF(md[MD_B]), engine, wants, engine, attr);
  if (s != dnnl_success) return s;
  p->reorder_desc = rd;
  p->packed_bytes = dnnl_memory_desc_get_size(wants);
  p->scratch_bytes = Z3I_MAX(p->scratch_bytes, scratch_of(rd));
  return dnnl_primitive_create((dnnl_primitive_t *)&p->reorder, rd);
}

static void plan_free(z3i_mm_plan *p)
{
  if (p->product != NULL) dnnl_primitive_destroy(p->product);
  if (p->reorder != NULL) dnnl_primitive_destroy(p->reorder);
  if (p->product_desc != NULL) dnnl_primitive_desc_destroy(p->product_desc);
  if (p->reorder_desc != NULL) dnnl_primitive_desc_destroy(p->reorder_desc);
  memset(p, 0, sizeof *p);
}

static int plan_make(const z3i_mm_key *key, z3i_mm_plan *p)
{
  memset(p, 0, sizeof *p);
  p->key = *key;
  dnnl_memory_desc_t md[MDS];
  memset(md, 0, sizeof md);
  dnnl_primitive_attr_t attr = NULL;
  dnnl_status_t s = describe_all(md, key);
  if (s == dnnl_success) s = dnnl_primitive_attr_create(&attr);
  if (s == dnnl_success) s = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
  if (s == dnnl_success) s = make_product(p, md, attr);
  if (attr != NULL) dnnl_primitive_attr_destroy(attr);
  for (int i = 0; i < MDS; i++) MD_FREE(md[i]);
  if (s == dnnl_success) return Z3E_OK;
  plan_free(p);
  p->key = *key;
  p->lacking = s == dnnl_unimplemented && key->in_dtype != Z3T_F32;
  return p->lacking ? Z3E_OK : refused(s, "matmul", key);
}

/* ---- the cache --------------------------------------------------------------------------------------- */
static z3i_mm_plan *find(const z3i_mm_key *key, uint64_t hash)
{
  for (int i = 0; i < CACHE; i++)
    if (cache[i].kept && cache[i].hash == hash && memcmp(&cache[i].key, key, sizeof *key) == 0) return &cache[i];
  return NULL;
}

/* Room for one more: an empty place, or that of the plan longest unused. NULL when all are in use. */
static z3i_mm_plan *make_room(void)
{
  z3i_mm_plan *oldest = NULL;
  for (int i = 0; i < CACHE; i++) {
    if (!cache[i].kept) return &cache[i];
    if (cache[i].users == 0 && (oldest == NULL || cache[i].last_use < oldest->last_use)) oldest = &cache[i];
  }
  if (oldest != NULL) plan_free(oldest);
  return oldest;
}

int z3i_mm_plan_get(const z3i_mm_key *key, z3i_mm_plan *room, z3i_mm_plan **out)
{
  *out = NULL;
  uint64_t hash = z3i_hash_bytes(key, sizeof *key, 0);
  pthread_mutex_lock(&lock);
  int rc = start(key);
  z3i_mm_plan *plan = rc == Z3E_OK ? find(key, hash) : NULL;
  if (plan == NULL && rc == Z3E_OK) {
    /* Made without the lock: it takes long, and two threads that make the same one do no harm. */
    pthread_mutex_unlock(&lock);
    rc = plan_make(key, room);
    pthread_mutex_lock(&lock);
    if (rc == Z3E_OK) plan = find(key, hash);
    if (plan != NULL) plan_free(room);
    else if (rc == Z3E_OK && (plan = make_room()) != NULL) {
      *plan = *room;
      plan->hash = hash;
      plan->kept = true;
    } else if (rc == Z3E_OK) plan = room;
  }
  if (plan != NULL) {
    plan->users++;
    plan->last_use = ++use_clock;
    *out = plan;
  }
  pthread_mutex_unlock(&lock);
  if (rc != Z3E_OK) return z3i_trace(__FILE__, __LINE__, __func__, rc);
  return Z3E_OK;
}

void z3i_mm_plan_put(z3i_mm_plan *plan)
{
  if (plan == NULL) return;
  pthread_mutex_lock(&lock);
  plan->users--;
  if (!plan->kept) plan_free(plan);
  pthread_mutex_unlock(&lock);
}

void z3i_mm_cache_clear(void)
{
  pthread_mutex_lock(&lock);
  for (int i = 0; i < CACHE; i++)
    if (cache[i].kept && cache[i].users == 0) plan_free(&cache[i]);
  pthread_mutex_unlock(&lock);
}

int z3i_mm_cache_count(void)
{
  int count = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < CACHE; i++) count += cache[i].kept;
  pthread_mutex_unlock(&lock);
  return count;
}

/* ---- running ----------------------------------------------------------------------------------------- */
typedef struct operand {
  int arg;
  md_ref md;
  const void *data;                             /* the library takes no const; it writes results and scratch only */
} operand;

static int execute(const z3i_mm_plan *p, dnnl_primitive_t primitive, const operand *o, int count, const char *what)
{
  enum { MOST = 5 };
  dnnl_exec_arg_t args[MOST];
  dnnl_stream_t stream = NULL;
  int made = 0;
  dnnl_status_t s = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
  for (; made < count && s == dnnl_success; made++) {
    dnnl_memory_t memory = NULL;
    s = dnnl_memory_create(&memory, o[made].md, engine, (void *)(uintptr_t)o[made].data);
    if (s != dnnl_success) break;
    args[made] = (dnnl_exec_arg_t){ o[made].arg, memory };
  }
  if (s == dnnl_success) s = dnnl_primitive_execute(primitive, stream, count, args);
  if (s == dnnl_success) s = dnnl_stream_wait(stream);
  for (int i = 0; i < made; i++) dnnl_memory_destroy(args[i].memory);
  if (stream != NULL) dnnl_stream_destroy(stream);
  TRY_DNNL(s, what, &p->key);
  return Z3E_OK;
}

static md_ref query(const void *pd, dnnl_query_t what, int index)
{
  return dnnl_primitive_desc_query_md((const_dnnl_primitive_desc_t)pd, what, index);
}

int z3i_mm_pack(const z3i_mm_plan *p, const void *b, void *packed, void *scratch)
{
  operand o[] = { { DNNL_ARG_FROM, query(p->reorder_desc, dnnl_query_src_md, 0), b },
                  { DNNL_ARG_TO, query(p->reorder_desc, dnnl_query_dst_md, 0), packed },
                  { DNNL_ARG_SCRATCHPAD, query(p->reorder_desc, dnnl_query_scratchpad_md, 0), scratch } };
  return execute(p, p->reorder, o, 3, "reorder");
}

int z3i_mm_run(const z3i_mm_plan *p, const void *a, const void *b, const void *bias, void *c, void *scratch)
{
  operand o[5] = { { DNNL_ARG_SRC, query(p->product_desc, dnnl_query_src_md, 0), a },
                   { DNNL_ARG_WEIGHTS, query(p->product_desc, dnnl_query_weights_md, 0), b },
                   { DNNL_ARG_DST, query(p->product_desc, dnnl_query_dst_md, 0), c },
                   { DNNL_ARG_SCRATCHPAD, query(p->product_desc, dnnl_query_scratchpad_md, 0), scratch } };
  int count = 4;
  if (p->key.bias) o[count++] = (operand){ DNNL_ARG_BIAS, query(p->product_desc, dnnl_query_weights_md, 1), bias };
  return execute(p, p->product, o, count, "matmul");
}
