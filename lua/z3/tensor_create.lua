--- tensor_create.lua -- new tensors from Lua data, constants, random numbers and files.
-- Options of all: dtype ('f32' unless given), device, requires_grad.
local ffi   = require 'ffi'
local err   = require 'z3.error'
local check = require 'z3.check'
local opts  = require 'z3.opts'
local rng   = require 'z3.random'
local C     = require('z3.ffi').C
local T     = require 'z3.tensor_core'

local functions, methods = T.functions, T.methods
local OPTIONS = { dtype = opts.string, device = opts.string, requires_grad = false }
local C_TYPE = { f32 = 'float *', i32 = 'int32_t *', i64 = 'int64_t *', u8 = 'uint8_t *' }
local RANGE = { u8 = { 0, 255 }, i32 = { -2 ^ 31, 2 ^ 31 - 1 }, i64 = { -2 ^ 63, 2 ^ 63 } }

local function read_options(o, what)
  o = opts.read(o, OPTIONS, what)
  o.dtype = o.dtype or 'f32'
  return o, T.dtype_number(o.dtype, what), o.device and T.device_number(o.device, what) or T.default_device()
end

local function finish(t, o)
  if o.requires_grad then t:requires_grad_() end
  return t
end

--- A shape and options from zeros{2,3}, zeros({2,3}, o), zeros(2, 3) or zeros(2, 3, o).
local function read_shape(what, first, ...)
  local shape, o
  if type(first) == 'table' then shape, o = first, ...
  else
    shape = {}
    for i = 1, select('#', first, ...) do
      local v = select(i, first, ...)
      if type(v) == 'table' then o = v else shape[#shape + 1] = v == nil and 'nil' or v end
    end
  end
  for i, n in ipairs(shape) do
    if type(n) ~= 'number' or not (n >= 0 and n < 2 ^ 63) or n % 1 ~= 0 then
      err.throw('ARG', ('%s: size of dim %d is %s, wants a whole number from 0 to below 2^63'):format(what, i - 1,
        tostring(n)))
    end
  end
  return shape, o
end

local function constant(what, value)
  return function(...)
    local shape, user = read_shape(what, ...)
    local o, dtype, device = read_options(user, what)
    local t = T.new(dtype, device, shape, nil, what)
    methods.fill_(t, value)
    return finish(t, o)
  end
end

--- Zeros: zeros{2,3} or zeros({2,3}, {dtype='bf16'}).
functions.zeros = constant('zeros', 0)
--- Ones.
functions.ones = constant('ones', 1)

--- One value everywhere.
function functions.full(shape, value, user)
  shape = read_shape('full', shape)
  local o, dtype, device = read_options(user, 'full')
  local t = T.new(dtype, device, shape, nil, 'full')
  methods.fill_(t, value)
  return finish(t, o)
end

local function random(what, kind, a, b)
  return function(...)
    local shape, user = read_shape(what, ...)
    local o, dtype, device = read_options(user, what)
    if dtype >= C.Z3T_I32 then
      err.throw('DTYPE', ('%s: dtype is %s, wants a floating type'):format(what, o.dtype))
    end
    local t = T.new(dtype, device, shape, nil, what)
    check(C.z3_tensor_random(t.h, kind, a, b, rng.next_key 'tensor', 0), what)
    return finish(t, o)
  end
end

--- Normal numbers, mean 0, standard deviation 1: the next call of the stream that z3.manual_seed starts.
functions.randn = random('randn', C.Z3R_NORMAL, 0, 1)
--- Uniform numbers in [0, 1).
functions.rand = random('rand', C.Z3R_UNIFORM, 0, 1)

--- arange(n): 0 ... n-1. arange(start, stop [, step]): from start, before stop.
function functions.arange(...)
  local n, user = {}, nil
  for i = 1, select('#', ...) do
    local v = select(i, ...)
    if type(v) == 'table' then user = v else n[#n + 1] = v end
  end
  local start, stop, step = n[2] and n[1] or 0, n[2] or n[1], n[3] or 1
  for name, v in pairs { start = start, stop = stop or 'nil', step = step } do
    err.require_arg(type(v) == 'number' and math.abs(v) < math.huge, 'arange: %s is %s, wants a number', name,
      tostring(v))
  end
  err.require_arg(step ~= 0, 'arange: step is 0')
  local o, dtype, device = read_options(user, 'arange')
  local t = T.new(dtype, device, { math.max(0, math.ceil((stop - start) / step)) }, nil, 'arange')
  check(C.z3_tensor_arange(t.h, start, step), 'arange')
  return finish(t, o)
end

for _, name in ipairs { 'zeros', 'ones', 'randn', 'rand' } do
  --- The same shape, dtype and device as t; options override.
  functions[name .. '_like'] = function(t, o)
    T.ready(t, name .. '_like')
    local with = { dtype = t.dtype, device = t.device }
    for k, v in pairs(opts.read(o, OPTIONS, name .. '_like')) do with[k] = v end
    return functions[name](t.shape, with)
  end
end

-- ---- tensors from Lua data ----------------------------------------------------------------------

local function nested_shape(v)
  local shape = {}
  while type(v) == 'table' do
    shape[#shape + 1] = #v
    v = v[1]
  end
  return shape
end

local function bad_entry(v, path, dtype)
  local where = #path == 0 and '' or ' at [' .. table.concat(path, '][') .. ']'
  err.throw('ARG', ('tensor: the value%s is %s, wants a number%s'):format(where, opts.show(v),
    dtype == 'f32' and '' or ' that ' .. dtype .. ' can hold'))
end

--- Are the keys of v exactly 1 to #v?
local function is_list(v)
  local n = 0
  for _ in next, v do n = n + 1 end
  return n == #v
end

--- Writes the leaves of v in row-major order; path (positions from 1, as in Lua) is for messages.
local function write(v, depth, shape, out, at, dtype, path)
  if depth > #shape then
    if type(v) == 'boolean' then v = v and 1 or 0 end
    local range = RANGE[dtype]
    if type(v) == 'cdata' then v = tonumber(v) end
    if type(v) ~= 'number' or range and (v % 1 ~= 0 or v < range[1] or v > range[2]) then bad_entry(v, path, dtype) end
    out[at] = v
    return at + 1
  end
  if type(v) == 'table' and not is_list(v) then
    err.throw('ARG', ('tensor: the table%s has holes or keys that are no positions; it wants 1 to n'):format(
      #path == 0 and '' or ' at [' .. table.concat(path, '][', 1, depth - 1) .. ']'))
  end
  if type(v) ~= 'table' or #v ~= shape[depth] then
    err.throw('SHAPE', ('tensor: the table is not rectangular: [%s] has %s, the first there has %d entries'):format(
      table.concat(path, ']['), type(v) == 'table' and #v .. ' entries' or opts.show(v), shape[depth]))
  end
  for i = 1, #v do
    path[depth] = i
    at = write(v[i], depth + 1, shape, out, at, dtype, path)
  end
  path[depth] = nil
  return at
end

--- A tensor from a number or a nested table of numbers (or of booleans).
-- @param data   {{1,2},{3,4}}; a tensor gives an independent copy
-- @tab[opt] o   dtype, device, requires_grad
-- @raise SHAPE for ragged tables, ARG for values that the dtype can't hold
function functions.tensor(data, user)
  if T.is_like(data) then
    local o = opts.read(user, OPTIONS, 'tensor')
    local t = T.copy_of(data)
    local out = o.dtype and t:cast(o.dtype) or t
    if out ~= t then t:free() end
    return finish(o.device and methods.to(out, o.device) or out, o)
  end
  local o, dtype, device = read_options(user, 'tensor')
  local shape = nested_shape(data)
  if #shape > C.Z3_MAX_DIMS then err.throw('ARG', ('tensor: nested %d deep, at most 8 is possible'):format(#shape)) end
  local direct = C_TYPE[o.dtype] ~= nil
  local first = T.new(direct and dtype or C.Z3T_F32, C.Z3D_CPU, shape, nil, 'tensor')
  local p = ffi.new('void *[1]')
  check(C.z3_tensor_data(first.h, p), 'tensor')
  write(data, 1, shape, ffi.cast(C_TYPE[o.dtype] or 'float *', p[0]), 0, o.dtype, {})
  if not direct then                            -- 16-bit floats are rounded from f32
    local narrow = T.new(dtype, C.Z3D_CPU, shape, nil, 'tensor')
    check(C.z3_tensor_copy(narrow.h, first.h), 'tensor')
    first:free()
    first = narrow
  end
  if device ~= C.Z3D_CPU then
    local there = methods.to(first, o.device or ffi.string(C.z3_device_name(device)))
    first:free()
    first = there
  end
  return finish(first, o)
end

--- Maps a raw file: row-major values of `dtype`, little-endian. Pages come from disk when they are first read; what is
-- written stays in memory. The file must hold at least the shape's bytes, and must not shrink while in use.
function functions.from_file(path, shape, dtype)
  err.require_arg(type(path) == 'string', 'from_file: the path is %s, wants a text', opts.show(path))
  shape = read_shape('from_file', shape)
  local number, numel = T.dtype_number(dtype, 'from_file'), 1
  for _, n in ipairs(shape) do numel = numel * n end
  local bytes = numel * C.z3_dtype_bytes(number)
  local map = require('z3.mmap').open(path)
  if bytes > map.bytes then
    err.throw('IO', ('from_file: %s has %d bytes, %s %s needs %.0f'):format(path, map.bytes, dtype, T.shape_text(shape),
      bytes))
  end
  local dims, out = ffi.new('int64_t[8]'), ffi.new('z3_tensor *[1]')
  for i, n in ipairs(shape) do dims[i - 1] = n end
  check(C.z3_tensor_wrap(map.data, number, #shape, dims, out), 'from_file')
  return T.wrap(out[0], true)
end

return {}
