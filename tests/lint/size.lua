--- size.lua -- one idea a file, one screen a function: files <= 400 lines, functions <= 70, lines <= 120 columns, file
-- names unique in core. With --report: lines per folder, and the largest files and functions.
package.path = 'tests/lint/?.lua;' .. package.path
local files = require 'files'
local jutil = require 'jit.util'

local FILE_MAX, FUNCTION_MAX, COLUMN_MAX = 400, 70, 120
local functions = {}                            -- { path, line, lines }

--- Columns of a line: UTF-8 characters, not bytes.
local function columns(line) return select(2, line:gsub('[^\128-\191]', '')) end

local function check_lines(path)
  local count = 0
  for n, line in files.numbered(path) do
    count = n
    local width = columns(line)
    if width > COLUMN_MAX then files.fail(path .. ':' .. n, '%d columns, at most %d', width, COLUMN_MAX) end
    if line:find '\t' then files.fail(path .. ':' .. n, 'a tab') end
    if line:find '%s$' then files.fail(path .. ':' .. n, 'spaces at the end') end
  end
  count = count - 1
  if count > FILE_MAX then files.fail(path, '%d lines, at most %d', count, FILE_MAX) end
  return count
end

--- House style: a C function's braces stand alone in column 0.
local function c_functions(path)
  local start
  for n, line in files.numbered(path) do
    if line == '{' then start = n - 1
    elseif line == '}' and start then
      functions[#functions + 1] = { path = path, line = start, lines = n - start + 1 }
      start = nil
    end
  end
end

--- LuaJIT's own account of a file's functions, nested ones included.
local function lua_functions(path)
  local chunk, message = loadfile(path)
  if not chunk then return files.fail(path, '%s', message) end
  local function visit(f)
    for i = -1, -65536, -1 do
      local k = jutil.funck(f, i)
      if k == nil then break end
      if type(k) == 'proto' then
        local info = jutil.funcinfo(k)
        functions[#functions + 1] = { path = path, line = info.linedefined,
                                      lines = info.lastlinedefined - info.linedefined + 1 }
        visit(k)
      end
    end
  end
  visit(chunk)
end

local by_folder, by_file, seen = {}, {}, {}
for _, path in ipairs(files.list('core lua models recipes bin tests', 'c h def lua')) do
  local count = check_lines(path)
  by_file[#by_file + 1] = { path = path, lines = count }
  local folder = path:match '^core/[^/]+' or path:match '^lua/[^/]+' or path:match '^[^/]+'
  by_folder[folder] = (by_folder[folder] or 0) + count
  if path:find '%.c$' then c_functions(path) end
  -- A spec's describe blocks are lists, not functions.
  if path:find '%.lua$' and not path:find '_spec%.lua$' then lua_functions(path) end
  local name = path:find '^core/' and not path:find '^core/include/' and path:match '[^/]+$'
  if name then
    if seen[name] then files.fail(path, 'the same name as %s', seen[name]) end
    seen[name] = path
  end
end
for _, f in ipairs(functions) do
  if f.lines > FUNCTION_MAX then
    files.fail(f.path .. ':' .. f.line, 'a function of %d lines, at most %d', f.lines, FUNCTION_MAX)
  end
end

if arg[1] == '--report' then
  local names, total = {}, 0
  for folder, lines in pairs(by_folder) do
    names[#names + 1] = folder
    total = total + lines
  end
  table.sort(names)
  for _, folder in ipairs(names) do print(('%7d  %s'):format(by_folder[folder], folder)) end
  print(('%7d  all'):format(total))
  table.sort(by_file, function(a, b) return a.lines > b.lines end)
  table.sort(functions, function(a, b) return a.lines > b.lines end)
  print 'largest files and functions'
  for i = 1, math.min(5, #by_file) do print(('%7d  %s'):format(by_file[i].lines, by_file[i].path)) end
  for i = 1, math.min(5, #functions) do
    print(('%7d  %s:%d'):format(functions[i].lines, functions[i].path, functions[i].line))
  end
end
files.finish 'size'
