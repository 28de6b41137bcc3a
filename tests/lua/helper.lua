--- helper.lua -- loaded by busted before the first spec: finds the build under test and fails tests that leak tensors.
-- After each test it collects twice; the number of live tensors must be what it was before the test.
-- What a test creates for the rest of its file is declared with require('tests.lua.helper').keep().
local M = {}
package.loaded['tests.lua.helper'] = M

local build = os.getenv 'Z3_BUILD' or 'build'
local root  = assert(io.popen 'pwd'):read '*l'
M.build, M.root = build, root
if build ~= 'build' and not package.loaded['z3.host'] then
  package.loaded['z3.host'] = { root = root, lib = root .. '/' .. build .. '/libzero3.so' }
end

local function live()
  local ffi = package.loaded['z3.ffi']
  if not ffi then return 0 end
  jit.flush()                                           -- compiled traces hold objects that were constants to them
  collectgarbage()
  collectgarbage()
  return tonumber(ffi.C.z3_tensor_live())
end

local before = 0

--- Tensors that live now may go on living after this test.
function M.keep() before = live() end

--- Runs bin/z3lua of the build under test. -> standard output, standard error, exit code
-- @string arguments  shell words, as typed
-- @string[opt] input what it reads from standard input
-- @string[opt] env   "NAME=value ..." in front of it
function M.z3lua(arguments, input, env)
  local out, err, stdin = os.tmpname(), os.tmpname(), os.tmpname()
  local f = assert(io.open(stdin, 'wb'))
  f:write(input or '')
  f:close()
  local pipe = assert(io.popen(('env -u LUA_PATH %s %s/%s/bin/z3lua %s <%s >%s 2>%s; echo $?'):format(
    env or '', root, build, arguments, stdin, out, err)))
  local code = tonumber(pipe:read '*a')
  pipe:close()
  local texts = {}
  for i, path in ipairs { out, err } do
    local g = assert(io.open(path, 'rb'))
    texts[i] = g:read '*a'
    g:close()
  end
  os.remove(out)
  os.remove(err)
  os.remove(stdin)
  return texts[1], texts[2], code
end

local busted = require 'busted'
local status_of_test, name_of_test = 'success', '?'
busted.subscribe({ 'test', 'end' }, function(element, _, status)
  status_of_test, name_of_test = status, element.name
end)
busted.before_each(function() before = live() end)
busted.after_each(function()
  if status_of_test ~= 'success' then return end       -- a failed test's error message may hold its tensors
  local now = live()
  if now ~= before then
    error(('leak in "%s": %d tensors were live before it, %d are after it'):format(name_of_test, before, now), 0)
  end
end)

return M
