--- repl/init.lua -- reads, runs and prints, at a terminal or from a pipe.
-- An expression's values are printed, one a line; a statement that isn't finished goes on in the next line. At the
-- prompt and in `z3lua -e` the global `z3` is there without a require; it is loaded when it is first used.
local ffi = require 'ffi'

local M = {}

local function is_terminal()
  pcall(ffi.cdef, 'int isatty(int fd);')
  return ffi.C.isatty(0) == 1
end

--- Versions and features, one line.
function M.banner()
  local C = require('z3.ffi').C
  return ('z3lua %s · LuaJIT %s · cpu (%s) · %s'):format(ffi.string(C.z3_version()), jit.version:match '[%d.]+%S*',
    ffi.string(C.z3_cpu_isa()), ffi.string(C.z3_build_features()))
end

--- Makes `z3` a global that loads itself. Only for typed code: scripts write local z3 = require 'z3'.
function M.predefine()
  setmetatable(_G, { __index = function(t, key)
    if key ~= 'z3' then return nil end
    local z3 = require 'z3'
    rawset(t, 'z3', z3)
    return z3
  end })
end

--- Compiles what was typed: as an expression, as statements that end in one ("x = 1; x"), or as statements.
-- -> function, or nil, message, unfinished
function M.compile(code)
  local fn = loadstring('return ' .. code, '=stdin')
  if fn then return fn end
  local cut = #code
  while cut do
    cut = code:sub(1, cut):find ';[^;]*$'
    local tail = cut and code:sub(cut + 1)
    if tail and tail:find '%S' then
      fn = loadstring(code:sub(1, cut) .. ' return ' .. tail, '=stdin')
      if fn then return fn end
    end
    cut = cut and cut > 1 and cut - 1 or nil
  end
  local message
  fn, message = loadstring(code, '=stdin')
  return fn, message, message and message:sub(-7) == "'<eof>'"
end

local function print_results(ok, ...)
  if not ok then
    io.stderr:write('error: ', tostring((...)), '\n')
    return
  end
  for i = 1, select('#', ...) do print((select(i, ...))) end
end

--- Reads standard input to its end. Errors are printed and the loop goes on.
function M.run()
  M.predefine()
  local terminal = is_terminal()
  if terminal then print(M.banner() .. ' · Ctrl-D leaves') end
  local pending
  while true do
    if terminal then
      io.write(pending and '..> ' or 'z3> ')
      io.flush()
    end
    local line = io.read '*l'
    if not line then break end
    local code = pending and pending .. '\n' .. line or line
    local fn, message, unfinished = M.compile(code)
    if fn then
      pending = nil
      print_results(pcall(fn))
    elseif unfinished then
      pending = code
    else
      pending = nil
      io.stderr:write('error: ', message, '\n')
    end
    io.flush()
  end
  if pending then io.stderr:write('error: ', (select(2, M.compile(pending))), '\n') end
  if terminal then io.write '\n' end
end

return M
