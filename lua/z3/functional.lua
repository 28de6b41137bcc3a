--- functional.lua -- z3.nn.functional: the operations that layers are made of.
-- Legend: N rows, V classes, C width, B batch, H query heads, K key/value heads, T queries, S keys, D head width.
local ffi  = require 'ffi'
local err  = require 'z3.error'
local nearest = require 'z3.nearest'
local opts = require 'z3.opts'
local rng  = require 'z3.random'
local C    = require('z3.ffi').C
local T    = require 'z3.tensor'
local math_ops = require 'z3.tensor_math'

local M = {}
local methods, handle, ready = T.methods, T.handle, T.ready

local LINEAR, EMBEDDING, LAYER_NORM, RMS_NORM = C.Z3OP_linear, C.Z3OP_embedding, C.Z3OP_layer_norm, C.Z3OP_rms_norm
local SWIGLU, DROPOUT, ROPE, ATTENTION = C.Z3OP_swiglu, C.Z3OP_dropout, C.Z3OP_rope, C.Z3OP_attention
local CROSS_ENTROPY, LINEAR_CROSS_ENTROPY = C.Z3OP_cross_entropy, C.Z3OP_linear_cross_entropy

--- Throws ARG for a key of `o` that isn't in `known` (key -> type, or true for any) and for a value of another type; o
-- may be nil.
local function check_options(o, known, what)
  if o == nil then return end
  if type(o) ~= 'table' then err.throw('ARG', ('%s: options are %s, wants a table'):format(what, opts.show(o))) end
  for k, v in pairs(o) do
    local want = known[k]
    if not want then
      err.throw('ARG', ('%s: unknown option "%s"%s'):format(what, tostring(k), nearest.hint(k, nearest.keys(known))))
    end
    if want ~= true and type(v) ~= want then
      err.throw('ARG', ('%s: %s is %s, wants a %s'):format(what, k, opts.show(v), want))
    end
  end
end

-- ---- layers --------------------------------------------------------------------------------------

local function linear(x, w, b, in_out, what)
  ready(x, what)
  ready(w, what)
  if b ~= nil then ready(b, what) end
  if in_out then T.attr().i[0] = 1 end
  if b == nil then return T.apply2(LINEAR, x, w) end
  return T.apply3(LINEAR, x, w, b)
end

--- y = x W^T + b. x (..., in), w (out, in), b (out) or nil.
function M.linear(x, w, b) return linear(x, w, b, false, 'linear') end

--- y = x W + b. w (in, out), as in GPT-2's files; b (out) or nil.
function M.conv1d(x, w, b) return linear(x, w, b, true, 'conv1d') end

--- Rows of w (V,C) by ids (any shape, i32 or i64); an id out of range is an ARG error.
function M.embedding(ids, w) return T.apply2(EMBEDDING, ids, w) end

--- Layer norm over the last dim; w and b (C) may be nil. eps = 1e-5.
function M.layer_norm(x, w, b, eps)
  ready(x, 'layer_norm')
  if w ~= nil then ready(w, 'layer_norm') end
  if b ~= nil then ready(b, 'layer_norm') end
  eps = eps and opts.want_number(eps, 'layer_norm', 'eps') or 1e-5
  T.attr().f[0] = eps
  return T.apply3(LAYER_NORM, x, w, b)
end

--- RMS norm over the last dim; w (C) may be nil. eps = 1e-6.
function M.rms_norm(x, w, eps)
  ready(x, 'rms_norm')
  if w ~= nil then ready(w, 'rms_norm') end
  eps = eps and opts.want_number(eps, 'rms_norm', 'eps') or 1e-6
  T.attr().f[0] = eps
  if w == nil then return T.apply1(RMS_NORM, x) end
  return T.apply2(RMS_NORM, x, w)
end

--- GELU: 'erf' (exact; the default, as in PyTorch) or 'tanh'.
M.gelu = methods.gelu
M.silu = methods.silu
M.relu = methods.relu
M.tanh = methods.tanh
M.sigmoid = methods.sigmoid
--- Softmax along dim (the last unless given).
M.softmax = methods.softmax
M.log_softmax = methods.log_softmax

