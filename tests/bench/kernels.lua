--- kernels.lua -- kernels that are bound by memory, beside plain loops over the same memory in the same run.
-- z3lua tests/bench/kernels.lua STREAM_LIBRARY [quick|probe]      prints JSON lines; probe: only how fast the cores are
-- gb_s: bytes read and written, each tensor once, over the median time; of_stream: that over what the plain AdamW loop
-- reaches here. Small shapes are those of a step of 1024 tokens and may lie in a cache, so they can pass 1.
local z3  = require 'z3'
local ffi = require 'ffi'
local C   = require('z3.ffi').C
local F   = z3.nn.functional

ffi.cdef [[
typedef struct { float lr, beta1, beta2, eps, weight_decay, bias1, bias2; } bench_adamw_args;
void bench_copy(float *b, const float *a, int64_t n);
void bench_triad(float *c, const float *a, const float *b, float s, int64_t n);
float bench_read(const float *a, int64_t n);
void bench_adamw(float *p, float *m, float *v, const float *g, uint16_t *w16, int64_t n, const bench_adamw_args *args);
double bench_probe(void);
]]

local library, quick = arg[1], arg[2] == 'quick'
z3.manual_seed(1)
local stream = ffi.load(library)
local REPEATS = quick and 5 or 9
local DTYPE = z3.features().bf16 and 'bf16' or 'f32'

local function emit(t)
  io.stdout:write(z3.json.encode(t), '\n')
  io.stdout:flush()
end

