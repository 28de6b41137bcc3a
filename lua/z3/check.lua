--- check.lua -- turns a C status into a thrown error object: check(C.z3_something(...) [, 'what']).
local ffi = require 'ffi'
local err = require 'z3.error'
local C   = require('z3.ffi').C

local OOM = 1                                   -- Z3E_OOM; a literal keeps the hot path free of namespace look-ups
local TOP = 10

--- Path of the module that is running, as a prefix.
function err.context()
  local path = ffi.string(C.z3_module_current())
  return path == '' and '' or path .. ': '
end

--- The error leaves all modules: without this the next message would carry a stale path.
function err.unwind() C.z3_module_unwind(0) end

--- Who holds the memory: bytes by category and the largest owners.
local function oom_fields()
  local info = C.z3_last_oom()
  local fields = {
    requested = tonumber(info.requested_bytes), device = ffi.string(info.device),
    limit = tonumber(info.limit_bytes), current = tonumber(info.current_bytes), by = {}, top = {},
  }
  local device = C.z3_device_from_name(info.device)
  if device < 0 then return fields end
  local memory = require 'z3.memory'
  for name, v in pairs(memory.stats(fields.device).by) do fields.by[name] = v.current end
  fields.top = memory.top(TOP, fields.device)
  return fields
end

--- The counts of bytes in a message as people read them.
local function readable(message)
  local text = require('z3.opts').bytes_text
  local function shown(digits) return text(tonumber(digits)) end
  return (message:gsub('(%d+) bytes', shown):gsub('(%d+)( in use)', function(n, s) return shown(n) .. s end)
    :gsub('(%d+)( reserved)', function(n, s) return shown(n) .. s end))
end

local function fail(rc, what)
  local message = ffi.string(C.z3_last_error())
  if rc == OOM then message = readable(message) end
  if message == '' then message = 'failed with status ' .. rc end
  -- C's messages start with the operation's name already.
  if what and message:sub(1, #what) ~= what then message = what .. ': ' .. message end
  local chain = ffi.string(C.z3_error_chain())
  local extra = rc == OOM and oom_fields() or {}
  extra.chain = chain
  err.throw(ffi.string(C.z3_code_name(rc)), message, extra)
end

--- Throws when rc isn't 0; message and fields come from the library's last error on this thread.
-- @int rc            status of a C call
-- @string[opt] what  put before the message: the operation or file that it is about
return function(rc, what)
  if rc ~= 0 then fail(rc, what) end
end