--- silu(gate) * up.
function M.swiglu(gate, up) return T.apply2(SWIGLU, gate, up) end

--- Zeroes each element with probability p and scales the rest by 1/(1-p). The mask depends on (seed, step, micro-batch,
-- call, element) only, so recomputation repeats it.
-- @bool[opt=true] training  false: x itself
function M.dropout(x, p, training)
  if type(p) ~= 'number' or not (p >= 0 and p <= 1) then
    err.throw('ARG', ('dropout: p is %s, wants 0 to 1'):format(tostring(p)))
  end
  if training == false or p == 0 then return x end
  ready(x, 'dropout')
  local key = rng.next_key 'dropout'
  local a = T.attr()
  a.f[0], a.i[0] = p, ffi.cast('int64_t', key)
  return T.apply1(DROPOUT, x)
end

-- ---- attention -----------------------------------------------------------------------------------

local ROPE_OPTIONS = { theta = 'number', positions = true, scaling = 'table', start = 'number' }

--- Positions as (B,T) i32, and how many rows of the table they need.
local function read_positions(positions, shape)
  local made
  ready(positions, 'rope: positions')
  if positions.ndim == 1 then
    local wide = methods.expand(positions, shape[1], shape[3])
    positions, made = wide, wide
  end
  if positions.dtype ~= 'i32' then
    local narrow = methods.cast(positions, 'i32')
    if made then made:free() end
    positions, made = narrow, narrow
  end
  if positions.device == 'null' or positions:numel() == 0 then return positions, shape[3], made end
  local most, least = positions:max(), positions:min()
  local last, first = most:item(), least:item()
  most:free()
  least:free()
  if first < 0 then err.throw('ARG', ('rope: a position is %d, wants >= 0'):format(first)) end
  return positions, last + 1, made
end

--- Rotary positions: dim i turns with dim i + D/2. x (B,H,T,D).
-- @tab[opt] o  theta (10000), positions (B,T) or (T) (else start, start+1, ...; start = 0),
--   scaling: the rope_scaling table of a Hugging Face config (default, linear, llama3)
function M.rope(x, o)
  check_options(o, ROPE_OPTIONS, 'rope')
  o = o or {}
  local h = handle(x, 'rope')
  local shape = T.shape_of(h)
  if #shape ~= 4 then err.throw('SHAPE', ('rope: x is %s, wants (B,H,T,D)'):format(T.shape_text(shape))) end
  local theta = o.theta or o.scaling and o.scaling.rope_theta or 10000
  err.require_arg(type(theta) == 'number' and theta > 0, 'rope: theta is %s, wants a number above 0', tostring(theta))
  local start = o.start or 0
  local length, positions, made = start + shape[3], nil, nil
  if o.positions then positions, length, made = read_positions(o.positions, shape) end
  local cos_sin = require('z3.rope_table').get(theta, o.scaling, shape[4], length, C.z3_tensor_device(h))
  T.attr().i[0] = positions and 0 or start
  local out = positions and T.apply3(ROPE, x, cos_sin, positions) or T.apply2(ROPE, x, cos_sin)
  if made then made:free() end
  return out
end

local ATTENTION_OPTIONS = { causal = true, mask = true, scale = 'number' }

--- softmax(q k^T * scale) v per head. q (B,H,T,D), k and v (B,K,S,D): query head h uses key head h div (H/K).
-- A query that sees no key gives 0 and no gradient.
-- @tab[opt] o  causal (query t sees keys <= t), mask (u8, broadcasts to (B,H,T,S), 1 = visible; combined with causal),
--   scale (1/sqrt(D))
function M.scaled_dot_product_attention(q, k, v, o)
  check_options(o, ATTENTION_OPTIONS, 'scaled_dot_product_attention')
  local h = handle(q, 'scaled_dot_product_attention')
  local n = C.z3_tensor_ndim(h)
  local scale = o and o.scale or n > 0 and 1 / math.sqrt(tonumber(C.z3_tensor_dim(h, n - 1))) or 1
  local causal = o and o.causal and 1 or 0
  if not (o and o.mask ~= nil) then
    ready(k, 'scaled_dot_product_attention')
    ready(v, 'scaled_dot_product_attention')
    local a = T.attr()
    a.f[0], a.i[0] = scale, causal
    return T.apply3(ATTENTION, q, k, v)
  end
  local mask, made = math_ops.mask(o.mask)
  local out = T.apply(ATTENTION, { q, k, v, mask }, function(a) a.f[0], a.i[0] = scale, causal end)
  if made then mask:free() end
  return out
