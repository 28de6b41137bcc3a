--- smoke.lua -- the library under a plain luajit, without test framework: busted remembers ffi.cdef calls and so hides
-- declarations made twice. Prints TAP.
local count = 0
local function check(name, fn)
  count = count + 1
  local ok, e = pcall(fn)
  if ok then
    print(('ok %d - %s'):format(count, name))
  else
    print(('not ok %d - %s\n# %s'):format(count, name, tostring(e):gsub('\n', '\n# ')))
  end
  collectgarbage()
  return ok
end

local build = os.getenv 'Z3_BUILD' or 'build'
if build ~= 'build' then
  package.loaded['z3.host'] = { root = '.', lib = './' .. build .. '/libzero3.so' }
end

local z3
local failed = not check('loads', function() z3 = require 'z3' end)

if not failed then
  check('leaves no global behind', function()
    local names = {}
    for name in pairs(_G) do names[name] = true end
    local standard = '_G _VERSION arg assert bit collectgarbage coroutine debug dofile error gcinfo getfenv ' ..
      'getmetatable io ipairs jit load loadfile loadstring math module newproxy next os package pairs pcall print ' ..
      'rawequal rawget rawlen rawset require select setfenv setmetatable string table tonumber tostring type unpack ' ..
      'xpcall'
    for name in standard:gmatch '%S+' do names[name] = nil end
    assert(next(names) == nil, 'global ' .. tostring(next(names)))
  end)
  check('computes', function()
    local x = z3.arange(6):view(2, 3)
    assert(x:matmul(x:transpose(0, 1)):sum():item() == 83)
  end)
  check('differentiates', function()
    local x = z3.full({ 3 }, 2):requires_grad_()
    local y = (x * x):sum()
    y:backward()
    assert(x.grad:sum():item() == 12)
  end)
  check('throws error objects', function()
    local ok, e = pcall(function() return z3.zeros { 2, 3 }:matmul(z3.zeros { 2, 3 }) end)
    assert(not ok and z3.is_error(e, 'SHAPE'), tostring(e))
  end)
  check('reads its own declarations once', function()
    package.loaded['z3.ffi'] = nil
    assert(require('z3.ffi').C)
  end)
end
print('1..' .. count)
