--- custom.lua -- an optimizer written in Lua: update(p, g, s, o) over flat f32 tensors.
-- Legend: S = elements of the span updated. It works on copies of the parameter and its state, which are committed when
-- it returns: an update that throws leaves that parameter as it was.
local err     = require 'z3.error'
local nearest = require 'z3.nearest'
local opts    = require 'z3.opts'
local handle  = require 'z3.handle'
local T       = require 'z3.tensor'
local rules   = require 'z3.optim.rules'

local M = {}

local Custom = {}
Custom.__index = Custom

local function merge(who, base, given)
  local o = {}
  for k, v in pairs(base) do o[k] = v end
  if given ~= nil and type(given) ~= 'table' then
    err.throw('ARG', ('%s: options are %s, wants a table'):format(who, opts.show(given)))
  end
  for _, k in ipairs(nearest.keys(given or {})) do
    if base[k] == nil and not rules.checks[k] then
      err.throw('ARG', ('%s: unknown option "%s"%s'):format(who, k, nearest.hint(k, nearest.keys(base))))
    end
    o[k] = given[k]
  end
  return o
end

--- An optimizer of one's own.
-- @tab d  name; update = function(p, g, s, o): changes p and the tensors of s in place (p:copy_(...)); g is the final
--         gradient (averaged, clipped); o has the defaults, the group's options, step (from 1) and lr (this step's).
--         state = names of f32 tensors like p, zero at first; defaults = options, lr among them; whole = true hands
--         over the parameter in its own shape instead of flat
-- @treturn table  for z3.initialize; called with options it gives a copy with those: signum{ lr = 1e-3 }
-- @raise ARG
function M.new(d)
  local v = opts.read(d, { name = 'custom', state = {}, defaults = {}, update = opts.func, whole = false },
    'optim.custom')
  if not v.update then err.throw('ARG', 'optim.custom: update is missing: a function(p, g, s, o)') end
  for i, name in ipairs(v.state) do
    if type(name) ~= 'string' then
      err.throw('ARG', ('optim.custom: state[%d] is %s, wants a name'):format(i, opts.show(name)))
    end
  end
  local options = { lr = 1e-3 }
  for k, x in pairs(v.defaults) do options[k] = x end
  local ok, wants = rules.checks.lr(options.lr)
  if not ok then err.throw('ARG', ('optim.custom: lr is %s, wants %s'):format(opts.show(options.lr), wants)) end
  return setmetatable({ name = v.name, names = v.state, options = options, fn = v.update, whole = v.whole,
                        custom = true }, Custom)
end

function Custom:__call(given)
  local copy = {}
  for k, x in pairs(self) do copy[k] = x end
  copy.options = merge('optim.' .. self.name, self.options, given)
  return setmetatable(copy, Custom)
end

function Custom:group(given, who)
  if given == nil then return self.options end
  return merge(who, self.options, given)
end

function Custom:state_names() return self.names end

local function span(t, whole) return whole and t or t:view(-1) end

-- The copy that update works on: flat unless whole.
local function working(t, whole) return span(T.copy_of(t), whole) end

--- Updates one parameter: runs fn on copies inside a scope, then commits.
-- @param s  { tensors = { master=, grad=, weight16= or nil, state = { name = tensor } } }
-- @raise what fn threw, as it was; nothing of this parameter is changed then
function Custom:update(s, o, at)
  local x = s.tensors
  handle.scope(function()
    local p, state = working(x.master, self.whole), {}
    local g = span(x.grad * at.scale, self.whole)
    for _, name in ipairs(self.names) do state[name] = working(x.state[name], self.whole) end
    local given = setmetatable({ step = at.step, lr = at.lr, name = at.name }, { __index = o })
    local result = self.fn(p, g, state, given)
    if result ~= nil and result ~= p then
      err.throw('ARG', ('optim.%s: update returned a value; it changes p in place: p:copy_(new)'):format(self.name))
    end
    span(x.master, self.whole):copy_(p)
    for _, name in ipairs(self.names) do span(x.state[name], self.whole):copy_(state[name]) end
    if x.weight16 then x.weight16:copy_(x.master) end
  end)
end

function Custom:__tostring() return ('optimizer %s (custom)'):format(self.name) end

return M
