--- builtin.lua -- an optimizer as the engine uses it: options, state tensors, and one fused update per parameter.
-- Legend: S = elements of the span updated (the whole parameter with one process, later this rank's shard).
local ffi     = require 'ffi'
local err     = require 'z3.error'
local check   = require 'z3.check'
local nearest = require 'z3.nearest'
local opts    = require 'z3.opts'
local rules   = require 'z3.optim.rules'
local C       = require('z3.ffi').C

local M = {}

local Builtin = {}
Builtin.__index = Builtin

--- Checks options against a rule and lays them over `base`.
-- @string who  for messages: 'optim.adamw', or 'groups("h.0.ln.weight")'
-- @raise ARG: unknown key (nearest shown), value out of range
local function options(who, defaults, base, given)
  local o = {}
  for k, v in pairs(base) do o[k] = v end
  if given ~= nil and type(given) ~= 'table' then
    err.throw('ARG', ('%s: options are %s, wants a table'):format(who, opts.show(given)))
  end
  for _, k in ipairs(nearest.keys(given or {})) do
    if defaults[k] == nil then
      err.throw('ARG', ('%s: unknown option "%s"%s'):format(who, k, nearest.hint(k, nearest.keys(defaults))))
    end
    local ok, wants = rules.checks[k](given[k])
    if not ok then err.throw('ARG', ('%s: %s is %s, wants %s'):format(who, k, opts.show(given[k]), wants)) end
    o[k] = given[k]
  end
  if o.nesterov and o.momentum == 0 then
    err.throw('ARG', who .. ': nesterov needs a momentum above 0')
  end
  return o
end

--- A built-in optimizer.
-- @string name     'adamw', 'adam', 'sgd', 'lion'
-- @tab[opt] given  its options
function M.new(name, given)
  local rule = rules.rules[name]
  local who = 'optim.' .. name
  return setmetatable({ name = name, rule = rule, options = options(who, rule.defaults, rule.defaults, given),
                        args = ffi.new 'z3_update_args' }, Builtin)
end

--- Options of one parameter: the optimizer's with `given` (what `groups` returned) over them.
function Builtin:group(given, who)
  if given == nil then return self.options end
  return options(who, self.rule.defaults, self.options, given)
end

--- Names of the state tensors (f32, the parameter's shape) under these options.
function Builtin:state_names(o) return self.rule.state(o) end

--- What the state of a parameter is called in files and messages, and that both may be wanted at once.
Builtin.custom = false

--- Updates one parameter in place; nothing is allocated.
-- @param s      { master=, grad=, weight16= or nil, state = { m=, v= } }: native handles
-- @tab o        options of this parameter (from group)
-- @tab at       { step=, lr= (this step's rate), scale= (multiplies the gradient), beta1= or nil }
function Builtin:update(s, o, at)
  local a, betas = self.args, o.betas
  a.kind = self.rule.kind
  a.lr, a.weight_decay, a.grad_scale, a.step = at.lr, o.weight_decay, at.scale, at.step
  a.eps, a.momentum, a.nesterov = o.eps or 0, o.momentum or 0, o.nesterov and 1 or 0
  if betas then a.beta1, a.beta2 = at.beta1 or betas[1], betas[2] end
  check(C.z3_update(s.master, s.state.m, s.state.v, s.grad, s.weight16, a), self.name)
end

function Builtin:__tostring()
  local parts = {}
  for _, k in ipairs(nearest.keys(self.options)) do
    local v = self.options[k]
    parts[#parts + 1] = k .. '=' .. (type(v) == 'table' and ('{%g, %g}'):format(v[1], v[2]) or tostring(v))
  end
  return ('optimizer %s{%s}'):format(self.name, table.concat(parts, ', '))
end

return M
