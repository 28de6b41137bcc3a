-- attention.lua -- CausalSelfAttention: multi-head or grouped-query attention with optional rotary positions.
-- Heads are split and joined by views: the attention operation leaves its (B,H,T,D) result laid out as (B,T,H,D).
-- Legend: B batch, T time, C width, H query heads, K key/value heads, D head width, S keys (cached ones included).
-- Sources: Vaswani et al. 2017; Ainslie et al. 2023 (grouped queries); Su et al. 2021 (rotary positions).
local F         = require 'z3.functional'
local T         = require 'z3.tensor'
local err       = require 'z3.error'
local opts      = require 'z3.opts'
local class     = require('z3.nn.class').class
local linear    = require 'z3.nn.linear'
local norm      = require 'z3.nn.norm'
local Dropout   = require 'z3.nn.dropout'
local sizes     = require 'z3.nn.sizes'

local OPTIONS = {
  n_embd = opts.integer, n_head = opts.integer, n_kv_head = opts.integer, head_dim = opts.integer,
  rope = opts.either(opts.boolean, opts.table), bias = true, qk_norm = false, norm_eps = 1e-6,
  dropout = 0, resid_dropout = 0, fused = true, qkv_bias = opts.boolean,
  init = opts.any, out_init = opts.any, dtype = 'f32',
}

--- CausalSelfAttention{ n_embd=, n_head=, ... }. Options:
--   n_embd, n_head   width and number of query heads
--   n_kv_head        key/value heads (n_head): query head h uses h div (n_head / n_kv_head)
--   head_dim         n_embd / n_head
--   rope             true, or { theta = 10000, scaling = rope_scaling of a Hugging Face config }
--   bias, qkv_bias   biases of all projections; of q, k and v only
--   qk_norm          RMSNorm on each head of q and k
--   dropout          of the attention weights; resid_dropout: of the result
--   fused            true: one projection c_attn (in the order q, k, v) and c_proj, as GPT-2; false: q_proj, k_proj,
--                    v_proj, o_proj, as Llama
--   init, out_init   initializers of the weights into and out of the heads
local Attention = class 'CausalSelfAttention'
Attention.frees = true

local function read(o)
  o = opts.read(o, OPTIONS, 'nn.CausalSelfAttention')
  sizes.check('CausalSelfAttention', 'n_embd', o.n_embd, 'n_head', o.n_head)
  local H, K = o.n_head, o.n_kv_head or o.n_head
  if not o.head_dim and o.n_embd % H ~= 0 then
    err.throw('ARG', ('nn.CausalSelfAttention: n_embd %d is no multiple of n_head %d (or give head_dim)'):format(
      o.n_embd, H))
  end
  if K < 1 or H % K ~= 0 then
    err.throw('ARG', ('nn.CausalSelfAttention: n_head %d is no multiple of n_kv_head %d'):format(H, K))
  end
  for _, key in ipairs { 'dropout', 'resid_dropout' } do
    if not (o[key] >= 0 and o[key] <= 1) then
      err.throw('ARG', ('nn.CausalSelfAttention: %s is %s, wants 0 to 1'):format(key, tostring(o[key])))
    end
  end
  return o, H, K, o.head_dim or o.n_embd / H
end

local ROPE = { theta = 10000, scaling = opts.table }

function Attention:init(options)
  local o, H, K, D = read(options)
  self.n_embd, self.n_head, self.n_kv_head, self.head_dim = o.n_embd, H, K, D
  self.dropout = o.dropout
  if o.rope then self.rope = opts.read(o.rope ~= true and o.rope or nil, ROPE, 'nn.CausalSelfAttention: rope') end
  local qkv_bias = o.bias
  if o.qkv_bias ~= nil then qkv_bias = o.qkv_bias end
  local into = { bias = qkv_bias, init = o.init, dtype = o.dtype }
  local out = { bias = o.bias, init = o.out_init or o.init, dtype = o.dtype }
  if o.fused then
    self.c_attn = linear.Conv1D(o.n_embd, (H + 2 * K) * D, into)
    self.c_proj = linear.Conv1D(H * D, o.n_embd, out)
  else
    self.q_proj = linear.Linear(o.n_embd, H * D, into)
    self.k_proj = linear.Linear(o.n_embd, K * D, into)
    self.v_proj = linear.Linear(o.n_embd, K * D, into)
    self.o_proj = linear.Linear(H * D, o.n_embd, out)
  end
  if o.qk_norm then
    self.q_norm = norm.RMSNorm(D, { eps = o.norm_eps, dtype = o.dtype })
    self.k_norm = norm.RMSNorm(D, { eps = o.norm_eps, dtype = o.dtype })
  end
  if o.resid_dropout > 0 then self.resid_drop = Dropout(o.resid_dropout) end
