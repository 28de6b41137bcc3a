--- init.lua -- z3: the table that scripts see. Other parts are loaded when they are first used: starting is quick.
local ffi    = require 'ffi'
local err    = require 'z3.error'
local C      = require('z3.ffi').C
local handle = require 'z3.handle'
local T      = require 'z3.tensor'
local rng    = require 'z3.random'
local autograd = require 'z3.autograd'

local M = {}

--- Version of the library.
M.version = ffi.string(C.z3_version())
--- This process's rank and the number of ranks.
M.rank, M.world = err.rank, 1

--- What this build and machine can do: { cuda=, nccl=, mpi=, onednn=, uring=, amx=, ... }: false, true or a version.
function M.features()
  local isa = ffi.string(C.z3_cpu_isa())
  local out = { cuda = false, nccl = false, mpi = false, onednn = false, uring = false, isa = isa,
                amx = isa:find('amx', 1, true) ~= nil, bf16 = C.z3_has_bf16(), threads = C.z3_threads(0) }
  for key, value in ffi.string(C.z3_build_features()):gmatch '(%w+)=(%S+)' do
    if value == '0' then out[key] = false elseif value == '1' then out[key] = true else out[key] = value end
  end
  return out
end

M.is_error = err.is_error

-- ---- tensors -------------------------------------------------------------------------------------

-- Every method is a function too; functions that make tensors come over them.
for name, fn in pairs(T.methods) do M[name] = fn end
for name, fn in pairs(T.functions) do M[name] = fn end
M.tostring, M.data, M.free, M.t = nil, nil, nil, nil

--- Is x a tensor?
M.is_tensor = T.is_tensor
M.manual_seed = rng.manual_seed
M.scope = handle.scope
M.no_grad, M.enable_grad, M.op = autograd.no_grad, autograd.enable_grad, autograd.op

-- ---- small things --------------------------------------------------------------------------------

--- A number as text; whole numbers up to 2^53 in full.
local function show(v)
  if type(v) == 'number' and v % 1 == 0 and math.abs(v) <= 2 ^ 53 then return ('%d'):format(v) end
  return tostring(v)
end

--- print on rank 0 only.
function M.print(...)
  if M.rank ~= 0 then return end
  local parts = { ... }
  for i = 1, select('#', ...) do parts[i] = show(parts[i]) end
  io.stdout:write(table.concat(parts, '\t', 1, select('#', ...)), '\n')
end

--- Bytes for people: '512 B', '1.5 GiB'.
function M.bytes(n)
  err.require_arg(type(n) == 'number', 'bytes: %s is no number', tostring(n))
  return require('z3.opts').bytes_text(n)
end

--- The recipe's options; see args.lua.
function M.args(defaults, help) return require('z3.args').read(defaults, help) end

-- ---- parts loaded on first use -------------------------------------------------------------------

-- name -> { module, field or nil }
local LAZY = {
  nn = { 'z3.nn' }, optim = { 'z3.optim' }, sched = { 'z3.sched' }, data = { 'z3.data' },
  tokenizer = { 'z3.tokenizer' },
  json = { 'z3.json' }, safetensors = { 'z3.safetensors' }, memory = { 'z3.memory' },
  profiler = { 'z3.profiler' },
  initialize = { 'z3.engine', 'initialize' }, progress = { 'z3.progress', 'progress' },
  generate = { 'z3.generate', 'generate' },
}
-- Names that scripts may expect already. Each leaves this list when it is built.
local LATER = { lora = true, gathered = true, all_reduce = true, broadcast = true, all_gather = true,
                reduce_scatter = true, barrier = true, shard_range = true }

setmetatable(M, { __index = function(_, key)
  local entry = LAZY[key]
  if LATER[key] then err.throw('UNSUPPORTED', 'not supported yet: z3.' .. key) end
  if not entry then return nil end
  local module = require(entry[1])
  local value = entry[2] and type(module) == 'table' and module[entry[2]] or module
  M[key] = value
  return value
end })

-- ---- what the launcher asked for -----------------------------------------------------------------

local host = package.loaded['z3.host']
if type(host) == 'table' and not host.applied then
  if host.threads then C.z3_threads(host.threads) end
  if host.memory_limit then M.memory.set_limit(tonumber(host.memory_limit) or host.memory_limit) end
  if host.profile or host.trace then
    local profile, trace = host.profile, host.trace
    M.profiler.start_for(trace)
    table.insert(host.at_close, function() M.profiler.finish_for(profile, trace) end)
  end
  host.applied = true
end

return M
