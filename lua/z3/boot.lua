--- boot.lua -- the first Lua code of an interpreter that lua/embed opens: paths, arg, os.exit, and the error handler.
-- It gets what the program knows (root, lib, generated, device, threads, memory_limit, profile, trace, arg,
-- owns_process) and leaves it in package.loaded['z3.host'], where z3.ffi and z3 look; under a plain luajit that is
-- absent and they use defaults. It returns the error handler, and what runs before the interpreter closes.
local host = ...

local abi = require('ffi').abi
if not jit or jit.version_num < 20100 or not abi 'gc64' then
  error(('z3lua: this is %s with %s pointers; it needs LuaJIT 2.1 built with GC64'):format(
    jit and jit.version or _VERSION, abi 'gc64' and '64-bit' or '32-bit'), 0)
end

package.loaded['z3.host'] = host
local root = host.root
package.path = table.concat({ root .. '/lua/?.lua', root .. '/lua/?/init.lua', root .. '/?.lua', root .. '/?/init.lua',
                              host.generated .. '/?.lua', package.path }, ';')
rawset(_G, 'arg', host.arg)

-- A wrong size is said now, not when z3 is first used (or never).
if host.memory_limit then
  local ok, bytes = pcall(require('z3.opts').bytes, host.memory_limit, '--memory-limit')
  if ok and bytes < 1 then ok, bytes = false, '--memory-limit: 0 bytes is no limit' end
  if not ok then error('z3lua: ' .. tostring(bytes), 0) end
end

host.at_close = {}

--- Runs what was asked to run while everything still works: reports, traces. Once.
local function close()
  if (host.profile or host.trace) and not host.applied then
    io.stderr:write 'z3lua: nothing to profile: the script never loaded z3\n'
  end
  local list = host.at_close
  host.at_close, host.profile, host.trace = {}, nil, nil
  for _, fn in ipairs(list) do
    local ok, e = pcall(fn)
    if not ok then io.stderr:write('z3lua: ', tostring(e), '\n') end
  end
end

-- os.exit runs finalizers first: log files are complete and swap files removed. Inside another program it must not end
-- that program, so there it is an error, which the host sees.
local exit = os.exit
if host.owns_process then
  rawset(os, 'exit', function(code)
    close()
    io.stdout:flush()
    exit(code, true)
  end)
else
  rawset(os, 'exit', function(code)
    error(('os.exit(%s): the script wants to end the program that it runs in'):format(tostring(code)), 2)
  end)
end

local own = '@' .. root .. '/lua/z3/'

--- One line a script frame, innermost first; the library's own and C's frames are left out.
local function script_frames(level)
  local lines = {}
  for l = level, level + 200 do
    local info = debug.getinfo(l, 'Snl')
    if not info then break end
    if info.currentline > 0 and info.source:sub(1, #own) ~= own then
      local what = info.what == 'main' and 'main chunk' or info.name and ("function '%s'"):format(info.name)
        or ('function at line %d'):format(info.linedefined)
      lines[#lines + 1] = ('  %s:%d: in %s'):format(info.short_src, info.currentline, what)
    end
  end
  return table.concat(lines, '\n')
end

--- Error handler of every protected call: { one line, the script's frames }. Must not throw.
local function handler(e)
  local ok, line = pcall(tostring, e)
  if not ok then line = 'an error whose text failed: ' .. tostring(line) end
  if type(e) ~= 'string' and type(e) ~= 'number' and not (getmetatable(e) or {}).__tostring then
    line = ('a script threw %s that has no text'):format(type(e) == 'nil' and 'nil' or 'a ' .. type(e))
  end
  local traced, trace = pcall(script_frames, 3)
  return { line, traced and trace or '' }
end

return handler, close
