-- initializers.lua -- first values of parameters: 'zeros', 'normal', { 'normal', std = 0.02 }, 'kaiming_uniform', ...
-- Element i of a parameter depends on (key, i) alone, so any part of it can be filled by itself.
-- Legend: fan_in, fan_out = inputs and outputs of a weight (out, in, ...) as PyTorch counts them.
-- Sources: Glorot & Bengio 2010 (xavier), He et al. 2015 (kaiming).
local ffi     = require 'ffi'
local err     = require 'z3.error'
local check   = require 'z3.check'
local nearest = require 'z3.nearest'
local C       = require('z3.ffi').C

local M = {}

local NORMAL, UNIFORM, TRUNC = 0, 1, 2                  -- Z3R_...

-- The options that each kind takes, with their defaults (PyTorch's). fan_in and fan_out replace the counted ones.
local KINDS = {
  zeros           = {},
  ones            = {},
  constant        = { value = 0 },
  normal          = { mean = 0, std = 1 },
  trunc_normal    = { mean = 0, std = 1 },
  uniform         = { low = 0, high = 1 },
  kaiming_uniform = { a = 0, fan_in = false },
  kaiming_normal  = { a = 0, fan_in = false },
  xavier_uniform  = { gain = 1, fan_in = false, fan_out = false },
  xavier_normal   = { gain = 1, fan_in = false, fan_out = false },
}
local NAMES = nearest.keys(KINDS)

--- Checks an initializer and writes it in one form: { kind=, option=value, ... }.
-- @param spec   'normal', { 'normal', std = 0.02 }, a number (constant), a function(tensor), or nil ('zeros')
-- @string what  the parameter, for messages
-- @raise ARG: unknown kind or option, with the nearest; an option that is no number
function M.read(spec, what)
  if spec == nil then return { kind = 'zeros' } end
  if type(spec) == 'number' then return { kind = 'constant', value = spec } end
  if type(spec) == 'function' then return { kind = 'call', fn = spec } end
  local given = type(spec) == 'table' and spec or { spec }
  local kind = given[1]
  local known = KINDS[kind]
  if not known then
    err.throw('ARG', ('%s: init is %s%s'):format(what, tostring(kind), nearest.hint(tostring(kind), NAMES)))
  end
  local out = { kind = kind }
  for k, v in pairs(known) do out[k] = v end
  for k, v in pairs(given) do
    if k ~= 1 then
      if known[k] == nil then
        err.throw('ARG', ('%s: init %s has no option "%s"%s'):format(what, kind, tostring(k),
          nearest.hint(tostring(k), nearest.keys(known))))
      end
      err.require_arg(type(v) == 'number', '%s: init %s: %s is %s, wants a number', what, kind, k, tostring(v))
      out[k] = v
    end
  end
  return out
end

local function fans(spec, shape, what)
  if spec.fan_in and (spec.fan_out or spec.fan_out == nil) then return spec.fan_in, spec.fan_out end
  err.require_arg(#shape >= 2, '%s: init %s wants a shape of two dims or more, it has %d (or give fan_in)',
    what, spec.kind, #shape)
  local field = 1
  for i = 3, #shape do field = field * shape[i] end
  return spec.fan_in or shape[2] * field, spec.fan_out or shape[1] * field
end

-- Distribution and its two numbers: normal (mean, std), uniform (low, high); or 'fill' and a value.
local RULES = {
  zeros        = function() return 'fill', 0 end,
  ones         = function() return 'fill', 1 end,
  constant     = function(s) return 'fill', s.value end,
  normal       = function(s) return NORMAL, s.mean, s.std end,
  trunc_normal = function(s) return TRUNC, s.mean, s.std end,
  uniform      = function(s) return UNIFORM, s.low, s.high end,
  kaiming_uniform = function(s, fan_in)
    local bound = math.sqrt(6 / ((1 + s.a ^ 2) * fan_in))
    return UNIFORM, -bound, bound
  end,
  kaiming_normal = function(s, fan_in) return NORMAL, 0, math.sqrt(2 / ((1 + s.a ^ 2) * fan_in)) end,
  xavier_uniform = function(s, fan_in, fan_out)
    local bound = s.gain * math.sqrt(6 / (fan_in + fan_out))
    return UNIFORM, -bound, bound
  end,
  xavier_normal = function(s, fan_in, fan_out) return NORMAL, 0, s.gain * math.sqrt(2 / (fan_in + fan_out)) end,
}

--- Fills a run of a parameter's elements.
-- @param h      native f32 tensor: elements first, first + 1, ... of the row-major parameter
-- @tab spec     from M.read; not kind 'call', which the parameter runs itself
-- @tab shape    of the whole parameter
-- @param key    64-bit key of the parameter
-- @number first 0-based
-- @string what  the parameter's name, for messages
function M.fill(h, spec, shape, key, first, what)
  local fan_in, fan_out
  if spec.fan_in ~= nil then fan_in, fan_out = fans(spec, shape, what) end
  local kind, a, b = RULES[spec.kind](spec, math.max(1, fan_in or 1), fan_out)
  if kind == 'fill' then check(C.z3_tensor_fill(h, a), what)
  else check(C.z3_tensor_random(h, kind, a, b, ffi.cast('uint64_t', key), first), what) end
end

return M
