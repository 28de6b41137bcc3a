--- tensor_reduce.lua -- sums, means, extremes, and products of matrices.
-- dim: nil (everything), a number, or a table of numbers; keepdim leaves reduced dims with size 1.
local err = require 'z3.error'
local opts = require 'z3.opts'
local C   = require('z3.ffi').C
local T   = require 'z3.tensor_core'

local methods = T.methods
local handle, ready, dim_of = T.handle, T.ready, T.dim

--- Bit mask of dims; 0 means all.
local function mask_of(t, dim, what)
  if dim == nil then return 0 end
  local ndim, mask = C.z3_tensor_ndim(handle(t)), 0
  for _, d in ipairs(type(dim) == 'table' and dim or { dim }) do
    local b = 2 ^ dim_of(d, ndim, what)
    if ndim > 0 and mask % (2 * b) >= b then
      err.throw('ARG', ('%s: dim %s is given twice'):format(what, tostring(d)))
    end
    mask = mask + (ndim > 0 and b or 0)
  end
  return mask
end

local function reduce(op, t, dim, keepdim, what, correction)
  local mask = mask_of(t, dim, what)
  if keepdim ~= nil and type(keepdim) ~= 'boolean' then
    err.throw('ARG', ('%s: keepdim is %s, wants true or false (several dims are one table: {0, 1})'):format(what,
      opts.show(keepdim)))
  end
  if correction then opts.want_number(correction, what, 'correction', true) end
  ready(t)
  local a = T.attr()
  a.i[0], a.i[1], a.i[2] = mask, keepdim and 1 or 0, correction or 0
  return T.apply1(op, t)
end

--- Sum (integers give i64).
function methods.sum(t, dim, keepdim) return reduce(C.Z3OP_sum, t, dim, keepdim, 'sum') end

--- Mean (integers give f32).
function methods.mean(t, dim, keepdim) return reduce(C.Z3OP_mean, t, dim, keepdim, 'mean') end

--- Variance with n - correction in the denominator (1 unless given, as in PyTorch).
function methods.var(t, dim, keepdim, correction)
  return reduce(C.Z3OP_var, t, dim, keepdim, 'var', correction or 1)
end

--- Standard deviation. Where it is 0 its gradient is 0.
function methods.std(t, dim, keepdim, correction)
  local v = methods.var(t, dim, keepdim, correction)
  if not C.z3_requires_grad(v.h) then
    local s = v:sqrt()
    v:free()
    return s
  end
  local zero = v:eq(0)
  local safe = v:masked_fill(zero, 1)
  local s = safe:sqrt()
  local out = s:masked_fill(zero, 0)
  for _, made in ipairs { v, zero, safe, s } do made:free() end
  return out
end

--- Position of the largest value: along dim, or in the flattened tensor. The first of equals.
function methods.argmax(t, dim, keepdim) return reduce(C.Z3OP_argmax, t, dim, keepdim, 'argmax') end

--- Position of the smallest value.
function methods.argmin(t, dim, keepdim)
  local n = methods.neg(t)
  local out = methods.argmax(n, dim, keepdim)
  n:free()
  return out
end

local function extreme(op, shared, pair, position, name)
  return function(t, dim, keepdim)
    if dim ~= nil and T.is_like(dim) then return pair(t, dim) end
    if dim == nil then return reduce(shared, t, nil, keepdim, name) end
    return reduce(op, t, dim, keepdim, name), position(t, dim, keepdim)
  end
end

--- The largest value (of the whole tensor: equal ones share the gradient); with a dim, values and their positions; with
-- a second tensor, the larger of both elementwise.
methods.max = extreme(C.Z3OP_max, C.Z3OP_amax, methods.maximum, methods.argmax, 'max')
--- The smallest, likewise.
methods.min = extreme(C.Z3OP_min, C.Z3OP_amin, methods.minimum, methods.argmin, 'min')

--- Running sum along dim (0 unless given).
function methods.cumsum(t, dim)
  local ndim = C.z3_tensor_ndim(handle(t))
  dim = dim_of(dim or 0, ndim, 'cumsum')
  if ndim == 0 then return methods.sum(t) end
  ready(t)
  T.attr().i[0] = dim
  return T.apply1(C.Z3OP_cumsum, t)
end

local MATMUL, I32 = C.Z3OP_matmul, C.Z3T_I32

local AT_ONCE = 2 ^ 22                          -- products of integers that are held at a time

--- Product of matrices of integers, through all products of elements: exact, and meant for small ones.
local function integer_product(a, b)
  local dtype, sa, sb = C.z3_tensor_dtype(a.h), a.shape, b.shape
  if #sa < 2 or #sb < 2 or sa[#sa] ~= sb[#sb - 1] then return T.apply2(MATMUL, a, b) end    -- for its message
  local rows, each = sa[#sa - 1], a:numel() / math.max(1, sa[#sa - 1]) * b:numel() / math.max(1, sb[#sb - 1])
  local step = math.max(1, math.floor(AT_ONCE / math.max(1, each)))
  if rows > step then
    local parts = {}
    for first = 0, rows - 1, step do
      local part = methods.narrow(a, -2, first, math.min(step, rows - first))
      parts[#parts + 1] = integer_product(part, b)
      part:free()
    end
    local whole = methods.cat(parts, -2)
    for _, part in ipairs(parts) do part:free() end
    return whole
  end
  local left, right = methods.unsqueeze(a, -1), methods.unsqueeze(b, -3)
  local all = left * right
  local sum = methods.sum(all, -2)
  local out = methods.cast(sum, T.dtype_name(dtype))
  for _, t in ipairs { left, right, all } do t:free() end
  if out ~= sum then sum:free() end
  return out
end

local function product_of(a, b)
  local dtype = C.z3_tensor_dtype(handle(a))
  if dtype >= I32 and dtype == C.z3_tensor_dtype(handle(b)) then return integer_product(a, b) end
  return T.apply2(MATMUL, a, b)
end

--- Product of matrices, batched over leading dims that broadcast; vectors count as a row or a column, as in PyTorch.
function methods.matmul(a, b)
  local na, nb = C.z3_tensor_ndim(handle(a)), C.z3_tensor_ndim(handle(b))
  if na ~= 1 and nb ~= 1 then return product_of(a, b) end
  local wide_a = na == 1 and methods.unsqueeze(a, 0) or a
  local wide_b = nb == 1 and methods.unsqueeze(b, 1) or b
  local product = product_of(wide_a, wide_b)
  local shape = product.shape
  if nb == 1 then table.remove(shape) end
  if na == 1 then table.remove(shape, #shape - (nb == 1 and 0 or 1)) end
  local out = methods.view(product, shape)
  product:free()
  if na == 1 then wide_a:free() end
  if nb == 1 then wide_b:free() end
  return out
end

local function along_last(op, name)
  return function(t, dim)
    local n = C.z3_tensor_ndim(handle(t))
    dim = dim_of(dim or -1, n, name)
    if n == 0 then
      local row = methods.unsqueeze(t, 0)
      local soft = T.apply1(op, row)
      row:free()
      local out = methods.view(soft, {})
      soft:free()
      return out
    end
    if dim == n - 1 then return T.apply1(op, t) end
    local turned = methods.transpose(t, dim, -1)
    local soft = T.apply1(op, turned)
    local out = methods.transpose(soft, dim, -1)
    turned:free()
    soft:free()
    return out
  end
end

--- Softmax along dim (the last unless given).
methods.softmax = along_last(C.Z3OP_softmax, 'softmax')
--- Logarithm of it.
methods.log_softmax = along_last(C.Z3OP_log_softmax, 'log_softmax')

return {}
