--- ours.lua -- our side of `make bench`: one training step, or one attention, when asked. peer.py answers the same.
--
--   z3lua ours.lua step gpt2|llama PRESET f32|bf16 BATCH SEQ       z3lua ours.lua attention
--   z3lua ours.lua export gpt2|llama PRESET FILE BxT ...           writes what both begin with
--
-- Commands come on standard input, answers are JSON lines on standard output.
local z3  = require 'z3'
local ffi = require 'ffi'
local C   = require('z3.ffi').C

ffi.cdef [[
typedef struct { long times[4], max_rss_kib, unused[3], minor_faults, rest[9]; } bench_usage;
int bench_getrusage(int who, bench_usage *usage) __asm__("getrusage");
]]
local usage = ffi.new 'bench_usage'

local SEED, BATCHES = 1, 4
local ADAMW = { lr = 1e-4, betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1 }
-- Vocabularies: GPT-2's rounded up to a multiple of 128, and Llama's own.
local OVER = { gpt2 = { vocab_size = 50304, n_ctx = 1024 }, llama = { n_ctx = 1024 } }

local function answer(t)
  io.stdout:write(z3.json.encode(t), '\n')
  io.stdout:flush()
end

local function now() return tonumber(C.z3_now_ns()) * 1e-9 end

local function page_faults()
  ffi.C.bench_getrusage(0, usage)
  return tonumber(usage.minor_faults)
end

local function peak_rss()
  ffi.C.bench_getrusage(0, usage)
  return tonumber(usage.max_rss_kib) * 1024
end

--- The same weights in every process: they depend on the seed alone.
local function new_model(kind, preset)
  z3.manual_seed(SEED)
  return require('models.' .. kind).new(preset, OVER[kind])
end

local function tokens_of(model, B, n_time)
  local list = {}
  for i = 1, BATCHES do list[i] = z3.data.random_tokens(B, n_time + 1, model.options.vocab_size, i) end
  return list
end

local function export(kind, preset, path, ...)
  local model = new_model(kind, preset)
  local tensors = model:state_dict()
  for _, shape in ipairs { ... } do
    local B, n_time = shape:match '^(%d+)x(%d+)$'
    tensors['tokens.' .. shape] = z3.stack(tokens_of(model, tonumber(B), tonumber(n_time)), 0)
  end
  local o = model.options
  local sizes = { n_layer = o.n_layer, n_head = o.n_head, n_kv_head = o.n_kv_head or o.n_head, n_embd = o.n_embd,
    n_inner = o.n_inner, vocab_size = o.vocab_size, n_ctx = o.n_ctx, norm_eps = o.norm_eps, rope_theta = o.rope_theta }
  z3.safetensors.save(path, tensors, { options = z3.json.encode(sizes), adamw = z3.json.encode(ADAMW) })
  answer { ready = true }
end

-- ---- training steps --------------------------------------------------------------------------------

local Step = {}
Step.__index = Step

local function new_step(kind, preset, dtype, B, n_time)
  local over = OVER[kind]
  over.n_ctx = math.max(over.n_ctx, n_time)
  local model = new_model(kind, preset)
  local engine = z3.initialize { model = model, optimizer = z3.optim.adamw(ADAMW),
    config = { train_micro_batch_size_per_gpu = B, bf16 = { enabled = dtype == 'bf16' }, gradient_clipping = 0 } }
  local batches = {}
  for i, t in ipairs(tokens_of(model, B, n_time)) do
    batches[i] = { tokens = t:narrow(1, 0, n_time):contiguous(), targets = t:narrow(1, 1, n_time):contiguous() }
  end
  return setmetatable({ engine = engine, batches = batches, i = 0 }, Step)
end

function Step:step()
  self.i = self.i + 1
  local batch = self.batches[(self.i - 1) % #self.batches + 1]
  local faults, start = page_faults(), now()
  local r = self.engine:train_batch(batch)
  answer { s = now() - start, loss = r.loss, faults = page_faults() - faults, memory_peak = r.memory_peak }
end

-- One more step, profiled: its parts.
function Step:parts()
  z3.profiler.start { warmup = 0 }
  self.engine:train_batch(self.batches[1])
  local r = z3.profiler.stop()
  local rows = {}
  for i, x in ipairs(r.rows) do
    rows[i] = { work = x.work .. ' ' .. x.phase, share = x.share, ms = x.seconds * 1e3, gflop_s = x.gflop_s,
                gb_s = x.gb_s }
  end
  answer { step_s = r.step_s, kernels = r.kernels_s / r.step_s, library = r.library_s / r.step_s,
           lua = r.lua_s / r.step_s, rows = rows }
end

-- ---- attention -------------------------------------------------------------------------------------

local Attention = {}
Attention.__index = Attention

--- Makes q, k, v, dy of B heads-of-queries H, heads-of-keys K, length, width, dtype, computes, and writes all of it.
function Attention:make(rest)
  local path, B, H, K, n, D, dtype = rest:match '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)$'
  B, H, K, n, D = tonumber(B), tonumber(H), tonumber(K), tonumber(n), tonumber(D)
  z3.manual_seed(SEED)
  for _, t in pairs(self.tensors or {}) do t:free() end
  local t = {}
  for _, name in ipairs { 'q', 'k', 'v', 'dy' } do
    local heads = (name == 'k' or name == 'v') and K or H
    t[name] = z3.randn({ B, heads, n, D }, { dtype = dtype })
  end
  for _, name in ipairs { 'q', 'k', 'v' } do t[name]:requires_grad_() end
  self.tensors = t
  local y = self:compute()
  z3.safetensors.save(path, { q = t.q:detach(), k = t.k:detach(), v = t.v:detach(), dy = t.dy,
    y = y:detach():contiguous(), dq = t.q.grad:contiguous(), dk = t.k.grad:contiguous(), dv = t.v.grad:contiguous() })
  y:free()
  answer { ready = true }
end

function Attention:compute()
  local t = self.tensors
  for _, name in ipairs { 'q', 'k', 'v' } do t[name]:zero_grad() end
  local start = now()
  local y = z3.nn.functional.scaled_dot_product_attention(t.q, t.k, t.v, { causal = true })
  local middle = now()
  y:backward(t.dy)
  return y, middle - start, now() - middle
end

function Attention:run()
  local y, forward, backward = self:compute()
  y:free()
  answer { forward = forward, backward = backward }
end

-- ---- commands --------------------------------------------------------------------------------------

local what = arg[1]
if what == 'export' then return export(select(2, ...)) end
local work
if what == 'step' then work = new_step(arg[2], arg[3], arg[4], tonumber(arg[5]), tonumber(arg[6]))
else work = setmetatable({}, Attention) end
answer { ready = true, isa = z3.features().isa, threads = z3.features().threads, version = z3.version }
for line in io.lines() do
  local word, rest = line:match '^(%S+)%s*(.*)$'
  if word == 'end' then
    answer { rss = peak_rss(), memory = z3.memory.stats() }
    if work.engine then work.engine:close() end
    break
  end
  work[word](work, rest)
end
