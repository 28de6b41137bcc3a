-- call.lua -- what happens when a module is called: its boundary is recorded, its scope frees what it made and did not
-- return, and its activations are recomputed where that was asked for.
-- A class says with `frees` how its forward treats tensors: true, it keeps none beyond its results (a scope frees the
-- rest at once, what backward needs lives on in the core); false, it makes none but its results; nil, a user's class:
-- it may keep what it likes, so neither its own call nor a built-in one around it frees what it made.
local check      = require 'z3.check'
local handle     = require 'z3.handle'
local walk       = require 'z3.nn.walk'
local checkpoint = require 'z3.nn.checkpoint'
local C          = require('z3.ffi').C

local M = {}

local ARG = 2                                           -- Z3E_ARG
local running, depth = {}, 0                            -- modules whose forward is running, outermost first
local base = 0                                          -- depth in the core around the outermost

--- The root of the model whose forward is running, or nil.
function M.running_root() return depth > 0 and walk.root_of(running[1]) or nil end

-- The core's number of a module, by its path. A part that was put in after the last walk has no path yet.
local function module_id(m)
  if rawget(m, '_path') == nil then walk.name(walk.root_of(m)) end
  if depth > 0 and walk.root_of(m) == m then walk.name(M.running_root()) end
  local path = rawget(m, '_path')
  if path == '' then path = m.class_name end
  local id = C.z3_module_id(path)
  if id < 0 then check(ARG, 'module ' .. path) end
  rawset(m, '_mid', id)
  return id
end

-- After a forward that did not throw. Depths are set rather than counted down: a script may have caught an error of a
-- module inside.
local function close(d, opened, left, ...)
  depth = d
  running[d + 1] = nil
  C.z3_module_unwind(base + d)
  if opened then handle.leave(opened, ...) elseif left then handle.switch(left) end
  return ...
end

local function enter(self, ...)
  local id = rawget(self, '_mid') or module_id(self)
  local d = depth
  depth = d + 1
  running[depth] = self
  C.z3_module_enter(id)
  local frees, opened, left = rawget(getmetatable(self).__index, 'frees'), nil, nil
  if frees then
    opened = handle.enter()
    local outer = opened.parent
    opened.of_module = true
    if outer and outer.of_module then opened.users = outer.users else opened.users = outer end
  elseif frees == nil then
    local current = handle.current()
    if current and current.of_module then
      handle.switch(current.users)
      left = current
    end
  end
  if rawget(self, '_checkpoint') then return close(d, opened, left, checkpoint.run(self.forward, self, ...)) end
  return close(d, opened, left, self:forward(...))
end

-- The outermost call: after an error nothing of it may stay behind.
local function settle(outer, ok, ...)
  if ok then return ... end
  for i = 1, depth do running[i] = nil end
  depth = 0
  C.z3_module_unwind(base)
  local s = handle.current()
  while s and s ~= outer do
    handle.leave(s)
    s = handle.current()
  end
  error(..., 0)
end

--- The __call of instances.
function M.forward(self, ...)
  if depth > 0 then return enter(self, ...) end
  base = C.z3_module_depth()
  return settle(handle.current(), pcall(enter, self, ...))
end

return M
