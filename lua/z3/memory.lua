--- memory.lua -- z3.memory: how many bytes are in use, by whom, and the limit.
local ffi   = require 'ffi'
local check = require 'z3.check'
local opts  = require 'z3.opts'
local C     = require('z3.ffi').C

local M = {}

--- Names of the categories, in the order of Z3M_...
M.CATEGORIES = { 'param_shard', 'param_full', 'grad', 'optimizer', 'activation', 'buffer', 'io', 'other' }

local function device_number(device, what)
  local T = require 'z3.tensor_core'
  return device and T.device_number(device, what) or T.default_device()
end

--- Bytes in use: { current=, peak=, limit= (nil: none), reserved=, system_allocs=, allocs=,
-- by = { activation = { current=, peak= }, ... } }.
-- @string[opt] device  'cpu' or 'null'; the default device unless given
function M.stats(device)
  local s = ffi.new 'z3_memory_stats'
  check(C.z3_memory_stats_get(device_number(device, 'memory.stats'), s), 'memory.stats')
  local limit = tonumber(s.limit)
  local out = { current = tonumber(s.current), peak = tonumber(s.peak), limit = limit > 0 and limit or nil,
                reserved = tonumber(s.reserved), system_allocs = tonumber(s.system_allocs),
                allocs = tonumber(s.allocs), by = {} }
  for i, name in ipairs(M.CATEGORIES) do
    out.by[name] = { current = tonumber(s.by_current[i - 1]), peak = tonumber(s.by_peak[i - 1]) }
  end
  return out
end

--- A hard limit on the bytes of this rank's device: '512MiB', a number of bytes, or nil for none.
-- @raise OOM when more is in use already
function M.set_limit(size, device)
  local n = device_number(device, 'memory.set_limit')
  require('z3.handle').collect()                -- garbage must not make a limit look too small
  local bytes = size and opts.bytes(size, 'memory.set_limit') or 0
  if size and bytes < 1 then require('z3.error').throw('ARG', 'memory.set_limit: the limit is 0; nil means none') end
  check(C.z3_memory_limit_set(n, bytes), 'memory.set_limit')
end

--- Starts the peaks again from what is in use now.
function M.reset_peak(device) C.z3_memory_peak_reset(device_number(device, 'memory.reset_peak')) end

--- Collects dead tensors and gives cached memory back to the system.
function M.trim(device)
  require('z3.handle').collect()
  C.z3_memory_trim(device_number(device, 'memory.trim'))
end

--- The n largest owners of live memory: { { owner=, bytes= }, ... }.
function M.top(n, device)
  n = math.min(math.max(opts.want_number(n or 10, 'memory.top', 'n', true), 0), 1000)
  local names, bytes, out = ffi.new('const char *[?]', n), ffi.new('int64_t[?]', n), {}
  for i = 0, C.z3_memory_top(device_number(device, 'memory.top'), n, names, bytes) - 1 do
    out[i + 1] = { owner = ffi.string(names[i]), bytes = tonumber(bytes[i]) }
  end
  return out
end

return M
