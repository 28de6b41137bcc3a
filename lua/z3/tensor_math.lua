--- tensor_math.lua -- elementwise operations, and the operators + - * / ^ and unary minus.
-- A Lua number on either side becomes an attribute, so it never changes a floating tensor's dtype. Tensors broadcast by
-- NumPy's rules. Bytes (u8, what comparisons give) widen to i32 where a byte could not hold the result: 0 - 1 is -1.
local opts = require 'z3.opts'
local C = require('z3.ffi').C
local T = require 'z3.tensor_core'

local M = {}
local methods, operators = T.methods, T.operators
local handle, ready = T.handle, T.ready

local F32, I32, U8 = C.Z3T_F32, C.Z3T_I32, C.Z3T_U8
local CAST, CMP, CMP_SCALAR = C.Z3OP_cast, C.Z3OP_compare, C.Z3OP_cmp_scalar

local function cast(t, dtype)
  ready(t)
  T.attr().i[0] = dtype
  return T.apply1(CAST, t)
end

--- Runs fn on t as i32, when t is u8 and `needed`; frees the wide copy (what backward needs lives on).
local function widened(t, needed, op, v)
  if not needed or C.z3_tensor_dtype(handle(t)) ~= U8 then return nil end
  local wide = cast(t, I32)
  T.attr().f[0] = v
  local out = T.apply1(op, wide)
  wide:free()
  return out
end

--- op(t, v) with a number v.
local function scalar(op, t, v)
  if v < 0 or v > 255 then
    local out = widened(t, v % 1 == 0, op, v)
    if out then return out end
  end
  ready(t)
  T.attr().f[0] = v
  return T.apply1(op, t)
end

--- A one-element tensor like t with the value v.
local function like(t, v)
  local h = handle(t)
  local dtype = C.z3_tensor_dtype(h)
  if dtype >= I32 and v % 1 ~= 0 then dtype = F32 elseif dtype == U8 and (v < 0 or v > 255) then dtype = I32 end
  local s = T.new(dtype, C.z3_tensor_device(h), {})
  methods.fill_(s, v)
  return s
end
M.like = like

--- The binary operation with special forms for numbers: right(t, v) for t ? v, left(t, v) for v ? t.
local function binary(op, right, left)
  return function(a, b)
    if type(b) == 'number' then return scalar(right, a, b) end
    if type(a) == 'number' then return scalar(left, b, a) end
    ready(a)
    ready(b)
    return T.apply2(op, a, b)
  end
end

methods.add = binary(C.Z3OP_add, C.Z3OP_add_scalar, C.Z3OP_add_scalar)
methods.mul = binary(C.Z3OP_mul, C.Z3OP_mul_scalar, C.Z3OP_mul_scalar)
methods.div = binary(C.Z3OP_div, C.Z3OP_div_scalar, C.Z3OP_rdiv_scalar)

local SUB, ADD_SCALAR, RSUB_SCALAR = C.Z3OP_sub, C.Z3OP_add_scalar, C.Z3OP_rsub_scalar

--- a - b.
function methods.sub(a, b)
  if type(b) == 'number' then
    return widened(a, b % 1 == 0, ADD_SCALAR, -b) or scalar(ADD_SCALAR, a, -b)
  end
  if type(a) == 'number' then return widened(b, a % 1 == 0, RSUB_SCALAR, a) or scalar(RSUB_SCALAR, b, a) end
  if C.z3_tensor_dtype(handle(a)) == U8 and C.z3_tensor_dtype(handle(b)) == U8 then
    local wide = cast(a, I32)
    local out = T.apply2(SUB, wide, b)
    wide:free()
    return out
  end
  return T.apply2(SUB, a, b)
end

--- -t.
function methods.neg(t)
  if C.z3_tensor_dtype(handle(t)) == U8 then return methods.sub(0, t) end
  return T.apply1(C.Z3OP_neg, t)
end

local POW, POW_SCALAR = C.Z3OP_pow, C.Z3OP_pow_scalar

--- a ^ b; either may be a number. An integer to a negative or fractional power gives f32.
function methods.pow(a, b)
  if type(b) == 'number' then return scalar(POW_SCALAR, a, b) end
  if type(a) ~= 'number' then return T.apply2(POW, a, b) end
  local base = like(b, a)
  local out = T.apply2(POW, base, b)
  base:free()
  return out
end

operators.__add, operators.__sub, operators.__mul, operators.__div = methods.add, methods.sub, methods.mul, methods.div
operators.__unm, operators.__pow = methods.neg, methods.pow

for _, name in ipairs { 'abs', 'exp', 'log', 'sqrt', 'rsqrt', 'sin', 'cos', 'tanh', 'sigmoid', 'relu', 'silu',
                        'isfinite' } do
  local op = C['Z3OP_' .. name]
  methods[name] = function(t) return T.apply1(op, t) end
end

local GELU = { tanh = C.Z3OP_gelu_tanh, erf = C.Z3OP_gelu_erf }

