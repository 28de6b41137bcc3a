-- decoder.lua -- what the decoder models share: reading a batch, the loss at the end, the cache of keys and values.
-- Legend: B batch, T time, C width, V vocabulary, K key/value heads, D head width.
local z3  = require 'z3'
local err = require 'z3.error'

local F = z3.nn.functional
local grad_enabled = require('z3.autograd').is_grad_enabled
local is_like = require('z3.tensor').is_like

local M = {}

-- A field of a batch as a tensor; a plain table (of ids, say) isn't one.
local function want_tensor(t, name)
  if not is_like(t) then
    err.throw('ARG', ('%s are a %s, wants a tensor (B,T) of integers: z3.tensor(ids, { dtype = \'i32\' })'):format(name,
      type(t)))
  end
end

--- Tokens of a batch, checked against the model.
-- @tparam Module model  with options.n_ctx
-- @param batch          { tokens = (B,T) integers [, targets = (B,T)] [, cache =] [, last = true] }
-- @tparam[opt] table cache
-- @return tokens, B, T, first position, cache
-- @raise ARG: no tokens; a sequence longer than n_ctx. SHAPE: tokens or targets of another shape.
function M.tokens(model, batch, cache)
  if type(batch) ~= 'table' or batch.tokens == nil then
    err.throw('ARG', ('wants a batch { tokens = (B,T) [, targets = (B,T)] }, got %s'):format(
      type(batch) == 'table' and 'a table without tokens' or type(batch)))
  end
  local tokens = batch.tokens
  want_tensor(tokens, 'tokens')
  local shape = tokens.shape
  if #shape ~= 2 then
    err.throw('SHAPE', ('tokens are (%s), wants (B,T)'):format(table.concat(shape, ',')))
  end
  cache = cache or batch.cache
  if cache and grad_enabled() then
    err.throw('ARG', 'a cache of keys and values has no history for backward: call the model in z3.no_grad')
  end
  local start, n_ctx = cache and cache.length or 0, model.options.n_ctx
  if start + shape[2] > n_ctx then
    err.throw('ARG', ('the sequence has %d tokens%s, n_ctx is %d'):format(start + shape[2],
      start > 0 and (' (%d of them in the cache)'):format(start) or '', n_ctx))
  end
  local room = cache and cache.n_ctx
  if room and start + shape[2] > room then
    err.throw('ARG', ('the sequence has %d tokens, the cache has room for %d'):format(start + shape[2], room))
  end
  return tokens, shape[1], shape[2], start, cache
end

local function check_targets(targets, B, n_time)
  want_tensor(targets, 'targets')
  local shape = targets.shape
  if #shape ~= 2 or shape[1] ~= B or shape[2] ~= n_time then
    err.throw('SHAPE', ('targets are (%s), tokens are (%d,%d)'):format(table.concat(shape, ','), B, n_time))
  end
end

--- What the model returns for the last hidden states: sum of the losses and their count, or logits.
-- @tparam Module head  Linear (V,C) without bias; anything else put in its place is called for all logits
-- @param x_BTC         hidden states
function M.finish(model, head, x_BTC, batch, B, n_time)
  local width = model.options.n_embd
  if batch.targets ~= nil then
    check_targets(batch.targets, B, n_time)
    local targets_N = batch.targets:reshape(B * n_time)
    local o = { reduction = 'sum', ignore_index = -100 }
    if head.class_name == 'Linear' and head.bias == nil then
      return F.linear_cross_entropy(x_BTC:view(B * n_time, width), head.weight, targets_N, o)
    end
    return F.cross_entropy(head(x_BTC:view(B * n_time, width)), targets_N, o)
  end
  if batch.last and n_time > 1 then x_BTC = x_BTC:narrow(1, n_time - 1, 1) end
  return head(x_BTC)
end

--- An empty cache for B sequences of up to n_ctx tokens.
-- @tparam Module model  with options
-- @string dtype         of keys and values
function M.new_cache(model, B, n_ctx, dtype)
  local o = model.options
  local K, D = o.n_kv_head or o.n_head, o.head_dim or o.n_embd / o.n_head
  local cache = { length = 0, n_ctx = n_ctx, batch = B }
  for i = 1, o.n_layer do
    -- Laid out (B,T,K,D), so that what one step appends is one piece of memory.
    cache[i] = {
      length = 0,
      k = z3.zeros({ B, n_ctx, K, D }, { dtype = dtype }):transpose(1, 2),
      v = z3.zeros({ B, n_ctx, K, D }, { dtype = dtype }):transpose(1, 2),
    }
  end
  return cache
end

--- Notes that n more positions are in the cache.
function M.advance(cache, n)
  if not cache then return end
  cache.length = cache.length + n
  for i = 1, #cache do cache[i].length = cache.length end
end

return M
