--- generate.lua -- z3.generate: new tokens after given ones, with a cache of keys and values.
-- Legend: V vocabulary. Sources: Fan et al. 2018 (top-k), Holtzman et al. 2020 (top-p).
local ffi      = require 'ffi'
local err      = require 'z3.error'
local handle   = require 'z3.handle'
local opts     = require 'z3.opts'
local rng      = require 'z3.random'
local autograd = require 'z3.autograd'
local T        = require 'z3.tensor'
local walk     = require 'z3.nn.walk'

local M = {}

local PURPOSE = 0x67656e                               -- separates this stream from others of the same seed

local OPTIONS = { max_new_tokens = 100, temperature = 0, top_k = opts.integer, top_p = opts.number, seed = opts.integer,
                  stop = opts.any, on_token = opts.func }

-- ---- choosing a token ----------------------------------------------------------------------------

local function not_finite()
  err.throw('OVERFLOW', 'generate: the logits are not finite (nan): the weights are broken or have diverged')
end

local function argmax(logit_V, n)
  local best = 0
  for i = 1, n - 1 do
    if logit_V[i] > logit_V[best] then best = i end
  end
  if logit_V[best] ~= logit_V[best] then not_finite() end
  return best
end

-- Restores the heap below position i: the largest weight is at the root, of equals the lowest id.
local function sift(heap, weight_V, i, n)
  local id = heap[i]
  local w = weight_V[id]
  while 2 * i + 1 < n do
    local child = 2 * i + 1
    if child + 1 < n then
      local l, r = heap[child], heap[child + 1]
      if weight_V[r] > weight_V[l] or weight_V[r] == weight_V[l] and r < l then child = child + 1 end
    end
    local c = heap[child]
    if weight_V[c] < w or weight_V[c] == w and c > id then break end
    heap[i] = c
    i = child
  end
  heap[i] = id
end

