--- abi_spec.lua -- the C compiler and LuaJIT see the same public structs: sizes, and offsets of every field.
require 'tests.lua.helper'
local ffi = require 'ffi'

local root, build = require('tests.lua.helper').root, require('tests.lua.helper').build
local cdef = dofile(('%s/%s/lua/z3/cdef.lua'):format(root, build))

--- { { name =, fields = { name, ... } }, ... } of the structs whose fields are public.
local function public_structs()
  local structs = {}
  for name, body in cdef.text:gmatch 'typedef struct ([%w_]+) (%b{})' do
    local fields = {}
    for declaration in body:sub(2, -2):gmatch '[^;]+' do
      for declarator in declaration:gmatch '[^,]+' do
        local field = declarator:gsub('%b[]', ''):match '([%a_][%w_]*)%s*$'
        if field then fields[#fields + 1] = field end
      end
    end
    structs[#structs + 1] = { name = name, fields = fields }
  end
  return structs
end

--- What the C compiler says: { ['struct'] = size, ['struct.field'] = offset }.
local function compiled_layout(structs)
  local lines = { '#include <stddef.h>', '#include <stdio.h>', '#include "zero3/zero3.h"', 'int main(void) {' }
  for _, s in ipairs(structs) do
    lines[#lines + 1] = ('  printf("%s %%zu\\n", sizeof(%s));'):format(s.name, s.name)
    for _, field in ipairs(s.fields) do
      lines[#lines + 1] = ('  printf("%s.%s %%zu\\n", offsetof(%s, %s));'):format(s.name, field, s.name, field)
    end
  end
  lines[#lines + 1] = '  return 0;\n}'
  local base = ('%s/%s/tests/abi_layout'):format(root, build)
  local f = assert(io.open(base .. '.c', 'wb'))
  f:write(table.concat(lines, '\n'), '\n')
  f:close()
  -- Sanitizers are preloaded for LuaJIT only; the compiler must not carry them.
  local pipe = assert(io.popen(('env -u LD_PRELOAD %s -I%s/core/include %s.c -o %s && env -u LD_PRELOAD %s'):format(
    os.getenv 'CC' or 'cc', root, base, base, base)))
  local layout, count = {}, 0
  for line in pipe:lines() do
    local name, value = line:match '^(%S+) (%d+)$'
    layout[name], count = tonumber(value), count + 1
  end
  pipe:close()
  return layout, count
end

describe('public structs', function()
  local structs = public_structs()
  local layout, count = compiled_layout(structs)
  require 'z3.ffi'

  it('are found in the headers', function()
    assert.is_true(#structs >= 5)
    assert.is_true(count > 3 * #structs)
  end)

  for _, s in ipairs(structs) do
    it(s.name .. ' is the same for C and Lua', function()
      assert.equal(layout[s.name], ffi.sizeof(s.name))
      for _, field in ipairs(s.fields) do
        assert.equal(layout[s.name .. '.' .. field], (ffi.offsetof(s.name, field)), field)
      end
    end)
  end
end)
