--- tensor_shape.lua -- views: the same bytes under another shape. Writing through one is seen by all.
local err = require 'z3.error'
local C   = require('z3.ffi').C
local T   = require 'z3.tensor_core'

local methods = T.methods
local handle, ready, dim_of = T.handle, T.ready, T.dim

local VIEW, PERMUTE, NARROW, EXPAND, COPY = C.Z3OP_view, C.Z3OP_permute, C.Z3OP_narrow, C.Z3OP_expand, C.Z3OP_copy
local MAX_DIMS = C.Z3_MAX_DIMS

--- Sizes given as numbers or as one table.
local function sizes(what, first, ...)
  local shape = type(first) == 'table' and first or { first, ... }
  err.require_arg(#shape <= MAX_DIMS, '%s: %d dims, at most %d are possible', what, #shape, MAX_DIMS)
  for i = 1, #shape do
    local n = shape[i]
    if type(n) ~= 'number' or n % 1 ~= 0 then
      err.throw('ARG', ('%s: size of dim %d is %s, wants a whole number'):format(what, i - 1, tostring(n)))
    end
  end
  return shape
end

local function as_view(t, shape, may_copy)
  ready(t)
  local a = T.attr()
  a.i[0] = #shape
  for i = 1, #shape do a.i[i] = shape[i] end
  if may_copy then a.i[9] = 1 end
  return T.apply1(VIEW, t, not may_copy)
end

--- The same bytes as another shape; one size may be -1. ARG when the memory order doesn't allow a view.
function methods.view(t, ...) return as_view(t, sizes('view', ...), false) end

--- The same as view, but copies where it must.
function methods.reshape(t, ...) return as_view(t, sizes('reshape', ...), true) end

local function permuted(t, order)
  ready(t)
  local a = T.attr()
  for i = 1, #order do a.i[i - 1] = order[i] end
  return T.apply1(PERMUTE, t, true)
end

--- Swaps two dims.
function methods.transpose(t, i, j)
  local n = C.z3_tensor_ndim(handle(t))
  local order = {}
  for k = 1, n do order[k] = k - 1 end
  i, j = dim_of(i, n, 'transpose'), dim_of(j, n, 'transpose')
  if n > 0 then order[i + 1], order[j + 1] = order[j + 1], order[i + 1] end
  return permuted(t, order)
end

--- A matrix transposed.
function methods.t(t)
  local n = C.z3_tensor_ndim(handle(t))
  if n > 2 then err.throw('SHAPE', ('t: the tensor has %d dims, wants at most 2: use transpose'):format(n)) end
  return n < 2 and permuted(t, n == 1 and { 0 } or {}) or permuted(t, { 1, 0 })
end

--- Reorders the dims: permute(2, 0, 1) puts dim 2 first.
function methods.permute(t, ...)
  local order, n = sizes('permute', ...), C.z3_tensor_ndim(handle(t))
  if #order ~= n then err.throw('ARG', ('permute: %d dims given, the tensor has %d'):format(#order, n)) end
  local out = {}
  for i = 1, n do out[i] = dim_of(order[i], n, 'permute') end
  return permuted(t, out)
end

local function narrowed(t, dim, start, length)
  local a = T.attr()
  a.i[0], a.i[1], a.i[2] = dim, start, length
  return T.apply1(NARROW, t, true)
end

--- `length` entries of dim `dim` from `start`, which may count from the end.
function methods.narrow(t, dim, start, length)
  local h = handle(t)
  dim = dim_of(dim, C.z3_tensor_ndim(h), 'narrow')
  for name, v in pairs { start = start or false, length = length or false } do
    if type(v) ~= 'number' or v % 1 ~= 0 then
      err.throw('ARG', ('narrow: %s is %s, wants a whole number'):format(name, tostring(v)))
    end
  end
  if start < 0 then start = start + tonumber(C.z3_tensor_dim(h, dim)) end
  return narrowed(t, dim, start, length)
end

--- Entry i of dim `dim`, which disappears; i may count from the end.
function methods.select(t, dim, i)
  local h = handle(t)
  local n = C.z3_tensor_ndim(h)
  if n == 0 then err.throw('SHAPE', 'select: the tensor has no dims') end
  dim = dim_of(dim, n, 'select')
  local count = tonumber(C.z3_tensor_dim(h, dim))
  if type(i) ~= 'number' or i % 1 ~= 0 or i < -count or i >= count then
    err.throw('ARG', ('select: position is %s, dim %d has %d entries, numbered from 0'):format(tostring(i), dim, count))
  end
  if i < 0 then i = i + count end
  local shape = T.shape_of(h)
  table.remove(shape, dim + 1)
  local part = narrowed(t, dim, i, 1)
  local out = as_view(part, shape, false)
  part:free()
  return out
end

--- A new dim of size 1 at `dim`.
function methods.unsqueeze(t, dim)
  local shape = T.shape_of(handle(t))
  table.insert(shape, dim_of(dim, #shape + 1, 'unsqueeze') + 1, 1)
  return as_view(t, shape, false)
end

--- Without the dims of size 1 (or without dim `dim`, when its size is 1).
function methods.squeeze(t, dim)
  local shape, out = T.shape_of(handle(t)), {}
  if dim then dim = dim_of(dim, #shape, 'squeeze') end
  for i, n in ipairs(shape) do
    if n ~= 1 or dim and dim ~= i - 1 then out[#out + 1] = n end
  end
  return as_view(t, out, false)
end

--- Repeats dims of size 1 without copying; -1 keeps a size. New dims come in front.
function methods.expand(t, ...)
  local shape = sizes('expand', ...)
  ready(t)
  local a = T.attr()
  a.i[0] = #shape
  for i = 1, #shape do a.i[i] = shape[i] end
  return T.apply1(EXPAND, t, true)
end

--- Dims first..last (all unless given) as one.
function methods.flatten(t, first, last)
  local shape = T.shape_of(handle(t))
  if #shape == 0 then return as_view(t, { 1 }, true) end
  first, last = dim_of(first or 0, #shape, 'flatten'), dim_of(last or -1, #shape, 'flatten')
  if first > last then err.throw('ARG', ('flatten: from dim %d to dim %d'):format(first, last)) end
  local out, run = {}, 1
  for i = 0, #shape - 1 do
    if i < first or i > last then out[#out + 1] = shape[i + 1]
    else
      run = run * shape[i + 1]
      if i == last then out[#out + 1] = run end
    end
  end
  return as_view(t, out, true)
end

local MAX_PIECES = 4096                         -- results that a Lua function can return with room to spare

--- Pieces of `size` entries along `dim` (0 unless given), the last may be shorter; or pieces of the sizes in a table.
-- @return the pieces, one result each (views)
function methods.split(t, size, dim)
  local h = handle(t)
  dim = dim_of(dim or 0, C.z3_tensor_ndim(h), 'split')
  local total, parts, at = tonumber(C.z3_tensor_dim(h, dim)), {}, 0
  if type(size) == 'number' then
    err.require_arg(size >= 1 and size % 1 == 0, 'split: size is %s, wants a whole number >= 1', tostring(size))
    if total / size > MAX_PIECES then
      err.throw('ARG', ('split: %d entries in pieces of %d are too many results (at most %d): use narrow'):format(total,
        size, MAX_PIECES))
    end
    repeat
      parts[#parts + 1] = methods.narrow(t, dim, at, math.min(size, total - at))
      at = at + size
    until at >= total
  else
    local sum = 0
    err.require_arg(type(size) == 'table', 'split: size is %s, wants a number or a table of numbers', tostring(size))
    for i, n in ipairs(size) do
      if type(n) ~= 'number' or n < 0 or n % 1 ~= 0 then
        err.throw('ARG', ('split: size %d is %s, wants a whole number >= 0'):format(i - 1, tostring(n)))
      end
      sum = sum + n
    end
    if sum ~= total then
      err.throw('ARG', ('split: the sizes add up to %s, dim %d has %d'):format(tostring(sum), dim, total))
    end
    for i, n in ipairs(size) do parts[i] = methods.narrow(t, dim, at, n); at = at + n end
  end
  return unpack(parts)
end

--- n pieces of nearly equal size along `dim`; fewer when there are not enough entries.
function methods.chunk(t, n, dim)
  local h = handle(t)
  local d = dim_of(dim or 0, C.z3_tensor_ndim(h), 'chunk')
  err.require_arg(type(n) == 'number' and n >= 1 and n % 1 == 0, 'chunk: %s pieces, wants at least 1', tostring(n))
  return methods.split(t, math.max(1, math.ceil(tonumber(C.z3_tensor_dim(h, d)) / n)), d)
end

--- Are the elements side by side in row-major order?
function methods.is_contiguous(t) return C.z3_tensor_contiguous(handle(t)) end

--- Itself when contiguous, else a contiguous copy.
function methods.contiguous(t)
  if C.z3_tensor_contiguous(handle(t)) then return t end
  return T.apply1(COPY, t)
end

--- An independent contiguous copy; differentiable.
function methods.clone(t)
  return T.apply1(COPY, t)
end

return { view = as_view }
