--- deps.lua -- proves that dependencies run one way: which folder may include or require which.
-- The table is the project's layer diagram (README.md, "Layers"): change it only together with the diagram.
package.path = 'tests/lint/?.lua;' .. package.path
local files = require 'files'

-- A folder of core sees itself, the public headers, and these.
local SEES = {
  base   = '',
  config = 'base',
  prof   = 'base',
  device = 'base config prof',
  tensor = 'base config prof device',
  ops    = 'base config prof device tensor',
  tape   = 'base config prof device tensor ops',
  comm   = 'base config prof device',
  io     = 'base config prof',
  zero   = 'base config prof device tensor ops tape comm io',
}
-- Interfaces with several backends: folder -> files that may name the backends' folders.
local BACKENDS = { ['device/cpu'] = true, ['device/null'] = true, ['device/cuda'] = true }
-- Libraries, and the only place that knows each.
local LIBRARIES = {
  { pattern = '^cjson/',                 only = '^core/config/' },
  { pattern = '^oneapi/dnnl/',           only = '^core/device/cpu/' },
  { pattern = '^dnnl',                   only = '^core/device/cpu/' },
  { pattern = '^omp%.h$',                only = '^core/device/cpu/' },
  { pattern = '^lua',                    only = '^lua/embed/' },
  { pattern = '^lauxlib%.h$',            only = '^lua/embed/' },
}

local function includes(path)
  local out = {}
  for n, line in files.numbered(path) do
    local quoted = line:match '^%s*#%s*include%s*"([^"]+)"'
    local angled = line:match '^%s*#%s*include%s*<([^>]+)>'
    if quoted or angled then out[#out + 1] = { n = n, quoted = quoted, angled = angled } end
  end
  return out
end

local function exists(path)
  local f = io.open(path, 'rb')
  if f then f:close() end
  return f ~= nil
end

--- Path below core of an include in quotes, found as the compiler would: beside the file, below core, public.
local function resolve(from, name)
  local here = from:match '^(.*/)' .. name
  while here:find '[^/]+/%.%./' do here = here:gsub('[^/]+/%.%./', '', 1) end
  if exists(here) then return here end
  if exists('core/' .. name) then return 'core/' .. name end
  if exists('core/include/' .. name) then return 'core/include/' .. name end
  return nil
end

local function check_core(path)
  local folder = path:match '^core/([^/]+)/'
  local backend = path:match '^core/([^/]+/[^/]+)/'
  for _, inc in ipairs(includes(path)) do
    local place = path .. ':' .. inc.n
    local target = inc.quoted and resolve(path, inc.quoted)
    local owner = target and target:match '^core/([^/]+)/'
    if inc.quoted and not target then
      files.fail(place, 'includes "%s", which is in no folder of core', inc.quoted)
    elseif folder == 'include' and owner and owner ~= 'include' and not target:find '%.def$' then
      files.fail(place, 'a public header includes the private %s', target)
    elseif owner and owner ~= 'include' and owner ~= folder and folder ~= 'include' then
      local allowed = ' ' .. (SEES[folder] or '') .. ' '
      if not allowed:find(' ' .. owner .. ' ', 1, true) then
        files.fail(place, 'core/%s may not see core/%s (tests/lint/deps.lua)', folder, owner)
      end
    end
    local other = target and target:match '^core/([^/]+/[^/]+)/'
    if other and BACKENDS[other] and other ~= backend then
      files.fail(place, '%s is a backend: nobody but itself includes its headers', other)
    end
  end
end

local function check_libraries(path)
  for _, inc in ipairs(includes(path)) do
    for _, lib in ipairs(LIBRARIES) do
      if inc.angled and inc.angled:find(lib.pattern) and not path:find(lib.only) then
        files.fail(path .. ':' .. inc.n, '<%s> is known only to %s', inc.angled, lib.only:sub(2))
      end
    end
  end
end

--- The umbrella header lists every public header: it is what LuaJIT gets to see.
local function check_umbrella()
  local umbrella = files.read 'core/include/zero3/zero3.h'
  for _, path in ipairs(files.list('core/include/zero3', 'h')) do
    local name = path:match '[^/]+$'
    if name ~= 'zero3.h' and not umbrella:find('#include "zero3/' .. name .. '"', 1, true) then
      files.fail(path, 'not included in zero3/zero3.h')
    end
  end
end

--- Programs and the embedding layer use public headers only.
local function check_outside(path)
  for _, inc in ipairs(includes(path)) do
    local name = inc.quoted
    if name and not (name == 'z3lua.h' or name == 'embed.h' and path:find '^lua/embed/' or name:find '^zero3/') then
      files.fail(path .. ':' .. inc.n, 'includes "%s": only zero3/*.h and z3lua.h are public', name)
    end
  end
end

local LUA_SEES = {
  { from = '^lua/z3/',  may = { '^z3$', '^z3%.', '^ffi$', '^bit$', '^jit$', '^jit%.', '^table%.' } },
  { from = '^models/',  may = { '^z3$', '^z3%.', '^models%.', '^ffi$', '^bit$' } },
  { from = '^recipes/', may = { '^z3$', '^models%.', '^ffi$', '^bit$', '^recipes%.' } },
}

local function check_lua(path)
  for n, line in files.numbered(path) do
    local code = line:gsub('%-%-.*$', '')
    for name in code:gmatch 'require%s*%(?%s*[\'"]([^\'"]+)[\'"]' do
      for _, rule in ipairs(LUA_SEES) do
        if path:find(rule.from) then
          local ok = false
          for _, pattern in ipairs(rule.may) do ok = ok or name:find(pattern) ~= nil end
          if not ok then files.fail(path .. ':' .. n, "may not require '%s'", name) end
        end
      end
    end
    if code:find 'ffi%.load' and path:find '^lua/z3/' and path ~= 'lua/z3/ffi.lua' then
      files.fail(path .. ':' .. n, 'ffi.load belongs in lua/z3/ffi.lua alone')
    end
  end
end

for _, path in ipairs(files.list('core', 'c h def')) do
  if not SEES[path:match '^core/([^/]+)/'] and not path:find '^core/include/' then
    files.fail(path, 'its folder is not in the table of tests/lint/deps.lua')
  end
  check_core(path)
  check_libraries(path)
end
for _, path in ipairs(files.list('lua/embed bin', 'c h')) do
  check_outside(path)
  check_libraries(path)
end
for _, path in ipairs(files.list('lua models recipes', 'lua')) do check_lua(path) end
check_umbrella()
files.finish 'deps'
