--- cdef.lua -- the public headers are what they claim: LuaJIT reads them, each compiles alone and strictly, every
-- declared function is in the built library, and the library carries the same hash. Argument: the build folder.
package.path = 'tests/lint/?.lua;' .. package.path
local files = require 'files'
local ffi = require 'ffi'

local build = arg[1] or 'build'
local cdef = dofile(build .. '/lua/z3/cdef.lua')

local ok, message = pcall(ffi.cdef, cdef.text)
if not ok then files.fail('core/include/zero3', 'ffi.cdef refuses the public headers: %s', message) end

for _, path in ipairs(files.list('core/include/zero3', 'h')) do
  local include = path:match 'core/include/(.*)'
  local log = os.tmpname()
  local rc = os.execute(("printf '#include \"%s\"\\n' | cc -std=c11 -Wall -Wextra -Wpedantic -Werror -Icore/include " ..
    '-fsyntax-only -x c - 2>%s'):format(include, log))
  if rc ~= 0 and rc ~= true then files.fail(path, 'does not compile alone as strict C11:\n%s', files.read(log)) end
  os.remove(log)
  if select(2, files.read(path):gsub('\n', '')) > 150 then files.fail(path, 'a public header has at most 150 lines') end
end

local f = io.open(build .. '/libzero3.so', 'rb')
if f and ok then
  f:close()
  local lib = ffi.load('./' .. build .. '/libzero3.so')
  for name in cdef.text:gmatch '[%s%*](z3_[%w_]+)%s*%(' do
    if not pcall(function() return lib[name] end) then
      files.fail('core/include/zero3', '%s is declared and not in %s/libzero3.so', name, build)
    end
  end
  local hash = bit.tohex(lib.z3_abi_hash(), 16)
  if hash ~= cdef.hash then files.fail(build .. '/libzero3.so', 'hash %s, headers have %s', hash, cdef.hash) end
  for _, line in ipairs(files.lines_of('nm -D --defined-only ' .. build .. '/libzero3.so')) do
    local name = line:match '^%x+ [TDBRVW] ([%w_]+)$'
    if name and not name:find '^z3_' then files.fail(build .. '/libzero3.so', 'exports %s', name) end
  end
end
files.finish 'cdef'
