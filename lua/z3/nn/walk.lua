-- walk.lua -- finds the parameters and modules below a module, in a fixed order, and gives them their names.
-- The order is that of the first assignment of each field, depth first; entries of lists count from 0 in names, as in
-- Hugging Face files. `pairs` is never asked for an order: processes would disagree.
local err = require 'z3.error'

local M = {}

-- Who holds whom, for names asked from below (`model.h[1].attn.c_attn.weight.name`). Weak: a part that outlives its
-- model becomes a root of its own.
local parent_of = setmetatable({}, { __mode = 'kv' })
local roots = setmetatable({}, { __mode = 'k' })       -- modules declared to be roots although something holds them
local named_by = setmetatable({}, { __mode = 'kv' })   -- parameter -> the root that its name starts from

local DICT_PROBE = 64                                  -- entries of a keyed table looked at for lost modules

local serial = 0

--- The next number for a module or parameter that is being made.
function M.serial()
  serial = serial + 1
  return serial
end

function M.is_module(x)
  local mt = type(x) == 'table' and getmetatable(x)
  return type(mt) == 'table' and mt.z3_module == true
end

function M.is_parameter(x)
  local mt = type(x) == 'table' and getmetatable(x)
  return type(mt) == 'table' and mt.z3_parameter == true
end

local is_module, is_parameter = M.is_module, M.is_parameter

local function join(path, key)
  if type(key) == 'number' then key = ('%d'):format(key - 1) end
  return path == '' and key or path .. '.' .. key
end

-- A keyed table can't be walked in an order that all ranks share: modules hidden in one would silently not train.
local function refuse_keyed(module, path, t)
  local n = 0
  for k, v in pairs(t) do
    n = n + 1
    if n > DICT_PROBE then return end
    if is_module(v) or is_parameter(v) then
      err.throw('ARG', ("%s: field %s is a keyed table that holds a %s ('%s'), which can't register itself: use a"
        .. ' list or one field each (a table with a metatable is left alone)'):format(module.class_name, path,
        is_module(v) and 'module' or 'parameter', tostring(k)))
    end
  end
end

local visit

-- Lists register their entries, lists of lists too. Tables with a metatable are somebody's objects and are left alone.
local function visit_value(state, module, path, v)
  if type(v) ~= 'table' then return end
  local mt = getmetatable(v)
  if mt ~= nil then
    if is_module(v) then visit(state, v, path, module)
    elseif is_parameter(v) then state.on_parameter(path, v, module) end
  elseif v[1] ~= nil then
    if type(v[1]) ~= 'table' or state.open[v] then return end
    state.open[v] = true
    for i = 1, #v do visit_value(state, module, join(path, i), v[i]) end
    state.open[v] = nil
  elseif next(v) ~= nil then
    refuse_keyed(module, path, v)
  end
end

function visit(state, m, path, parent)
  if state.open[m] then return end                     -- a child that points back to what holds it
  state.open[m] = true
  state.on_module(path, m, parent)
  local keys = rawget(m, '_keys')
  for i = 1, #keys do
    local key = keys[i]
    visit_value(state, m, join(path, key), rawget(m, key))
  end
  state.open[m] = nil
end

--- Calls on_module(path, module, parent) and on_parameter(path, parameter, owner) for everything below root, itself
-- included, once per path: something reachable by two paths is reported twice.
function M.each(root, on_module, on_parameter)
  visit({ open = {}, on_module = on_module, on_parameter = on_parameter }, root, '', nil)
end

--- Everything below root, once each.
-- @return { modules = { {path=, module=}, ... }, parameters = { {path=, parameter=, aliases={...}}, ... } } in order;
-- aliases are the further paths of a tied parameter.
function M.collect(root)
  local out, seen = { modules = {}, parameters = {} }, {}
  M.each(root, function(path, m, parent)
    if seen[m] then return end
    seen[m] = true
    if parent then parent_of[m] = parent end
    out.modules[#out.modules + 1] = { path = path, module = m }
  end, function(path, p, owner)
    local entry = seen[p]
    if entry then entry.aliases[#entry.aliases + 1] = path; return end
    entry = { path = path, parameter = p, aliases = {} }
    seen[p] = entry
    parent_of[p] = owner
    out.parameters[#out.parameters + 1] = entry
  end)
  return out
end

--- Notes who holds x (a module, a parameter or a list of them) when a field is assigned.
function M.adopt(module, x)
  if type(x) ~= 'table' then return end
  if getmetatable(x) ~= nil then
    if (is_module(x) or is_parameter(x)) and parent_of[x] == nil then parent_of[x] = module end
  elseif type(x[1]) == 'table' then
    for i = 1, #x do M.adopt(module, x[i]) end
  end
end

--- The outermost module that holds x (x itself when nothing does).
function M.root_of(x)
  local seen = {}
  while not roots[x] do
    local up = parent_of[x]
    if up == nil or seen[up] then break end
    seen[up], x = true, up
  end
  return x
end

--- Makes m a root: names below it start here even when another module holds it. An engine declares its model.
function M.declare_root(m)
  roots[m] = true
  M.name(m)
end

--- Writes names: each parameter's first path into p._name, each module's into m._path.
function M.name(root)
  local found = M.collect(root)
  for _, e in ipairs(found.modules) do
    if rawget(e.module, '_path') ~= e.path then
      rawset(e.module, '_path', e.path)
      rawset(e.module, '_mid', nil)                    -- its number in the core belongs to the old path
    end
  end
  for _, e in ipairs(found.parameters) do
    rawset(e.parameter, '_name', e.path)
    named_by[e.parameter] = root
  end
  return found
end

--- A parameter's name below its outermost module; nil outside of any.
function M.name_of(p)
  local root = M.root_of(p)
  if is_module(root) and named_by[p] ~= root then M.name(root) end
  return rawget(p, '_name')
end

return M
