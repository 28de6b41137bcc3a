--- files.lua -- what the lint programs share: listing the project's files and reporting.
local M = { failures = 0 }

--- Lines of a shell command's output.
function M.lines_of(command)
  local out, pipe = {}, assert(io.popen(command))
  for line in pipe:lines() do out[#out + 1] = line end
  pipe:close()
  return out
end

--- Files below the folders whose names end in one of the extensions, sorted.
-- @string folders     'core lua'; one that doesn't exist (yet) is skipped
-- @string extensions  'c h lua'
function M.list(folders, extensions)
  local names = {}
  for e in extensions:gmatch '%S+' do names[#names + 1] = ("-name '*.%s'"):format(e) end
  return M.lines_of(('find %s -type f \\( %s \\) 2>/dev/null | LC_ALL=C sort'):format(
    folders, table.concat(names, ' -o ')))
end

function M.read(path)
  local f = assert(io.open(path, 'rb'))
  local text = f:read '*a'
  f:close()
  return text
end

--- Iterator over number, line.
function M.numbered(path)
  local n, next_line = 0, M.read(path):gmatch '([^\n]*)\n?'
  return function()
    n = n + 1
    local line = next_line()
    if line then return n, line end
  end
end

function M.fail(place, fmt, ...)
  M.failures = M.failures + 1
  print(place .. ': ' .. fmt:format(...))
end

--- Ends the program: non-zero when anything failed.
function M.finish(name)
  if M.failures > 0 then
    print(('lint %s: %d found'):format(name, M.failures))
    os.exit(1)
  end
end

return M