end

-- ---- losses --------------------------------------------------------------------------------------

local LOSS_OPTIONS = { ignore_index = 'number', reduction = true }
local REDUCTION = { sum = C.Z3RED_SUM, mean = C.Z3RED_MEAN, none = C.Z3RED_NONE }

--- Checks the options and returns ignore_index and the reduction's name and number.
local function read_loss(o, what)
  check_options(o, LOSS_OPTIONS, what)
  local ignore, reduction = o and o.ignore_index or -100, o and o.reduction or 'mean'
  local number = REDUCTION[reduction]
  if not number then
    err.throw('ARG', ('%s: reduction is %s%s'):format(what, tostring(reduction),
      nearest.hint(reduction, { 'mean', 'none', 'sum' })))
  end
  return ignore, reduction, number
end

--- (..., n) as (N, n), or x itself when it has two dims. -> x, whether it is new
local function as_rows(x)
  local shape = T.shape_of(handle(x))
  if #shape == 2 then return x, false end
  if #shape == 0 then err.throw('SHAPE', 'cross_entropy: the first argument has no dims') end
  local rows = 1
  for i = 1, #shape - 1 do rows = rows * shape[i] end
  return methods.reshape(x, rows, shape[#shape]), true
end

--- How many targets counted, as a number. Without data (the null device) all of them.
local function count_of(count, targets)
  local n = count.device == 'null' and methods.numel(targets) or count:item()
  count:free()
  return n
end

local function loss(op, x, w, targets, o, what)
  local ignore, reduction, number = read_loss(o, what)
  local x_NC, new_x = as_rows(x)
  local target_shape = T.shape_of(handle(targets, what))
  local targets_N = #target_shape == 1 and targets or methods.reshape(targets, -1)
  local inputs = w == nil and { x_NC, targets_N } or { x_NC, w, targets_N }
  local value, count = T.apply(op, inputs, function(a) a.i[0], a.i[1] = ignore, number end, 2)
  if new_x then x_NC:free() end
  if targets_N ~= targets then targets_N:free() end
  if reduction == 'sum' then return value, count_of(count, targets) end
  count:free()
  if reduction == 'none' and #target_shape ~= 1 then
    local shaped = methods.view(value, target_shape)
    value:free()
    return shaped
  end
  return value
end

--- Cross-entropy of logits (N,V) or (...,V) and targets (N) or (...), i32 or i64; in f32 whatever the logits are.
-- @tab[opt] o  ignore_index (-100), reduction: 'mean' over the targets that count, 'sum' (returns the sum and their
--   number), 'none' (one loss per target)
-- @raise ARG for a target out of range
function M.cross_entropy(logits, targets, o) return loss(CROSS_ENTROPY, logits, nil, targets, o, 'cross_entropy') end

--- The same for logits x W^T, which are never held as a whole. x (N,C) or (...,C), w (V,C).
function M.linear_cross_entropy(x, w, targets, o)
  ready(w, 'linear_cross_entropy')
  return loss(LINEAR_CROSS_ENTROPY, x, w, targets, o, 'linear_cross_entropy')
end

--- Mean of the squared differences. Shapes must be equal.
function M.mse_loss(x, y)
  if type(y) ~= 'number' then
    local a, b = T.shape_of(handle(x, 'mse_loss')), T.shape_of(handle(y, 'mse_loss'))
    if not T.same_shape(a, b) then
      err.throw('SHAPE', ('mse_loss: x is %s, y is %s; wants equal shapes'):format(T.shape_text(a), T.shape_text(b)))
    end
  end
  local d = methods.sub(x, y)
  local sq = d * d
  local m = sq:mean()
  d:free()
  sq:free()
  return m
end

return M