end

-- (B,T,C) -> q (B,T,H,D), k and v (B,T,K,D).
local function project(self, x_BTC, B, n_time)
  local H, K, D = self.n_head, self.n_kv_head, self.head_dim
  if not self.c_attn then
    return self.q_proj(x_BTC):view(B, n_time, H, D), self.k_proj(x_BTC):view(B, n_time, K, D),
      self.v_proj(x_BTC):view(B, n_time, K, D)
  end
  local all = self.c_attn(x_BTC):view(B, n_time, H + 2 * K, D)
  return all:narrow(2, 0, H), all:narrow(2, H, K), all:narrow(2, H + K, K)
end

-- Appends keys and values to the cache; returns all of them so far, (B,K,S,D).
local function extend(cache, k_BKTD, v_BKTD, start, n_time)
  cache.k:narrow(2, start, n_time):copy_(k_BKTD)
  cache.v:narrow(2, start, n_time):copy_(v_BKTD)
  return cache.k:narrow(2, 0, start + n_time), cache.v:narrow(2, 0, start + n_time)
end

-- 1 where query t (at position start + t) may see key s: (T,S) u8.
local function visible(n_time, start, device)
  local o = { dtype = 'i32', device = device }
  local key_S = T.functions.arange(start + n_time, o):view(1, start + n_time)
  local query_T = (T.functions.arange(n_time, o) + start):view(n_time, 1)
  return key_S:le(query_T)
end

-- With dropout on the weights there is no fused form: all scores are held, (B,H,T,S).
local function attend_with_dropout(q, k, v, p)
  local H, K, D, n_time = q.shape[2], k.shape[2], q.shape[4], q.shape[3]
  if K ~= H then
    local shape = k.shape
    local B, S, group = shape[1], shape[3], H / K
    k = k:unsqueeze(2):expand(B, K, group, S, D):reshape(B, H, S, D)
    v = v:unsqueeze(2):expand(B, K, group, S, D):reshape(B, H, S, D)
  end
  local hidden = visible(n_time, k.shape[3] - n_time, q.device):eq(0)
  local scores = (q:matmul(k:transpose(2, 3)) / math.sqrt(D)):masked_fill(hidden, -math.huge)
  return F.dropout(scores:softmax(-1), p):matmul(v)
end

-- B, T, C of the input.
local function dims(self, x)
  T.ready(x, 'attention')
  local shape = x.shape
  if #shape ~= 3 or shape[3] ~= self.n_embd then
    err.throw('SHAPE', ('attention: x is %s, wants (B,T,%d)'):format(T.shape_text(shape), self.n_embd))
  end
  return shape[1], shape[2]
end

--- x (B,T,C) -> (B,T,C). position t sees positions <= t.
-- @tparam[opt] table layer_cache  { k =, v = (B,K,n_ctx,D), length = positions that are in it }: x continues them
function Attention:forward(x_BTC, layer_cache)
  local B, n_time = dims(self, x_BTC)
  err.require_arg(layer_cache == nil or type(layer_cache) == 'table' and layer_cache.k, 'attention: the cache is %s',
    opts.show(layer_cache))
  local start = layer_cache and layer_cache.length or 0
  local q, k, v = project(self, x_BTC, B, n_time)
  if self.q_norm then q, k = self.q_norm(q), self.k_norm(k) end
  q, k, v = q:transpose(1, 2), k:transpose(1, 2), v:transpose(1, 2)
  if self.rope then
    local o = { theta = self.rope.theta, scaling = self.rope.scaling, start = start }
    q, k = F.rope(q, o), F.rope(k, o)
  end
  if layer_cache then k, v = extend(layer_cache, k, v, start, n_time) end
  local y_BHTD
  if self.dropout > 0 and self.training then
    y_BHTD = attend_with_dropout(q, k, v, self.dropout)
  elseif start == 0 then
    y_BHTD = F.scaled_dot_product_attention(q, k, v, { causal = true })
  else
    local mask = n_time > 1 and visible(n_time, start, x_BTC.device) or nil
    y_BHTD = F.scaled_dot_product_attention(q, k, v, { mask = mask })
  end
  local y_BTC = y_BHTD:transpose(1, 2):reshape(B, n_time, self.n_head * self.head_dim)
  y_BTC = (self.c_proj or self.o_proj)(y_BTC)
  if self.resid_drop then y_BTC = self.resid_drop(y_BTC) end
  return y_BTC
end

function Attention:describe()
  local kv = self.n_kv_head ~= self.n_head and (', n_kv_head %d'):format(self.n_kv_head) or ''
  return ('(n_embd %d, n_head %d%s)'):format(self.n_embd, self.n_head, kv)
end

return Attention
