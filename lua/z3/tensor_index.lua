--- tensor_index.lua -- picking and putting together: gather, index_select, cat, stack, tril; writing in place.
local err   = require 'z3.error'
local check = require 'z3.check'
local opts  = require 'z3.opts'
local C     = require('z3.ffi').C
local T     = require 'z3.tensor_core'

local methods = T.methods
local handle, ready, dim_of = T.handle, T.ready, T.dim

--- out[i][j] = t[ids[i][j]][j] for dim 0, and so on: ids (i32 or i64) has as many dims as t.
function methods.gather(t, dim, ids)
  dim = dim_of(dim, C.z3_tensor_ndim(handle(t)), 'gather')
  ready(ids, 'gather')
  T.attr().i[0] = dim
  return T.apply2(C.Z3OP_gather, t, ids)
end

--- The entries `ids` (one dim, i32 or i64, or a table of numbers) of dim `dim`.
function methods.index_select(t, dim, ids)
  local h = handle(t)
  dim = dim_of(dim, C.z3_tensor_ndim(h), 'index_select')
  local made
  if type(ids) == 'table' and not T.is_like(ids) then
    made = T.functions.tensor(ids, { dtype = 'i64' })
    ids = made
  end
  ready(ids, 'index_select')
  T.attr().i[0] = dim
  local out = T.apply2(C.Z3OP_index_select, t, ids)
  if made then made:free() end
  return out
end

--- A list of tensors and a dim from the forms f({a, b}, dim), a:f({b, ...}, dim) and a:f(b, dim).
local function read_list(what, list, more, dim)
  if T.is_like(list) then
    local all = { list }
    if T.is_like(more) then more = { more } end
    for i, t in ipairs(type(more) == 'table' and more or {}) do all[i + 1] = t end
    list = all
  else dim = more end
  if type(list) ~= 'table' or #list == 0 then err.throw('ARG', what .. ': wants a table of at least one tensor') end
  return list, dim
end

--- The list in one dtype and without tensors of shape (0,), which fit anywhere (a table that grows starts with one),
-- and the tensors that were made for it.
local function made_equal(list)
  local dtype, mixed, void, vectors = nil, false, 0, 0
  for _, t in ipairs(list) do
    local h = handle(t, 'cat')
    local own = C.z3_tensor_dtype(h)
    mixed = mixed or dtype ~= nil and own ~= dtype
    dtype = dtype and T.promoted(dtype, own) or own
    local vector = C.z3_tensor_ndim(h) == 1
    if vector then vectors = vectors + 1 end
    if vector and C.z3_tensor_dim(h, 0) == 0 then void = void + 1 end
  end
  local drop = void > 0 and vectors < #list
  if not mixed and not drop then return list, nil end
  local out, made = {}, {}
  for _, t in ipairs(list) do
    local h = handle(t)
    if not (drop and C.z3_tensor_ndim(h) == 1 and C.z3_tensor_dim(h, 0) == 0) then
      if C.z3_tensor_dtype(h) ~= dtype then
        t = methods.cast(t, T.dtype_name(dtype))
        made[#made + 1] = t
      end
      out[#out + 1] = t
    end
  end
  return out, made
end

local MANY = 1024                               -- inputs that the operation takes

--- cat of any number of tensors: by groups where there are many.
local function join(parts, dim)
  if #parts <= MANY then return T.apply(C.Z3OP_cat, parts, function(a) a.i[0] = dim end) end
  local groups = {}
  for first = 1, #parts, MANY do
    groups[#groups + 1] = join({ unpack(parts, first, math.min(#parts, first + MANY - 1)) }, dim)
  end
  local out = join(groups, dim)
  for _, t in ipairs(groups) do t:free() end
  return out
end

--- Tensors one after another along dim (0 unless given). Dtypes are promoted as by operators.
-- @tab list  sequence of tensors with equal sizes elsewhere; a:cat({b, ...}, dim) and a:cat(b, dim) are the same
function methods.cat(list, dim, last)
  list, dim = read_list('cat', list, dim, last)
  local parts, made = made_equal(list)
  dim = dim_of(dim or 0, C.z3_tensor_ndim(handle(parts[1])), 'cat')
  local out = join(parts, dim)
  for _, t in ipairs(made or {}) do t:free() end
  return out
end

--- Tensors of one shape side by side along a new dim (0 unless given); the forms are those of cat.
function methods.stack(list, dim, last)
  list, dim = read_list('stack', list, dim, last)
  for _, t in ipairs(list) do ready(t, 'stack') end
  local parts, shape = {}, list[1].shape
  for i, t in ipairs(list) do
    if not T.same_shape(t.shape, shape) then
      err.throw('SHAPE', ('stack: tensor %d is %s, the first is %s'):format(i - 1, T.shape_text(t.shape),
        T.shape_text(shape)))
    end
    parts[i] = methods.unsqueeze(t, dim or 0)
  end
  local out = methods.cat(parts, dim and dim < 0 and dim + #shape + 1 or dim)
  for _, p in ipairs(parts) do p:free() end
  return out
end

--- Lower triangle of the last two dims, zeros above the diagonal (0 unless given; 1 is one above).
function methods.tril(t, diagonal)
  ready(t)
  diagonal = opts.want_number(diagonal or 0, 'tril', 'diagonal', true)
  T.attr().i[0] = diagonal
  return T.apply1(C.Z3OP_tril, t)
end

--- Writes src (a tensor that broadcasts to t's shape, or a number) into t, converting. Not recorded by autograd.
function methods.copy_(t, src)
  if type(src) == 'number' then return methods.fill_(t, src) end
  check(C.z3_tensor_copy(handle(t), handle(src, 'copy_')), 'copy_')
  return t
end

--- Writes one value everywhere. Not recorded by autograd.
function methods.fill_(t, v)
  if type(v) == 'boolean' then v = v and 1 or 0 end
  if type(v) ~= 'number' then err.throw('ARG', ('fill_: the value is %s, wants a number'):format(tostring(v))) end
  check(C.z3_tensor_fill(handle(t), v), 'fill_')
  return t
end

--- Writes zeros.
function methods.zero_(t) return methods.fill_(t, 0) end

return {}
