-- names.lua -- helpers for the weights.lua files: names of tensors and values of Hugging Face's config.json.
local err = require 'z3.error'

local M = {}

--- c[key], or default where it is absent or null (z3.json.null equals nil).
function M.value(c, key, default)
  local v = c[key]
  if v == nil then return default end
  return v
end

--- A number; `other` is a second spelling of the key.
-- @raise CONFIG when it is something else
function M.number(what, c, key, default, other)
  local v = M.value(c, key, other and M.value(c, other, default) or default)
  if v ~= nil and type(v) ~= 'number' then
    err.throw('CONFIG', ('%s: %s is %s, wants a number'):format(what, key, tostring(v)))
  end
  return v
end

--- A whole number >= 1, or the default (which may be nil).
function M.size(what, c, key, default, other)
  local v = M.number(what, c, key, default, other)
  if v ~= nil and (v < 1 or v % 1 ~= 0) then
    err.throw('CONFIG', ('%s: %s is %s, wants a whole number >= 1'):format(what, key, tostring(v)))
  end
  return v
end

--- Throws UNSUPPORTED unless c[key] is absent or what we do.
function M.unsupported(what, c, key, ours)
  local v = M.value(c, key, ours)
  if v ~= ours then
    err.throw('UNSUPPORTED', ('%s: %s is %s, only %s is supported'):format(what, key, tostring(v), tostring(ours)))
  end
end

--- A file's name without its prefix; nil for one of the patterns in `ignored`.
function M.strip(name, prefix, ignored)
  if name:sub(1, #prefix) == prefix then name = name:sub(#prefix + 1) end
  for _, pattern in ipairs(ignored) do
    if name:match(pattern) then return nil end
  end
  return name
end

--- t under our names; what is no parameter (buffers that some files carry) is left out. Names that are the model's own
-- already stay as they are.
function M.rename(t, model, name_of)
  if type(t) ~= 'table' then return t end
  local own, out = {}, {}
  for name in model:parameters() do own[name] = true end
  for name, tensor in pairs(t) do
    local ours = own[name] and name or type(name) == 'string' and name_of(name) or nil
    if ours then out[ours] = tensor end
  end
  return out
end

local ACTIVATIONS = { gelu_tanh = 'gelu_new', gelu_erf = 'gelu' }

--- The name that Hugging Face knows an activation by.
function M.activation(name) return ACTIVATIONS[name] or name end

return M
