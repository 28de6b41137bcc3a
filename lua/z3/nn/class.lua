-- class.lua -- nn.class: a class is called to build, an instance is called to run forward.
-- An instance remembers in which order its fields were first assigned; walk.lua names parameters in that order.
local err  = require 'z3.error'
local walk = require 'z3.nn.walk'

local M = {}

-- When a module or parameter (or the first of a list of them) was made: 1, 2, ...; 0 for anything else.
local function serial_of(v)
  if type(v) ~= 'table' then return 0 end
  if getmetatable(v) == nil and type(v[1]) == 'table' then v = v[1] end
  return rawget(v, '_serial') or 0
end

-- Lua carries out `self.up, self.down = A(), B()` from right to left. What is assigned on one line therefore goes in
-- the order in which it was made.
local function place(self, keys, key, value)
  local line, serial, at = debug.getinfo(3, 'l').currentline, serial_of(value), #keys + 1
  local lines = rawget(self, '_lines')
  while serial > 0 and at > 1 and lines[at - 1] == line and serial_of(rawget(self, keys[at - 1])) > serial do
    at = at - 1
  end
  table.insert(keys, at, key)
  table.insert(lines, at, line)
end

-- Fires only for keys that the instance doesn't have yet, so a field keeps its place when it is replaced later.
local function first_assignment(self, key, value)
  if value ~= nil then
    local has = rawget(self, '_has')
    if not has[key] then
      has[key] = true
      place(self, rawget(self, '_keys'), key, value)
    end
    walk.adopt(self, value)
  end
  rawset(self, key, value)
end

local function build(class, ...)
  local self = setmetatable({ _keys = {}, _has = {}, _lines = {}, _serial = walk.serial(), training = true },
    class._meta)
  local init = class.init
  if init then init(self, ...) end
  return self
end

--- A new class of modules.
-- @string name     shown in messages and in tostring
-- @param[opt] parent  a class to inherit from (nn.Module unless given)
-- @return the class: give it init(self, ...) and forward(self, ...); methods of nn.Module are inherited
-- @raise ARG when name is no string or parent no class
function M.class(name, parent)
  err.require_arg(type(name) == 'string' and name ~= '', 'nn.class: the name is %s, wants a string', tostring(name))
  parent = parent or require 'z3.nn.module'
  err.require_arg(type(parent) == 'table' and rawget(parent, '_meta') ~= nil,
    'nn.class %s: the parent is no class made by nn.class', name)
  local call = require 'z3.nn.call'
  local show = require 'z3.nn.show'
  local class = { class_name = name }
  class._meta = {
    z3_module = true, __index = class, __newindex = first_assignment,
    __call = call.forward, __tostring = show.module,
  }
  return setmetatable(class, {
    __index = parent, __call = build, __tostring = function() return 'nn.class ' .. name end,
  })
end

return M
