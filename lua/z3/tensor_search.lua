--- tensor_search.lua -- sort, argsort, topk, multinomial. The positions are found on the host; values are gathered by
-- them, so gradients flow. nan counts as the largest value, equal values keep their order (as PyTorch's stable sort).
local ffi   = require 'ffi'
local err   = require 'z3.error'
local check = require 'z3.check'
local rng   = require 'z3.random'
local C     = require('z3.ffi').C
local T     = require 'z3.tensor_core'

local methods = T.methods
local POINTER = ffi.new 'void *[1]'

-- Does b come strictly before a?
local function rises(a, b) return b < a or a ~= a and b == b end
local function falls(a, b) return b > a or b ~= b and a == a end

--- Stable merge sort of positions 0..n-1 by value. pos, spare: int32_t[n]. Returns the one that holds the result.
local function merge_sort(value, n, pos, spare, before)
  for i = 0, n - 1 do pos[i] = i end
  local width = 1
  while width < n do
    for left = 0, n - 1, 2 * width do
      local mid, right = math.min(left + width, n), math.min(left + 2 * width, n)
      local i, j = left, mid
      for k = left, right - 1 do
        if j < right and (i >= mid or before(value[pos[i]], value[pos[j]])) then
          spare[k] = pos[j]
          j = j + 1
        else
          spare[k] = pos[i]
          i = i + 1
        end
      end
    end
    pos, spare = spare, pos
    width = 2 * width
  end
  return pos
end

--- Rows of t along `dim` as a contiguous (..., n) tensor without history, and its shape.
local function rows_of(t, dim)
  local plain = methods.detach(t)
  local turned = methods.transpose(plain, dim, -1)
  local rows = methods.clone(turned)
  plain:free()
  turned:free()
  return rows
end

local function i64_data(t)
  check(C.z3_tensor_data(t.h, POINTER))
  return ffi.cast('int64_t *', POINTER[0])
end

--- Positions of the first k in sorted order along dim: i64, not recorded.
local function order(t, dim, k, descending)
  local rows = rows_of(t, dim)
  local shape = rows.shape
  local n = shape[#shape]
  shape[#shape] = k
  local out = T.new(C.Z3T_I64, C.z3_tensor_device(rows.h), shape)
  if C.z3_tensor_device(rows.h) == C.Z3D_CPU and out:numel() > 0 then
    local read, p = require('z3.tensor_host').reader(rows), i64_data(out)
    local value, pos, spare = ffi.new('double[?]', n), ffi.new('int32_t[?]', n), ffi.new('int32_t[?]', n)
    for r = 0, rows:numel() / n - 1 do
      for i = 0, n - 1 do value[i] = read(r * n + i) end
      local sorted = merge_sort(value, n, pos, spare, descending and falls or rises)
      for i = 0, k - 1 do p[r * k + i] = sorted[i] end
    end
  elseif out:numel() > 0 then
    methods.fill_(out, 0)
  end
  rows:free()
  local back = methods.transpose(out, dim, -1)
  local result = methods.contiguous(back)
  if result ~= back then back:free() end
  out:free()
  return result
end

local function read_dim(t, dim, what) return T.dim(dim or -1, C.z3_tensor_ndim(T.handle(t)), what) end

--- Runs fn on a tensor without dims as if it had one.
local function as_one(fn, t, ...)
  local row = methods.unsqueeze(t, 0)
  local values, positions = fn(row, ...)
  return methods.view(values, {}), positions and methods.view(positions, {})
end

--- Sorted values along dim (the last unless given) and their positions (i64).
function methods.sort(t, dim, descending)
  dim = read_dim(t, dim, 'sort')
  if C.z3_tensor_ndim(T.handle(t)) == 0 then return as_one(methods.sort, t, 0, descending) end
  local positions = order(t, dim, t.shape[dim + 1], descending)
  return methods.gather(t, dim, positions), positions
end

--- The positions alone.
function methods.argsort(t, dim, descending)
  dim = read_dim(t, dim, 'argsort')
  if C.z3_tensor_ndim(T.handle(t)) == 0 then return (as_one(methods.argsort, t, 0, descending)) end
  return order(t, dim, t.shape[dim + 1], descending)
end

--- The k largest values along dim (the last unless given), largest first, and their positions. largest=false: the
-- smallest.
function methods.topk(t, k, dim, largest)
  dim = read_dim(t, dim, 'topk')
  if C.z3_tensor_ndim(T.handle(t)) == 0 then return as_one(methods.topk, t, k, 0, largest) end
  local n = t.shape[dim + 1]
  if type(k) ~= 'number' or k % 1 ~= 0 or k < 0 or k > n then
    err.throw('ARG', ('topk: k is %s, dim %d has %d entries'):format(tostring(k), dim, n))
  end
  local positions = order(t, dim, k, largest ~= false)
  return methods.gather(t, dim, positions), positions
end

--- Draws n positions from weights w[0..V-1] into out.
local function draw(w, V, n, replacement, uniform, out, row)
  local total, positive = 0, 0
  for i = 0, V - 1 do
    local v = w[i]
    if not (v >= 0 and v < math.huge) then
      err.throw('ARG', ('multinomial: weight %d of row %d is %s, wants a finite number >= 0'):format(i, row,
        tostring(v)))
    end
    total = total + v
    if v > 0 then positive = positive + 1 end
  end
  if positive == 0 or not replacement and n > positive then
    err.throw('ARG', ('multinomial: %d draws, row %d has %d weights above 0'):format(n, row, positive))
  end
  for k = 0, n - 1 do
    local target, sum, pick = uniform() * total, 0, 0
    for i = 0, V - 1 do
      if w[i] > 0 then
        sum, pick = sum + w[i], i
        if sum > target then break end
      end
    end
    out[k] = pick
    if not replacement then
      w[pick] = 0
      total = 0                                 -- added up afresh: subtracting would leave rounding behind
      for i = 0, V - 1 do total = total + w[i] end
    end
  end
end

--- n positions drawn with probability proportional to the weights in each row: (V) -> (n), (N,V) -> (N,n), i64.
-- The draws are the next call of the stream that z3.manual_seed starts.
-- @bool[opt] replacement  a position may come more than once
function methods.multinomial(t, n, replacement)
  local shape = T.ready(t, 'multinomial').shape
  n = n or 1
  if #shape < 1 or #shape > 2 then
    err.throw('SHAPE', ('multinomial: the weights are %s, wants (V) or (N,V)'):format(T.shape_text(shape)))
  end
  err.require_arg(type(n) == 'number' and n >= 1 and n % 1 == 0, 'multinomial: %s draws, wants at least 1', tostring(n))
  local V, N = shape[#shape], shape[2] and shape[1] or 1
  local out = T.new(C.Z3T_I64, C.z3_tensor_device(t.h), #shape == 1 and { n } or { N, n })
  if t.device == 'null' then return out end
  local rows = rows_of(t, -1)
  local read, p, w = require('z3.tensor_host').reader(rows), i64_data(out), ffi.new('double[?]', V)
  local uniform = rng.stream(rng.next_key 'sample')
  for r = 0, N - 1 do
    for i = 0, V - 1 do w[i] = read(r * V + i) end
    draw(w, V, n, replacement, uniform, p + r * n, r)
  end
  rows:free()
  return out
end

return {}
