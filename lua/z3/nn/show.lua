-- show.lua -- tostring of a module: a tree with shapes and counts; equal neighbours of a list share a line.
local walk = require 'z3.nn.walk'

local M = {}

--- 1234567 -> '1,234,567'.
function M.count(n)
  local digits = ('%d'):format(n)
  return (digits:reverse():gsub('(%d%d%d)', '%1,'):reverse():gsub('^,', ''))
end

local function title(m)
  local about = m:describe()
  return about == '' and m.class_name or m.class_name .. ' ' .. about
end

-- What is worth saying about a parameter beside its count: a tie, and a state other than "here and trained".
local function suffix(p, path, first)
  local parts = {}
  if first[p] and first[p] ~= path then parts[1] = 'tied to ' .. first[p] end
  if p._hooks and p.status ~= 'available' then parts[#parts + 1] = p:status_text()
  elseif not p.requires_grad then parts[#parts + 1] = 'frozen' end
  return #parts == 0 and '' or '  ' .. table.concat(parts, ', ')
end

-- Children of m in order: { name=, module= | parameter= }, entries of lists by 'field.0'.
local function children(m)
  local out = {}
  local function add(name, v, depth)
    if walk.is_module(v) then out[#out + 1] = { name = name, module = v }
    elseif walk.is_parameter(v) then out[#out + 1] = { name = name, parameter = v }
    elseif type(v) == 'table' and getmetatable(v) == nil and type(v[1]) == 'table' and depth < 4 then
      for i = 1, #v do add(('%s.%d'):format(name, i - 1), v[i], depth + 1) end
    end
  end
  for _, key in ipairs(rawget(m, '_keys')) do
    add(type(key) == 'number' and ('%d'):format(key - 1) or key, rawget(m, key), 0)
  end
  return out
end

local function join(path, name) return path == '' and name or path .. '.' .. name end

local render

local function child_lines(c, path, state)
  if c.parameter then
    local p = c.parameter
    return { ('Parameter (%s)%s'):format(table.concat(p.shape, ','), suffix(p, path, state.first)) }
  end
  return render(c.module, path, state)
end

-- Position of the last of the entries of a list that follow entry i and look as it does.
local function last_equal(list, i, body, path, state)
  local first = list[i]
  local stem = first.module and first.name:match '^(.-)%.?%d+$'
  if not stem then return i end
  local text = table.concat(body, '\n')
  while list[i + 1] and list[i + 1].module and list[i + 1].name:match '^(.-)%.?%d+$' == stem
    and text == table.concat(child_lines(list[i + 1], join(path, list[i + 1].name), state), '\n') do
    i = i + 1
  end
  return i
end

-- The lines of one module: its title, then its children, indented.
function render(m, path, state)
  if state.open[m] then return { title(m) .. ' (again)' } end
  state.open[m] = true
  local lines, list, width = { title(m) }, children(m), 0
  local own, only_parameters = 0, #list > 0
  for _, c in ipairs(list) do
    width = math.max(width, #c.name)
    if c.parameter then own = own + c.parameter:numel() else only_parameters = false end
  end
  if only_parameters then
    lines[1] = ('%s  %s'):format(lines[1], M.count(own))
    for _, c in ipairs(list) do
      local extra = suffix(c.parameter, join(path, c.name), state.first)
      if extra ~= '' then lines[1] = ('%s  %s%s'):format(lines[1], c.name, extra:gsub('^%s+', ' ')) end
    end
    state.open[m] = nil
    return lines
  end
  local i = 1
  while i <= #list do
    local c = list[i]
    local full = join(path, c.name)
    local body = child_lines(c, full, state)
    local last = last_equal(list, i, body, path, state)
    local name = c.name
    if last > i then
      name = ('%s-%s'):format(name, list[last].name:match '%d+$')
      body[1] = ('%d × %s'):format(last - i + 1, body[1])
    end
    lines[#lines + 1] = ('  %s  %s'):format(name .. (' '):rep(width - #name), body[1])
    for j = 2, #body do lines[#lines + 1] = '  ' .. body[j] end
    i = last + 1
  end
  state.open[m] = nil
  return lines
end

--- The tree of a module, with how many parameters are trained and frozen in its first line.
function M.module(m)
  local state = { open = {}, first = {} }
  local trained, frozen = 0, 0
  for _, e in ipairs(walk.collect(m).parameters) do
    state.first[e.parameter] = e.path
    if e.parameter.requires_grad then trained = trained + e.parameter:numel()
    else frozen = frozen + e.parameter:numel() end
  end
  local lines = render(m, '', state)
  local head = ('%s parameters'):format(M.count(trained + frozen))
  if frozen > 0 then head = ('%s: %s trained, %s frozen'):format(head, M.count(trained), M.count(frozen)) end
  lines[1] = ('%s  %s'):format(title(m), head)
  return table.concat(lines, '\n')
end

return M
