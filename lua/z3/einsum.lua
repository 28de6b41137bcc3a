--- einsum.lua -- sums of products by index letters, through permute, reshape and matmul: einsum('bij,bjk->bik', a, b).
-- Without '->' the result has the letters that occur once, in alphabetical order. '...' stands for leading dims.
-- Operands are contracted from left to right.
local err = require 'z3.error'
local T   = require 'z3.tensor_core'

local methods = T.methods
local DOTS = '01234567'                         -- letters that stand for the dims of '...', from the right

local function fail(code, fmt, ...) err.throw(code, 'einsum: ' .. fmt:format(...)) end

--- Labels of one operand as a sequence; '...' becomes as many digits as the tensor has dims left.
local function labels_of(text, t, k)
  local ndim, out = t.ndim, {}
  local before, after = text:match '^(.-)%.%.%.(.*)$'
  local letters = before and before .. after or text
  if letters:match '[^%a]' then fail('ARG', 'operand %d has the indices "%s", wants letters', k, text) end
  local extra = ndim - #letters
  if before and extra < 0 or not before and extra ~= 0 then
    fail('SHAPE', 'operand %d has %d dims, the indices "%s" name %d', k, ndim, text, #letters)
  end
  for c in (before or letters):gmatch '.' do out[#out + 1] = c end
  if before then
    for i = extra, 1, -1 do out[#out + 1] = DOTS:sub(i, i) end
    for c in after:gmatch '.' do out[#out + 1] = c end
  end
  return out
end

local function set_of(list)
  local s = {}
  for i, c in ipairs(list) do s[c] = i end
  return s
end

--- Labels of the result.
local function result_labels(text, all, count)
  local out, dots = {}, {}
  for i = #DOTS, 1, -1 do
    local c = DOTS:sub(i, i)
    if count[c] then dots[#dots + 1] = c end
  end
  if text then
    if text:gsub('%.%.%.', ''):match '[^%a]' then
      fail('ARG', 'the result has the indices "%s", wants letters', text)
    end
    local before, after = text:match '^(.-)%.%.%.(.*)$'
    for c in (before or text):gmatch '.' do out[#out + 1] = c end
    if before then
      for _, c in ipairs(dots) do out[#out + 1] = c end
      for c in after:gmatch '.' do out[#out + 1] = c end
    end
    for _, c in ipairs(out) do
      if not count[c] then fail('ARG', 'index "%s" of the result is in no operand', c) end
    end
    return out
  end
  for _, c in ipairs(dots) do out[#out + 1] = c end
  table.sort(all)
  for _, c in ipairs(all) do if count[c] == 1 and c:match '%a' then out[#out + 1] = c end end
  return out
end

--- An operand in work: { t =, labels =, own = it is ours to free }.
local function replaced(x, t, labels)
  if x.own and t ~= x.t then x.t:free() end
  return { t = t, labels = labels, own = t ~= x.t or x.own }
end

--- The diagonal of dims i and j (equal sizes, 1-based positions) as one last dim.
local function diagonal(x, i, j, k)
  local shape, order, n = x.t.shape, {}, x.t.shape[i]
  if shape[j] ~= n then fail('SHAPE', 'index "%s" has sizes %d and %d in operand %d', x.labels[i], n, shape[j], k) end
  local rest, labels = {}, {}
  for d, c in ipairs(x.labels) do
    if d ~= i and d ~= j then
      order[#order + 1], rest[#rest + 1], labels[#labels + 1] = d - 1, shape[d], c
    end
  end
  order[#order + 1], order[#order + 2] = i - 1, j - 1
  rest[#rest + 1], labels[#labels + 1] = n * n, x.labels[i]
  local turned = methods.permute(x.t, order)
  local flat = methods.reshape(turned, rest)
  local at = T.functions.arange(n, { dtype = 'i64', device = x.t.device })
  local positions = at * (n + 1)
  local out = methods.index_select(flat, -1, positions)
  for _, t in ipairs { turned, flat, at, positions } do t:free() end
  return replaced(x, out, labels)
end

--- An operand whose labels are all different.
local function without_repeats(x, k)
  local seen = {}
  for j, c in ipairs(x.labels) do
    if seen[c] then return without_repeats(diagonal(x, seen[c], j, k), k) end
    seen[c] = j
  end
  return x
end

--- Sums away the labels that `keep` says no to.
local function sum_away(x, keep)
  local dims, left = {}, {}
  for i, c in ipairs(x.labels) do
    if keep(c) then left[#left + 1] = c else dims[#dims + 1] = i - 1 end
  end
  if #dims == 0 then return x end
  return replaced(x, methods.sum(x.t, dims), left)
end

--- x with its dims in the order of `labels`, reshaped to `shape`.
local function arranged(x, labels, shape)
  local at, order = set_of(x.labels), {}
  for i, c in ipairs(labels) do order[i] = at[c] - 1 end
  local turned = methods.permute(x.t, order)
  local flat = methods.reshape(turned, shape)
  turned:free()
  if x.own then x.t:free() end
  return flat
end

local function product(sizes, labels)
  local n = 1
  for _, c in ipairs(labels) do n = n * sizes[c] end
  return n
end

local function concat(...)
  local out = {}
  for _, list in ipairs { ... } do for _, c in ipairs(list) do out[#out + 1] = c end end
  return out
end

--- Dims of size 1 that meet larger ones are repeated.
local function stretched(x, sizes)
  local shape, target, differs = x.t.shape, {}, false
  for i, c in ipairs(x.labels) do
    target[i] = sizes[c]
    if shape[i] ~= sizes[c] then differs = true end
  end
  return differs and replaced(x, methods.expand(x.t, target), x.labels) or x
end

--- Product of two operands; labels that `later` says no to are summed.
local function contract(a, b, sizes, later)
  local in_a, in_b = set_of(a.labels), set_of(b.labels)
  a = stretched(sum_away(a, function(c) return in_b[c] or later(c) end), sizes)
  b = stretched(sum_away(b, function(c) return in_a[c] or later(c) end), sizes)
  local batch, sum, only_a, only_b = {}, {}, {}, {}
  for _, c in ipairs(a.labels) do
    local list = not in_b[c] and only_a or later(c) and batch or sum
    list[#list + 1] = c
  end
  for _, c in ipairs(b.labels) do if not in_a[c] then only_b[#only_b + 1] = c end end
  local n, k = product(sizes, batch), product(sizes, sum)
  local left = arranged(a, concat(batch, only_a, sum), { n, product(sizes, only_a), k })
  local right = arranged(b, concat(batch, sum, only_b), { n, k, product(sizes, only_b) })
  local out = methods.matmul(left, right)
  left:free()
  right:free()
  local labels, shape = concat(batch, only_a, only_b), {}
  for i, c in ipairs(labels) do shape[i] = sizes[c] end
  local shaped = methods.view(out, shape)
  out:free()
  return { t = shaped, labels = labels, own = true }
end

local function parse(equation, operands)
  local text = equation:gsub('%s', '')
  local inputs, result = text:match '^(.-)%->(.*)$'
  inputs = inputs or text
  local xs, count, all, sizes = {}, {}, {}, {}
  for part in (inputs .. ','):gmatch '([^,]*),' do
    local k = #xs + 1
    if not operands[k] then fail('ARG', '"%s" names more operands than the %d given', equation, #operands) end
    local labels = labels_of(part, operands[k], k)
    for _, c in ipairs(labels) do
      if not count[c] then all[#all + 1] = c end
      count[c] = (count[c] or 0) + 1
    end
    local x = without_repeats({ t = operands[k], labels = labels, own = false }, k)
    local shape = x.t.shape
    for i, c in ipairs(x.labels) do
      local n = shape[i]
      if sizes[c] and sizes[c] ~= n and sizes[c] ~= 1 and n ~= 1 then
        fail('SHAPE', 'index "%s" has size %d in operand %d and %d before', c, n, k, sizes[c])
      end
      sizes[c] = math.max(sizes[c] or 1, n == 0 and 0 or n)
      if n == 0 then sizes[c] = 0 end
    end
    xs[k] = x
  end
  if #xs ~= #operands then fail('ARG', '"%s" names %d operands, %d are given', equation, #xs, #operands) end
  return xs, result_labels(result, all, count), sizes
end

--- einsum(equation, a, b, ...); a:einsum(equation, b, ...) is the same.
function methods.einsum(equation, ...)
  local operands = { ... }
  if T.is_like(equation) then equation, operands[1] = operands[1], equation end
  if type(equation) ~= 'string' then fail('ARG', 'the first argument is %s, wants a text', type(equation)) end
  for k, t in ipairs(operands) do T.ready(t, 'einsum: operand ' .. k) end
  local xs, result, sizes = parse(equation, operands)
  local wanted = set_of(result)
  local x = xs[1]
  for k = 2, #xs do
    local after = {}
    for j = k + 1, #xs do for _, c in ipairs(xs[j].labels) do after[c] = true end end
    x = contract(x, xs[k], sizes, function(c) return wanted[c] or after[c] end)
  end
  x = sum_away(x, function(c) return wanted[c] end)
  local at, order = set_of(x.labels), {}
  for i, c in ipairs(result) do order[i] = at[c] - 1 end
  local out = methods.permute(x.t, order)
  if x.own then x.t:free() end
  return out
end

return {}
