--- section.lua -- the "optimizer" section of a DeepSpeed config as one of our optimizers.
-- Defaults are DeepSpeed's; type Adam is AdamW there unless adam_w_mode is false.
local err     = require 'z3.error'
local nearest = require 'z3.nearest'
local builtin = require 'z3.optim.builtin'

local M = {}

-- type in lower case -> our name and the defaults that differ from PyTorch's.
local TYPES = {
  adam  = { 'adamw', { weight_decay = 0 } },
  adamw = { 'adamw', { weight_decay = 0 } },
  sgd   = { 'sgd', {} },
  lion  = { 'lion', { lr = 1e-3 } },
}
-- Known to DeepSpeed, not here.
local LATER = { adagrad = true, lamb = true, onebitadam = true, onebitlamb = true, zerooneadam = true, muon = true,
  muadam = true, muadamw = true, musgd = true, cpuadam = true }

-- Our options; the other keys of a config choose between classes with the same arithmetic, or config.lua refused them.
local OURS = { 'lr', 'betas', 'eps', 'weight_decay', 'momentum', 'nesterov' }

local function pick(type_name, params)
  local key = type(type_name) == 'string' and type_name:lower() or tostring(type_name)
  if LATER[key] then err.throw('UNSUPPORTED', ('not supported yet: optimizer.type "%s"'):format(type_name)) end
  local entry = TYPES[key]
  if not entry then
    err.throw('CONFIG', ('optimizer.type: "%s" is unknown%s'):format(tostring(type_name),
      nearest.hint(tostring(type_name), { 'Adam', 'AdamW', 'Lion', 'SGD' })))
  end
  local name = entry[1]
  if key == 'adam' and params.adam_w_mode == false then name = 'adam' end
  return name, entry[2]
end

--- Builds it.
-- @tab section  { type=, params= } of an effective config (config.lua checked and completed it)
-- @raise CONFIG (unknown type, bad value), UNSUPPORTED
function M.new(section)
  local params = section.params or {}
  local name, defaults = pick(section.type, params)
  local o = {}
  for k, v in pairs(defaults) do o[k] = v end
  for _, key in ipairs(OURS) do
    if params[key] ~= nil then o[key] = params[key] end
  end
  local ok, result = pcall(builtin.new, name, o)
  if ok then return result end
  if err.is_error(result, 'ARG') then
    err.throw('CONFIG', (result.message:gsub('^optim%.%w+', 'optimizer.params')))
  end
  error(result, 0)
end

return M
