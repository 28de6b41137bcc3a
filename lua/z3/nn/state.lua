-- state.lua -- a module's values as a table name -> tensor, and back.
local err     = require 'z3.error'
local nearest = require 'z3.nearest'
local opts    = require 'z3.opts'
local walk    = require 'z3.nn.walk'
local T       = require 'z3.tensor_core'

local M = {}

local SHOWN = 5                                         -- names listed in a message

--- See Module:state_dict.
function M.save(module)
  local out = {}
  for _, e in ipairs(walk.collect(module).parameters) do out[e.path] = e.parameter:full() end
  return out
end

local function listed(names)
  local text = table.concat(names, ', ', 1, math.min(SHOWN, #names))
  return #names > SHOWN and ('%s and %d more'):format(text, #names - SHOWN) or text
end

-- What to load into which parameter; names that lead nowhere, parameters that nothing names.
local function match(module, t)
  local by_name, names, entries = {}, {}, walk.collect(module).parameters
  for _, e in ipairs(entries) do
    by_name[e.path] = e
    names[#names + 1] = e.path
    for _, alias in ipairs(e.aliases) do by_name[alias] = e end
  end
  local found, unexpected, missing = {}, {}, {}
  for _, key in ipairs(nearest.keys(t)) do
    local e = by_name[key]
    if not e then unexpected[#unexpected + 1] = key
    elseif not found[e] or key == e.path then found[e] = key end
  end
  for _, e in ipairs(entries) do
    if not found[e] then missing[#missing + 1] = e.path end
  end
  return entries, found, unexpected, missing, names
end

local function check_shapes(entries, found, t)
  for _, e in ipairs(entries) do
    local key = found[e]
    if key then
      T.ready(t[key], ('load_state_dict: %s'):format(key))
      local have, want = t[key].shape, e.parameter.shape
      if not T.same_shape(have, want) then
        err.throw('SHAPE', ('load_state_dict: %s is (%s) here, (%s) in what is loaded'):format(key,
          table.concat(want, ','), table.concat(have, ',')))
      end
    end
  end
end

--- See Module:load_state_dict.
function M.load(module, t, o)
  local ok = type(t) == 'table' and not walk.is_module(t)
  err.require_arg(ok, 'load_state_dict: wants a table of name -> tensor, got %s', type(t))
  o = opts.read(o, { strict = true }, 'load_state_dict')
  local entries, found, unexpected, missing, names = match(module, t)
  if o.strict and #unexpected > 0 then
    err.throw('ARG', ('load_state_dict: the model has no %s%s'):format(listed(unexpected),
      nearest.find(unexpected[1], names) and nearest.hint(unexpected[1], names) or ''))
  end
  if o.strict and #missing > 0 then
    local near = nearest.find(missing[1], nearest.keys(t))
    err.throw('ARG', ('load_state_dict: %s missing%s (strict=false leaves them as they are)'):format(listed(missing),
      near and (', the nearest given is "%s"'):format(near) or ''))
  end
  check_shapes(entries, found, t)
  for _, e in ipairs(entries) do
    if found[e] then e.parameter:load(t[found[e]]) end
  end
  return { missing = missing, unexpected = unexpected }
end

return M