--- GELU. kind: 'erf' (exact, the default as in PyTorch) or 'tanh' (GPT-2's approximation).
function methods.gelu(t, kind)
  local op = GELU[kind or 'erf']
  if not op then require('z3.opts').choice(kind, { 'erf', 'tanh' }, 'gelu', 'kind') end
  return T.apply1(op, t)
end

local function has_fraction(v) return v ~= nil and v > -math.huge and v < math.huge and v % 1 ~= 0 end

--- Values outside low..high become low or high; nil leaves that side open. A bound with a fraction makes integers f32.
-- Bounds may be tensors.
function methods.clamp(t, low, high)
  ready(t)
  if T.is_like(low) or T.is_like(high) then
    local raised = low ~= nil and methods.maximum(t, low) or t
    return high ~= nil and methods.minimum(raised, high) or raised
  end
  if low ~= nil then opts.want_number(low, 'clamp', 'the lower bound') end
  if high ~= nil then opts.want_number(high, 'clamp', 'the upper bound') end
  if (has_fraction(low) or has_fraction(high)) and C.z3_tensor_dtype(handle(t)) >= I32 then
    local wide = cast(t, F32)
    local out = methods.clamp(wide, low, high)
    wide:free()
    return out
  end
  local a = T.attr()
  a.f[0] = low or -math.huge
  a.f[1] = high or math.huge
  return T.apply1(C.Z3OP_clamp, t)
end

--- The larger (smaller) of two, elementwise; either may be a number.
function methods.maximum(a, b)
  if type(b) == 'number' then return methods.clamp(a, b, nil) end
  if type(a) == 'number' then return methods.clamp(b, a, nil) end
  return T.apply2(C.Z3OP_maximum, a, b)
end

function methods.minimum(a, b)
  if type(b) == 'number' then return methods.clamp(a, nil, b) end
  if type(a) == 'number' then return methods.clamp(b, nil, a) end
  return T.apply2(C.Z3OP_minimum, a, b)
end

-- Comparisons give u8: 1 where true. MIRROR: v < t is t > v.
local MIRROR = { eq = 'eq', ne = 'ne', lt = 'gt', le = 'ge', gt = 'lt', ge = 'le' }
local function compare(t, v, which)
  ready(t)
  local scalar_form = type(v) == 'number'
  if not scalar_form then ready(v) end
  local a = T.attr()
  a.i[0] = which
  if scalar_form then
    a.f[0] = v
    return T.apply1(CMP_SCALAR, t)
  end
  return T.apply2(CMP, t, v)
end
for name, mirror in pairs(MIRROR) do
  local which, mirrored = C['Z3CMP_' .. name:upper()], C['Z3CMP_' .. mirror:upper()]
  methods[name] = function(a, b)
    if type(a) == 'number' then return compare(b, a, mirrored) end
    return compare(a, b, which)
  end
end

--- A mask as u8: any other integer type counts as true where it isn't 0.
function M.mask(m)
  local dtype = C.z3_tensor_dtype(handle(m, 'mask'))
  if dtype == U8 then return m, false end
  if dtype < I32 then require('z3.error').throw('DTYPE', 'a mask is ' .. m.dtype .. ', wants u8 (1 = true)') end
  return compare(m, 0, C.Z3CMP_NE), true
end

local MASKED_FILL, WHERE = C.Z3OP_masked_fill, C.Z3OP_where

--- t with `value` (a number, or a tensor of one) where mask is true.
function methods.masked_fill(t, mask, value)
  if T.is_like(value) then return methods.where(mask, value, t) end
  ready(t)
  opts.want_number(value, 'masked_fill', 'the value')
  local m, made = M.mask(mask)
  T.attr().f[0] = value
  local out = T.apply2(MASKED_FILL, t, m)
  if made then m:free() end
  return out
end

--- a where cond is true, else b; a and b may be numbers. The method form x:where(cond, y) of PyTorch works too: the
-- condition is the first that is u8.
function methods.where(cond, a, b)
  local is_mask = function(x) return T.is_like(x) and C.z3_tensor_dtype(handle(x)) == U8 end
  if not is_mask(cond) and is_mask(a) then cond, a = a, cond end
  local m, made = M.mask(cond)
  local free_a, free_b
  if type(a) == 'number' and type(b) == 'number' then
    free_a = T.new(F32, C.z3_tensor_device(handle(m)), {})
    methods.fill_(free_a, a)
    a = free_a
  elseif type(a) == 'number' then free_a = like(b, a); a = free_a end
  if type(b) == 'number' then free_b = like(a, b); b = free_b end
  ready(a)
  ready(b)
  local out = T.apply3(WHERE, m, a, b)
  if made then m:free() end
  if free_a then free_a:free() end
  if free_b then free_b:free() end
  return out
end

--- The same values in another dtype; differentiable. t itself when it has that dtype.
function methods.cast(t, dtype)
  local number = T.dtype_number(dtype, 'cast')
  if C.z3_tensor_dtype(handle(t)) == number then return t end
  return cast(t, number)
end

return M
