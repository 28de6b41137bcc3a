-- container.lua -- ModuleList and Sequential: modules by position, named 0, 1, ...
local err   = require 'z3.error'
local class = require('z3.nn.class').class
local walk  = require 'z3.nn.walk'

local M = {}

-- Entries given one by one or as one list.
local function entries(...)
  local first = ...
  if select('#', ...) == 1 and type(first) == 'table' and getmetatable(first) == nil then return first end
  return { ... }
end

--- ModuleList{ a, b, ... }: list[1] is a; `#list` and ipairs work. It has no forward.
local ModuleList = class 'ModuleList'

function ModuleList:init(...)
  for i, m in ipairs(entries(...)) do
    err.require_arg(walk.is_module(m), 'nn.ModuleList: entry %d is no module', i)
    self[i] = m
  end
end

--- Adds a module at the end; returns the list.
function ModuleList:append(m)
  err.require_arg(walk.is_module(m), 'nn.ModuleList: append wants a module, got %s', type(m))
  self[#self + 1] = m
  return self
end

function ModuleList:describe() return ('(%d)'):format(#self) end

--- Sequential(a, b, ...) or Sequential{ a, b, ... }: each takes the results of the one before. Functions may stand
-- among the modules.
local Sequential = class 'Sequential'

function Sequential:init(...)
  for i, m in ipairs(entries(...)) do
    local ok = walk.is_module(m) or type(m) == 'function'
    err.require_arg(ok, 'nn.Sequential: entry %d is neither module nor function', i)
    self[i] = m
  end
end

local function run(self, i, ...)
  if self[i] == nil then return ... end
  return run(self, i + 1, self[i](...))
end

function Sequential:forward(...) return run(self, 1, ...) end

function Sequential:describe() return ('(%d)'):format(#self) end

M.ModuleList, M.Sequential = ModuleList, Sequential

return M
