--- tensor_host.lua -- values as Lua data: item, totable, data, to, and how a tensor is printed.
local ffi    = require 'ffi'
local err    = require 'z3.error'
local check  = require 'z3.check'
local opts   = require 'z3.opts'
local handle = require 'z3.handle'
local C      = require('z3.ffi').C
local T      = require 'z3.tensor_core'

local M = {}
local methods = T.methods

local POINTER = ffi.new 'void *[1]'
local DOUBLE  = ffi.new 'double[1]'
local POINTER_TYPE = { [0] = 'float *', 'uint16_t *', 'uint16_t *', 'int32_t *', 'int64_t *', 'uint8_t *' }
local EDGE, MANY = 3, 8                         -- a dim of more than MANY entries is printed as EDGE .. EDGE
local kept_alive = setmetatable({}, { __mode = 'k' })

-- ---- reading elements ----------------------------------------------------------------------------

local bits = ffi.new 'union { uint32_t u; float f; }'
local function from_bf16(u)
  bits.u = bit.lshift(u, 16)
  return tonumber(bits.f)
end

local function from_f16(u)
  local sign, exponent, fraction = u >= 0x8000 and -1 or 1, bit.band(bit.rshift(u, 10), 31), bit.band(u, 1023)
  if exponent == 0 then return sign * fraction * 2 ^ -24 end
  if exponent == 31 then return fraction == 0 and sign * math.huge or 0 / 0 end
  return sign * (1 + fraction / 1024) * 2 ^ (exponent - 15)
end

local CONVERT = { [C.Z3T_BF16] = from_bf16, [C.Z3T_F16] = from_f16, [C.Z3T_I64] = tonumber }

--- A function(offset) -> number over a tensor's host memory, offset in elements from its first. It keeps the tensor
-- alive (without an offset it gives the tensor).
function M.reader(t)
  local h = T.handle(t)
  check(C.z3_tensor_data(h, POINTER))
  local dtype = C.z3_tensor_dtype(h)
  local p = ffi.cast(POINTER_TYPE[dtype], POINTER[0])
  local convert = CONVERT[dtype]
  if convert then return function(i) return i and convert(p[i]) or t end end
  return function(i) return i and p[i] or t end
end

--- Strides in elements, as numbers.
function M.strides(t)
  local h, s = T.handle(t), {}
  for i = 0, C.z3_tensor_ndim(h) - 1 do s[i + 1] = tonumber(C.z3_tensor_stride(h, i)) end
  return s
end

--- The value of a one-element tensor as a Lua number.
function methods.item(t)
  check(C.z3_tensor_item(T.handle(t), DOUBLE))
  return DOUBLE[0]
end

local function nested(read, shape, stride, d, offset)
  if d > #shape then return read(offset) end
  local out = {}
  for i = 1, shape[d] do out[i] = nested(read, shape, stride, d + 1, offset + (i - 1) * stride[d]) end
  return out
end

--- All values as nested tables of numbers (a number for a tensor without dims). i64 beyond 2^53 loses bits.
function methods.totable(t)
  local read = M.reader(t)
  return nested(read, t.shape, M.strides(t), 1, 0)
end