local function summary(list)
  table.sort(list)
  return list[math.floor((#list + 1) / 2)], list[1]
end

--- Seconds of a call.
local function timed(fn)
  local start = C.z3_now_ns()
  fn()
  return tonumber(C.z3_now_ns() - start) * 1e-9
end

-- ---- optimizer and norm ----------------------------------------------------------------------------

local OPTIONS = { lr = 1e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1 }

local function adamw_args(step)
  local ours, plain = ffi.new('z3_update_args', OPTIONS), ffi.new('bench_adamw_args', OPTIONS)
  ours.kind, ours.grad_scale, ours.step = C.Z3_ADAMW, 1, step
  plain.bias1, plain.bias2 = 1 / (1 - OPTIONS.beta1 ^ step), 1 / (1 - OPTIONS.beta2 ^ step)
  return ours, plain
end

local function parameters(n)
  local t = { p = z3.randn { n }, g = z3.randn { n }, m = z3.zeros { n }, v = z3.zeros { n } }
  t.w16 = t.p:to 'bf16'
  local at = {}
  for name, x in pairs(t) do at[name] = x:data() end
  return t, at
end

local function ours(t, args, w16)
  assert(C.z3_update(t.p.h, t.m.h, t.v.h, t.g.h, w16 and t.w16.h or nil, args) == 0)
end

-- Both give the same parameters: three steps from the same start.
local function check_adamw()
  local n = 100003
  local t, at = parameters(n)
  local p, g, m, v = t.p:clone(), t.g:clone(), t.m:clone(), t.v:clone()
  for step = 1, 3 do
    local a, b = adamw_args(step)
    ours(t, a, true)
    stream.bench_adamw(p:data(), m:data(), v:data(), g:data(), ffi.cast('uint16_t *', at.w16), n, b)
  end
  local worst = (t.p - p):abs():max():item()
  assert(worst < 1e-5, 'adamw: ours and the plain loop differ by ' .. worst)
end

local function optimizer()
  z3.scope(check_adamw)
  local n = (quick and 16 or 32) * 2 ^ 20
  local t, at = parameters(n)
  local a, b = adamw_args(7)
  local w16 = ffi.cast('uint16_t *', at.w16)
  local sum, bad = ffi.new 'double[1]', ffi.new 'int64_t[1]'
  -- name, bytes an element, call; the plain one of each pair first
  local ways = {
    { 'copy', 8, function() stream.bench_copy(at.m, at.g, n) end },
    { 'triad', 12, function() stream.bench_triad(at.v, at.g, at.m, 0.5, n) end },
    { 'read', 4, function() stream.bench_read(at.g, n) end },
    { 'plain adamw', 28, function() stream.bench_adamw(at.p, at.m, at.v, at.g, nil, n, b) end },
    { 'adamw', 28, function() ours(t, a) end, 'plain adamw' },
    { 'plain adamw+bf16', 30, function() stream.bench_adamw(at.p, at.m, at.v, at.g, w16, n, b) end },
    { 'adamw+bf16', 30, function() ours(t, a, true) end, 'plain adamw+bf16' },
    { 'sum of squares', 4, function() assert(C.z3_sumsq(t.g.h, sum, bad) == 0) end, 'read' },
  }
  local seconds, result = {}, {}
  for round = 0, REPEATS do
    for i, w in ipairs(ways) do
      local s = timed(w[3])
      seconds[i] = seconds[i] or {}
      if round > 0 then table.insert(seconds[i], s) end
      if w[1] == 'triad' then t.v:fill_(1e-4) end   -- a second moment is never negative
    end
  end
  for i, w in ipairs(ways) do
    local median, best = summary(seconds[i])
    result[w[1]] = { gb_s = n * w[2] / median / 1e9, best = n * w[2] / best / 1e9 }
    local beside = w[4] and result[w[4]]
    emit { bench = 'stream', name = w[1], elements = n, bytes_per_element = w[2], gb_s = result[w[1]].gb_s,
           gb_s_best = result[w[1]].best, beside = w[4], ratio = beside and result[w[1]].gb_s / beside.gb_s,
           ratio_best = beside and result[w[1]].best / beside.best, threads = z3.features().threads }
  end
  for _, x in pairs(t) do x:free() end
  return result['plain adamw'].gb_s
end

-- ---- operations ------------------------------------------------------------------------------------

--- Kernel times and bytes of one operation, from the core's own events: { forward = { s..., bytes= }, backward = ... }.
local function measure(op, run)
  local out = { [C.Z3P_FORWARD] = { name = 'forward' }, [C.Z3P_BACKWARD] = { name = 'backward' } }
  local events = ffi.new('z3_event[?]', 64)
  for round = 0, REPEATS do
    assert(C.z3_prof_enable(64) == 0)
    z3.scope(run)
    C.z3_prof_disable()
    for i = 0, C.z3_prof_drain(events, 64, nil) - 1 do
      local e = events[i]
      local list = e.object == op and out[e.kind]
      if list and round > 0 then
        list[#list + 1] = tonumber(e.end_ns - e.start_ns) * 1e-9
        list.bytes, list.flops = tonumber(e.bytes), e.flops
      end
    end
  end
  return out
end

local function leaf(shape, dtype) return z3.randn(shape, { dtype = dtype or DTYPE }):requires_grad_() end

local function clear(...)
  for _, t in ipairs { ... } do t:zero_grad() end
end

-- name -> function(N) -> run(), what it computes in f32 for a check, shape text
local CASES = {}
CASES.layer_norm = function(N)
  local x, w, b, dy = leaf { N, 768 }, leaf { 768 }, leaf { 768 }, z3.randn({ N, 768 }, { dtype = DTYPE })
  return function() clear(x, w, b); local y = F.layer_norm(x, w, b); y:backward(dy); return y:detach() end,
    function() return F.layer_norm(x:to 'f32', w:to 'f32', b:to 'f32') end, '768'
end
CASES.rms_norm = function(N)
  local x, w, dy = leaf { N, 768 }, leaf { 768 }, z3.randn({ N, 768 }, { dtype = DTYPE })
  return function() clear(x, w); local y = F.rms_norm(x, w); y:backward(dy); return y:detach() end,
    function() return F.rms_norm(x:to 'f32', w:to 'f32') end, '768'
end
CASES.gelu_tanh = function(N)
  local x, dy = leaf { N, 3072 }, z3.randn({ N, 3072 }, { dtype = DTYPE })
  return function() clear(x); local y = F.gelu(x, 'tanh'); y:backward(dy); return y:detach() end,
    function() return F.gelu(x:to 'f32', 'tanh') end, '3072'
end
CASES.swiglu = function(N)
  local x, u, dy = leaf { N, 3072 }, leaf { N, 3072 }, z3.randn({ N, 3072 }, { dtype = DTYPE })
  return function() clear(x, u); local y = F.swiglu(x, u); y:backward(dy); return y:detach() end,
    function() return F.swiglu(x:to 'f32', u:to 'f32') end, '3072'
end
CASES.embedding = function(N)
  local w, ids, dy = leaf { 50304, 768 }, z3.data.random_tokens(1, N, 50304, 1), z3.randn({ 1, N, 768 },
    { dtype = DTYPE })
  return function() clear(w); local y = F.embedding(ids, w); y:backward(dy); return y:detach() end,
    function() return F.embedding(ids, w):to 'f32' end, '768 of 50304'
end
CASES.cross_entropy = function(N)
  local x, ids = leaf({ N, 50304 }, 'f32'), z3.data.random_tokens(1, N, 50304, 1):view(N)
  return function() clear(x); local y = F.cross_entropy(x, ids); y:backward(); return y:detach() end,
    function()
      local picked = x:detach():log_softmax(-1):gather(1, ids:to('i64'):view(N, 1))
      return -picked:mean()
    end, '50304 (f32)'
end

-- Result in DTYPE against the same in f32.
local function check_case(name, run, reference)
  local y, want = run():to 'f32', z3.no_grad(reference)
  local err = ((y - want):pow(2):sum():sqrt() / want:pow(2):sum():sqrt()):item()
  assert(err < 0.01, ('%s: differs from f32 by %g'):format(name, err))
  return err
end

local function operation(name, N, stream_gb_s)
  local run, reference, width = CASES[name](N)
  local err = z3.scope(check_case, name, run, reference)
  for _, list in pairs(measure(C['Z3OP_' .. name], run)) do
    if #list > 0 then
      local median, best = summary(list)
      emit { bench = 'kernel', op = name, phase = list.name, shape = ('%d x %s'):format(N, width), dtype = DTYPE,
             us = median * 1e6, us_best = best * 1e6, bytes = list.bytes, gb_s = list.bytes / median / 1e9,
             of_stream = list.bytes / median / 1e9 / stream_gb_s, err = err }
    end
  end
end

emit { bench = 'probe', gflop_s = stream.bench_probe(), isa = z3.features().isa, threads = z3.features().threads }
if arg[2] == 'probe' then return end
local gb_s = optimizer()
for _, name in ipairs { 'layer_norm', 'rms_norm', 'gelu_tanh', 'swiglu', 'embedding', 'cross_entropy' } do
  z3.scope(operation, name, 1024, gb_s)
  if not quick and name ~= 'cross_entropy' then z3.scope(operation, name, 16384, gb_s) end
end
emit { bench = 'probe', gflop_s = stream.bench_probe() }
