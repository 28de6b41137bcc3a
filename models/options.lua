-- options.lua -- reads what models are made from: a preset's name or a table of options, and overrides.
local err     = require 'z3.error'
local nearest = require 'z3.nearest'
local opts    = require 'z3.opts'

local M = {}

--- Merges defaults, preset and overrides.
-- @string what      'models.gpt2', for messages
-- @tab defaults     option -> default or opts marker
-- @tab presets      name -> options
-- @param given      a preset's name, or a table of options; nil means the defaults
-- @tab[opt] overrides
-- @raise ARG: unknown preset or option (nearest shown), wrong type, a size that is no whole number >= 1
function M.read(what, defaults, presets, given, overrides)
  local merged = {}
  local function take(t)
    err.require_arg(type(t) == 'table', '%s: options are %s, wants a preset name or a table', what, opts.show(t))
    opts.check_keys(t, defaults, what)
    for k, v in pairs(t) do merged[k] = v end
  end
  if type(given) == 'string' then
    local preset = presets[given]
    if not preset then
      err.throw('ARG', ('%s: no preset "%s"%s'):format(what, given, nearest.hint(given, nearest.keys(presets))))
    end
    take(preset)
  elseif given ~= nil then
    take(given)
  end
  if overrides ~= nil then take(overrides) end
  local o = opts.read(merged, defaults, what)
  for _, key in ipairs { 'vocab_size', 'n_ctx', 'n_layer', 'n_head', 'n_embd', 'n_inner', 'n_kv_head', 'head_dim' } do
    local n = o[key]
    if n ~= nil and (n < 1 or n % 1 ~= 0) then
      err.throw('ARG', ('%s: %s is %s, wants a whole number >= 1'):format(what, key, tostring(n)))
    end
  end
  return o
end

return M
