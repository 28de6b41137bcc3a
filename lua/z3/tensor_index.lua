--- tensor_index.lua -- picking and putting together: gather, index_select, cat, stack, tril; writing in place.
local err   = require 'z3.error'
local check = require 'z3.check'
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

--- Tensors one after another along dim (0 unless given).
-- @tab list  sequence of tensors with equal dtypes and equal sizes elsewhere
function methods.cat(list, dim)
  if type(list) ~= 'table' or #list == 0 then err.throw('ARG', 'cat: wants a table of at least one tensor') end
  dim = dim_of(dim or 0, C.z3_tensor_ndim(handle(list[1], 'cat')), 'cat')
  return T.apply(C.Z3OP_cat, list, function(a) a.i[0] = dim end)
end

--- Tensors of one shape side by side along a new dim (0 unless given).
function methods.stack(list, dim)
  if type(list) ~= 'table' or #list == 0 then err.throw('ARG', 'stack: wants a table of at least one tensor') end
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
  T.attr().i[0] = diagonal or 0
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
