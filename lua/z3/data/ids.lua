--- ids.lua -- tensors of token ids: filled in host memory, then brought to the device that recipes run on.
local ffi = require 'ffi'
local T   = require 'z3.tensor'
local C   = require('z3.ffi').C

local M = {}

local DEFAULT = {}
for n = 0, C.Z3D_COUNT - 1 do DEFAULT[n] = ffi.string(C.z3_device_name(n)) end

--- A new i32 tensor in host memory, contents undefined, and the pointer to write them.
function M.new(shape)
  local t = T.new(T.dtypes.i32, C.Z3D_CPU, shape, C.Z3M_OTHER, 'data')
  return t, t:data()
end

--- The tensor on the default device; a copy there replaces t.
function M.place(t)
  local device = T.default_device()
  if device == C.Z3D_CPU then return t end
  local there = t:to(DEFAULT[device])
  t:free()
  return there
end

return M