-- The likeliest ids, best first: at most k, and no more than needed to reach share p of all weight; their weight.
local function likeliest(weight_V, n, total, k, p)
  local heap = ffi.new('int32_t[?]', n)
  for i = 0, n - 1 do heap[i] = i end
  for i = math.floor(n / 2) - 1, 0, -1 do sift(heap, weight_V, i, n) end
  local ids, sum, left = {}, 0, n
  local enough = k and math.huge or p * total           -- with top_k, p counts shares of what top_k left
  while left > 0 and #ids < (k or n) and sum < enough do
    local id = heap[0]
    ids[#ids + 1], sum, left = id, sum + weight_V[id], left - 1
    heap[0] = heap[left]
    if left > 1 then sift(heap, weight_V, 0, left) end
  end
  if k and p < 1 then
    local kept, part = 0, 0
    repeat
      kept = kept + 1
      part = part + weight_V[ids[kept]]
    until part >= p * sum or kept == #ids
    for i = #ids, kept + 1, -1 do ids[i] = nil end
    sum = part
  end
  return ids, sum
end

-- Draws from softmax(logits / temperature), restricted by top_k and top_p. u: uniform in [0, 1).
local function draw(logit_V, n, o, weight_V, u)
  local best = argmax(logit_V, n)
  local top, total = logit_V[best], 0
  for i = 0, n - 1 do
    local w = math.exp((logit_V[i] - top) / o.temperature)
    if w ~= w then not_finite() end
    weight_V[i] = w
    total = total + w
  end
  if o.top_k or (o.top_p and o.top_p < 1) then
    local ids, sum = likeliest(weight_V, n, total, o.top_k, o.top_p or 1)
    local at = u * sum
    for _, id in ipairs(ids) do
      at = at - weight_V[id]
      if at < 0 then return id end
    end
    return ids[1]
  end
  local at, last = u * total, best
  for i = 0, n - 1 do
    if weight_V[i] > 0 then
      at, last = at - weight_V[i], i
      if at < 0 then return i end
    end
  end
  return last
end

--- A function(logits (V,) f32 contiguous) -> id for sampling options; also for programs with loops of their own.
-- @tab o  temperature, top_k, top_p, seed as in z3.generate
function M.sampler(o)
  if o.temperature == 0 then
    return function(logits) return argmax(logits:data 'r', logits:numel()) end
  end
  local key = o.seed and rng.key(o.seed, PURPOSE) or rng.next_key 'sample'
  local uniform, weight_V, room = rng.stream(key), nil, 0
  return function(logits)
    local n = logits:numel()
    if room < n then weight_V, room = ffi.new('double[?]', n), n end
    return draw(logits:data 'r', n, o, weight_V, uniform())
  end
end

-- ---- stopping ------------------------------------------------------------------------------------

-- Does `ids` end with `tail`?
local function ends_with(ids, tail)
  local n = #ids - #tail
  if n < 0 then return false end
  for i = 1, #tail do if ids[n + i] ~= tail[i] then return false end end
  return true
end

-- stop as function(new ids) -> boolean. Given: an id, a list of ids and of lists of ids, or such a function.
local function stopper(stop)
  if stop == nil then return function() return false end end
  if type(stop) == 'function' then return stop end
  local single, tails = {}, {}
  for _, s in ipairs(type(stop) == 'table' and stop or { stop }) do
    if type(s) == 'number' then single[s] = true
    elseif type(s) == 'table' and type(s[1]) == 'number' then tails[#tails + 1] = s
    else
      err.throw('ARG', ('generate: stop has %s, wants ids or lists of ids (encode texts with the tokenizer)'):format(
        opts.show(s)))
    end
  end
  return function(ids)
    if single[ids[#ids]] then return true end
    for _, tail in ipairs(tails) do if ends_with(ids, tail) then return true end end
    return false
  end
end

-- ---- running the model ---------------------------------------------------------------------------

-- The last row of logits as a contiguous f32 tensor without history.
local function last_row(logits)
  local shape = T.is_like(logits) and logits.shape or {}
  if #shape ~= 3 or shape[1] ~= 1 or shape[2] < 1 then
    err.throw('SHAPE', ('generate: the model returned %s, wants logits (1,T,V)'):format(
      T.is_like(logits) and T.shape_text(shape) or type(logits)))
  end
  local row = logits:select(1, shape[2] - 1)
  local out = T.copy_of(row, 'f32')
  row:free()
  logits:free()
  return out
end

local function run(model, ids, from, cache)
  local piece = {}
  for i = from, #ids do piece[#piece + 1] = ids[i] end
  local tokens = T.functions.tensor({ piece }, { dtype = 'i32' })
  local logits = model({ tokens = tokens, cache = cache, last = true })
  tokens:free()
  return last_row(logits)
end

-- function(ids) -> logits of what follows. As long as all ids fit into the context, only the new ones are run. Beyond
-- it the window slides: positions of everything change with each token, so all of the window is run.
local function forward_of(model, n_ctx, total, state)
  local done = 0
  if not model.new_cache then
    return function(ids) return run(model, ids, math.max(1, #ids - n_ctx + 1)) end
  end
  state.cache = model:new_cache(1, math.min(n_ctx, total))
  return function(ids)
    if #ids > n_ctx then return run(model, ids, #ids - n_ctx + 1) end
    local logits = run(model, ids, done + 1, state.cache)
    done = #ids
    return logits
  end
end

local function free_cache(cache)
  for _, layer in ipairs(cache or {}) do
    layer.k:free()
    layer.v:free()
  end
end

local function loop(model, ids, n_ctx, o, state)
  local all, new = {}, {}
  for i, id in ipairs(ids) do all[i] = id end
  local choose, stop = M.sampler(o), stopper(o.stop)
  -- The last token is never run itself, so the cache needs no room for it.
  local forward = forward_of(model, n_ctx, #ids + o.max_new_tokens - 1, state)
  for n = 1, o.max_new_tokens do
    local logits = forward(all)
    local id = choose(logits)
    logits:free()
    all[#all + 1], new[n] = id, id
    local go_on = true
    if o.on_token then go_on = handle.outside(o.on_token, id, n) end
    if go_on == false or stop(new) then break end
  end
  return new
end

-- ---- arguments -----------------------------------------------------------------------------------

local function read_ids(ids)
  if T.is_like(ids) then
    if ids.ndim ~= 1 then
      err.throw('SHAPE', ('generate: ids are %s, wants a list or (T,)'):format(T.shape_text(ids.shape)))
    end
    ids = ids:totable()
  end
  local ok = type(ids) == 'table' and #ids > 0
  err.require_arg(ok, 'generate: wants at least one id to start from (a list or a tensor (T,))')
  for i, id in ipairs(ids) do
    if type(id) ~= 'number' or id % 1 ~= 0 or id < 0 then
      err.throw('ARG', ('generate: id %d is %s, wants a whole number >= 0'):format(i - 1, opts.show(id)))
    end
  end
  return ids
end

local function read_options(o)
  o = opts.read(o, OPTIONS, 'generate')
  local function want(ok, key, range)
    if not ok then err.throw('ARG', ('generate: %s is %s, wants %s'):format(key, tostring(o[key]), range)) end
  end
  want(o.max_new_tokens >= 0 and o.max_new_tokens % 1 == 0, 'max_new_tokens', 'a whole number >= 0')
  want(o.temperature >= 0 and o.temperature < math.huge, 'temperature', 'a number >= 0')
  want(not o.top_k or o.top_k >= 1, 'top_k', 'a whole number >= 1')
  want(not o.top_p or o.top_p > 0 and o.top_p <= 1, 'top_p', '0 < p <= 1')
  return o
end

local function finish(was_training, state, ok, ...)
  for _, m in ipairs(was_training) do rawset(m, 'training', true) end
  free_cache(state.cache)
  if not ok then error(..., 0) end
  return ...
end

--- Generates tokens after `ids`; returns the new ones only.
-- @tparam Module model  called with { tokens = (1,T) }, returns logits (1,T,V); runs in eval mode, restored at the end
-- @param ids            list of ids, or a tensor (T,)
-- @tab[opt] o
--   max_new_tokens  at most so many (100)
--   temperature     0 (default): always the likeliest token; else logits are divided by it and one is drawn
--   top_k, top_p    draws among the k likeliest; among the fewest whose probabilities reach p
--   seed            of the draws; without it, the stream of z3.manual_seed goes on
--   stop            an id, a list of ids or of id sequences, or function(new ids) -> true; what stopped it comes too
--   on_token        function(id, n) called for each new token; returning false stops
-- Beyond the model's n_ctx it goes on with the newest n_ctx tokens.
-- @raise ARG: a prompt longer than n_ctx, bad options
function M.generate(model, ids, o)
  err.require_arg(walk.is_module(model), 'generate: the first argument is %s, wants a model', type(model))
  ids, o = read_ids(ids), read_options(o)
  local n_ctx = type(model.options) == 'table' and model.options.n_ctx or model.n_ctx or math.huge
  if #ids > n_ctx then
    err.throw('ARG', ('generate: the prompt has %d tokens, n_ctx is %d'):format(#ids, n_ctx))
  end
  if o.max_new_tokens == 0 then return {} end
  local was_training, state = {}, {}
  for _, m in model:modules() do
    if m.training then was_training[#was_training + 1] = m end
  end
  model:eval()
  return finish(was_training, state, pcall(autograd.no_grad, loop, model, ids, n_ctx, o, state))
end

return M
