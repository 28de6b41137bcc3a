-- module.lua -- nn.Module: what every class inherits.
local err  = require 'z3.error'
local opts = require 'z3.opts'
local walk = require 'z3.nn.walk'

local Module = { class_name = 'Module', _meta = { z3_module = true } }

--- Iterates name, parameter in order: tied ones once, frozen ones too. Names start at this module.
function Module:parameters()
  local list, i = walk.collect(self).parameters, 0
  return function()
    i = i + 1
    local e = list[i]
    if e then return e.path, e.parameter end
  end
end

--- Iterates path, module: itself first (path ''), then everything below in order, each once.
function Module:modules()
  local list, i = walk.collect(self).modules, 0
  return function()
    i = i + 1
    local e = list[i]
    if e then return e.path, e.module end
  end
end

--- Number of elements of all parameters, tied ones once.
function Module:numel()
  local n = 0
  for _, p in self:parameters() do n = n + p:numel() end
  return n
end

--- Training mode for this module and everything below; returns itself.
function Module:train(on)
  if on == nil then on = true end
  for _, m in self:modules() do rawset(m, 'training', on and true or false) end
  return self
end

--- Evaluation mode (dropout does nothing); returns itself.
function Module:eval() return self:train(false) end

--- Trains (true, the default) or freezes (false) all parameters below; returns itself.
function Module:requires_grad_(on)
  if on == nil then on = true end
  for _, p in self:parameters() do p:requires_grad_(on) end
  return self
end

--- Drops all gradients. Under an engine there is nothing to drop: the engine owns them.
function Module:zero_grad()
  for _, p in self:parameters() do p:zero_grad() end
  return self
end

--- Calls fn(module) for everything below, then for itself; returns itself.
function Module:apply(fn)
  opts.want_callable(fn, self.class_name .. ':apply')
  local list = {}
  for _, m in self:modules() do list[#list + 1] = m end
  for i = #list, 1, -1 do fn(list[i]) end
  return self
end

--- Recomputes this module's activations in backward instead of keeping them.
-- @bool[opt=true] on  false keeps them again
function Module:checkpoint(on)
  rawset(self, '_checkpoint', on ~= false)
  return self
end

--- Declares the dtype of all parameters below, before they have values ('bf16' halves a model that only generates).
function Module:set_dtype(dtype)
  for _, p in self:parameters() do p:set_dtype(dtype) end
  return self
end

--- Gives all parameters below their initial values now instead of at first use; returns itself.
function Module:materialise()
  for _, p in self:parameters() do p:materialise() end
  return self
end

--- name -> independent tensor (f32 from the master where there is one); tied parameters once. [all ranks]
function Module:state_dict() return require('z3.nn.state').save(self) end

--- Takes values from a table name -> tensor. [all ranks]
-- @tab t     a tied parameter may come under any of its names
-- @tab[opt] o  strict=false: unknown and missing names are returned, not errors
-- @return { missing = {names}, unexpected = {names} }
-- @raise ARG: unknown (with the nearest) or missing names; SHAPE. Nothing is changed then.
function Module:load_state_dict(t, o) return require('z3.nn.state').load(self, t, o) end

--- What a class's own line in tostring says after its name, as '(8,32)'. Classes replace it.
function Module:describe() return '' end

function Module:forward()
  err.throw('ARG', ('%s has no forward'):format(self.class_name))
end

return setmetatable(Module, { __tostring = function() return 'nn.Module' end })