--- FFI pointer to the values: row-major host memory, which may be written. Its type follows the dtype: float *,
-- int32_t *, int64_t *, uint8_t *, uint16_t * for 16-bit floats. It holds the tensor alive as long as it lives itself
-- (pointers computed from it don't). Asking for it counts as a change in the eyes of autograd; data('r') promises only
-- to read and doesn't.
-- @raise ARG when the tensor isn't contiguous (a transposed view, say): use :contiguous()
function methods.data(t, mode)
  local h = T.handle(t)
  if not C.z3_tensor_contiguous(h) then
    err.throw('ARG', ('data: the tensor %s is a view whose elements are not side by side: use :contiguous()'):format(
      T.shape_text(t.shape)))
  end
  check(C.z3_tensor_data(h, POINTER))
  if mode ~= 'r' then C.z3_tensor_touch(h) end
  local p = ffi.cast(POINTER_TYPE[C.z3_tensor_dtype(h)], POINTER[0])
  kept_alive[p] = t
  return p
end

local function to_device(t, name)
  local out = ffi.new 'z3_tensor *[1]'
  local h = T.handle(t)
  local device = T.device_number(name, 'to')
  if C.z3_tensor_device(h) == device then return t end
  check(C.z3_tensor_to_device(h, device, out), 'to')
  return T.wrap(out[0])
end

--- The same values in another dtype (differentiable) or on another device: to('bf16'), to('null'),
-- to{dtype=, device=}. t itself when nothing changes.
function methods.to(t, what, more)
  T.ready(t, 'to')
  if type(what) == 'table' and not T.is_like(what) then
    local o = opts.read(what, { dtype = opts.string, device = opts.string }, 'to')
    return methods.to(o.dtype and methods.to(t, o.dtype) or t, o.device or t.device)
  end
  if T.is_like(what) then return methods.to(methods.to(t, what.dtype), what.device) end
  local out
  if T.dtypes[what] then out = methods.cast(t, what)
  elseif C.z3_device_from_name(tostring(what)) >= 0 then out = to_device(t, what)
  else err.throw('ARG', ('to: %s is neither a dtype (%s) nor a device (cpu, null)'):format(
    opts.show(what), table.concat(require('z3.nearest').keys(T.dtypes), ', '))) end
  return more and methods.to(out, more) or out
end

for _, name in ipairs { 'f32', 'bf16', 'f16' } do
  --- Short for to(name).
  methods[name] = function(t) return methods.cast(t, name) end
end

-- ---- printing ------------------------------------------------------------------------------------

--- Positions of a dim that are shown: all, or the edges with 0 (a gap) between.
local function shown(n)
  local out = {}
  for i = 1, n do
    if n <= MANY or i <= EDGE or i > n - EDGE then out[#out + 1] = i elseif out[#out] ~= 0 then out[#out + 1] = 0 end
  end
  return out
end

--- Calls visit(value) for each element that will be shown.
local function each_shown(read, shape, stride, d, offset, visit)
  if d > #shape then return visit(read(offset)) end
  for _, i in ipairs(shown(shape[d])) do
    if i > 0 then each_shown(read, shape, stride, d + 1, offset + (i - 1) * stride[d], visit) end
  end
end

--- One format for all values: integers as they are, moderate floats with 4 digits, else exponents.
local function choose_format(read, shape, stride, whole)
  local largest, least, width = 0, math.huge, 0
  each_shown(read, shape, stride, 1, 0, function(v)
    local a = math.abs(v)
    if a == a and a < math.huge then
      largest = math.max(largest, a)
      if a > 0 then least = math.min(least, a) end
    end
  end)
  local wide = largest >= 1e5 or largest > 0 and largest < 1e-2 or least < 1e-3 and largest >= 1e3
  local format = whole and '%.0f' or wide and '%.4e' or '%.4f'
  each_shown(read, shape, stride, 1, 0, function(v) width = math.max(width, #format:format(v)) end)
  return function(v)
    local s = format:format(v):gsub('^%-nan', 'nan')
    return (' '):rep(width - #s) .. s
  end
end

local function rows(lines, read, shape, stride, d, offset, show, index)
  if d < #shape - 1 then                        -- a matrix for each position of the leading dims
    for _, i in ipairs(shown(shape[d])) do
      if i == 0 then lines[#lines + 1] = ' …'
      else
        rows(lines, read, shape, stride, d + 1, offset + (i - 1) * stride[d], show, index .. (i - 1) .. ',')
      end
    end
    return
  end
  if index ~= '' then lines[#lines + 1] = ('[%s:,:]'):format(index) end
  if #shape == 0 then lines[#lines + 1] = ' ' .. show(read(offset)); return end
  local last = #shape
  local function line(at)
    local cells = {}
    for k, j in ipairs(shown(shape[last])) do cells[k] = j == 0 and '…' or show(read(at + (j - 1) * stride[last])) end
    lines[#lines + 1] = ' ' .. table.concat(cells, ' ')
  end
  if last == 1 then return line(offset) end
  for _, i in ipairs(shown(shape[d])) do
    if i == 0 then lines[#lines + 1] = ' …' else line(offset + (i - 1) * stride[d]) end
  end
end

--- 'f32 (2,3) cpu' and the values below; long dims show their ends only.
function methods.tostring(t)
  if not T.is_like(t) then T.ready(t, 'tostring') end
  if handle.is_tensor(t) and t.h == nil then return 'a freed tensor' end
  local shape = t.shape
  local head = ('%s (%s) %s'):format(t.dtype, table.concat(shape, ','), t.device)
  local h = T.handle(t)
  if C.z3_requires_grad(h) then head = head .. ' requires_grad' end
  if C.z3_tensor_numel(h) == 0 or C.z3_tensor_device(h) == C.Z3D_NULL then return head end
  local read, stride = M.reader(t), M.strides(t)
  local lines = { head }
  rows(lines, read, shape, stride, 1, 0, choose_format(read, shape, stride, C.z3_tensor_dtype(h) >= C.Z3T_I32), '')
  return table.concat(lines, '\n')
end

handle.meta.__tostring = methods.tostring
function handle.meta.__concat(a, b) return tostring(a) .. tostring(b) end

return M
