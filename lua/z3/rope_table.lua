--- rope_table.lua -- cosines and sines of rotary positions, computed in double, kept per (theta, scaling, D, device).
-- Legend: P positions, D head width; row p holds cos of D/2 angles, then sin. inv_freq[i] = theta^(-2i/D).
-- Sources: Su et al. 2021 (arXiv:2104.09864); Llama 3's scaling as in Hugging Face transformers.
local ffi    = require 'ffi'
local check  = require 'z3.check'
local err    = require 'z3.error'
local handle = require 'z3.handle'
local C      = require('z3.ffi').C
local T      = require 'z3.tensor_core'

local M = {}

local FIRST_LENGTH = 256
local tables = {}                               -- key -> { tensor (P,D), length }

local function need(scaling, key)
  local v = scaling[key]
  err.require_arg(type(v) == 'number', 'rope: scaling.%s is %s, wants a number', key, tostring(v))
  return v
end

--- How each frequency is changed, by the type's name.
local SCALE = {
  default = function(f) return f end,
  linear = function(f, s) return f / need(s, 'factor') end,
  llama3 = function(f, s)
    local factor, low, high = need(s, 'factor'), need(s, 'low_freq_factor'), need(s, 'high_freq_factor')
    local old = need(s, 'original_max_position_embeddings')
    local wave = 2 * math.pi / f
    if wave > old / low then return f / factor end
    if wave < old / high then return f end
    local smooth = (old / wave - low) / (high - low)
    return (1 - smooth) * f / factor + smooth * f
  end,
}

local function scale_of(scaling)
  local kind = scaling and (scaling.rope_type or scaling.type) or 'default'
  local fn = SCALE[kind]
  if not fn then
    err.throw('UNSUPPORTED', ('rope: scaling type "%s" is not supported yet (default, linear, llama3 are)'):format(
      tostring(kind)))
  end
  return fn, kind
end

--- The D/2 angular frequencies as a Lua table (from 1).
function M.frequencies(theta, scaling, D)
  local scale, f = scale_of(scaling), {}
  for i = 0, D / 2 - 1 do f[i + 1] = scale(theta ^ (-2 * i / D), scaling) end
  return f
end

local function fill(p, length, D, f)
  local half = D / 2
  for pos = 0, length - 1 do
    local row = pos * D
    for i = 0, half - 1 do
      local angle = pos * f[i + 1]
      p[row + i] = math.cos(angle)
      p[row + half + i] = math.sin(angle)
    end
  end
end

local function build(theta, scaling, D, length, device)
  local t = handle.keep(T.new(C.Z3T_F32, C.Z3D_CPU, { length, D }, C.Z3M_BUFFER, 'rope'))
  fill(t:data(), length, D, M.frequencies(theta, scaling, D))
  if device == C.Z3D_CPU then return t end
  local out = ffi.new 'z3_tensor *[1]'
  check(C.z3_tensor_to_device(t.h, device, out), 'rope')
  t:free()
  return handle.keep(T.wrap(out[0]))
end

local function key_of(theta, scaling, D, device)
  local parts = { theta, D, device }
  if scaling then
    local _, kind = scale_of(scaling)
    parts[#parts + 1] = kind
    for _, k in ipairs { 'factor', 'low_freq_factor', 'high_freq_factor', 'original_max_position_embeddings' } do
      parts[#parts + 1] = tostring(scaling[k])
    end
  end
  return table.concat(parts, '|')
end

--- The table for at least `length` positions: (P,D) f32, owned by this cache. It grows by doubling.
-- @number theta
-- @param scaling  the rope_scaling (or rope_parameters) table of a Hugging Face config, or nil
function M.get(theta, scaling, D, length, device)
  local key = key_of(theta, scaling, D, device)
  local have = tables[key]
  if have and have.length >= length then return have.tensor end
  local rows = FIRST_LENGTH
  while rows < length do rows = rows * 2 end
  local t = handle.outside(build, theta, scaling, D, rows, device)
  if have then have.tensor:free() end           -- what backward needs of it lives on
  tables[key] = { tensor = t, length = rows }
  return t
end

--- Frees all tables (tests, and when memory is short).
function M.clear()
  for _, e in pairs(tables) do e.tensor:free() end
  tables = {}
end

return M
