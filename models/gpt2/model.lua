-- model.lua -- GPT-2. Parameter names are those of Hugging Face files without their leading 'transformer.'.
-- Legend: B batch, T time, C width (n_embd), V vocabulary.
-- Source: Radford et al. 2019.
local z3      = require 'z3'
local err     = require 'z3.error'
local opts    = require 'z3.opts'
local decoder = require 'models.decoder'
local options = require 'models.options'
local presets = require 'models.gpt2.presets'
local weights = require 'models.gpt2.weights'

local nn = z3.nn

local M = {}

M.defaults = {
  vocab_size = 50257, n_ctx = 1024, n_layer = 12, n_head = 12, n_embd = 768, n_inner = opts.integer,
  dropout = opts.number, embd_dropout = opts.number, attn_dropout = opts.number, resid_dropout = opts.number,
  activation = 'gelu_tanh', norm_eps = 1e-5, bias = true, tie = true, init_std = 0.02, dtype = 'f32',
}

local Block = nn.class 'GPT2Block'
Block.frees = true

function Block:init(o)
  -- Each block adds two branches to the residual stream; their last weights start smaller by the root of their number.
  local init = { 'normal', std = o.init_std }
  local out_init = { 'normal', std = o.init_std / math.sqrt(2 * o.n_layer) }
  self.ln_1 = nn.LayerNorm(o.n_embd, { eps = o.norm_eps, bias = o.bias, dtype = o.dtype })
  self.attn = nn.CausalSelfAttention {
    n_embd = o.n_embd, n_head = o.n_head, bias = o.bias, dropout = o.attn_dropout, resid_dropout = o.resid_dropout,
    init = init, out_init = out_init, dtype = o.dtype,
  }
  self.ln_2 = nn.LayerNorm(o.n_embd, { eps = o.norm_eps, bias = o.bias, dtype = o.dtype })
  self.mlp = nn.MLP {
    n_embd = o.n_embd, n_inner = o.n_inner or 4 * o.n_embd, activation = o.activation, bias = o.bias,
    dropout = o.resid_dropout, init = init, out_init = out_init, dtype = o.dtype,
  }
end

function Block:forward(x_BTC, layer_cache)
  x_BTC = x_BTC + self.attn(self.ln_1(x_BTC), layer_cache)
  return x_BTC + self.mlp(self.ln_2(x_BTC))
end

local GPT2 = nn.class 'GPT2'
GPT2.frees = true
GPT2.architecture = 'gpt2'

function GPT2:init(o)
  self.options = o
  local init = { 'normal', std = o.init_std }
  self.wte = nn.Embedding(o.vocab_size, o.n_embd, { init = init, dtype = o.dtype })
  self.wpe = nn.Embedding(o.n_ctx, o.n_embd, { init = init, dtype = o.dtype })
  if o.embd_dropout > 0 then self.drop = nn.Dropout(o.embd_dropout) end
  self.h = {}
  for i = 1, o.n_layer do self.h[i] = Block(o) end
  self.ln_f = nn.LayerNorm(o.n_embd, { eps = o.norm_eps, bias = o.bias, dtype = o.dtype })
  self.lm_head = nn.Linear(o.n_embd, o.vocab_size, { bias = false, init = init, dtype = o.dtype })
  if o.tie then self.lm_head.weight = self.wte.weight end
end

--- { tokens = (B,T), targets = (B,T) } -> sum of the losses, their count; { tokens = } -> logits (B,T,V).
-- targets[b][t] is the token that follows tokens[b][t]; -100 doesn't count.
-- @tparam[opt] table cache  from new_cache: the tokens continue what is in it
function GPT2:forward(batch, cache)
  local tokens_BT, B, n_time, start
  tokens_BT, B, n_time, start, cache = decoder.tokens(self, batch, cache)
  local position_T = z3.arange(n_time, { dtype = 'i32', device = tokens_BT.device })
  if start > 0 then position_T = position_T + start end
  local x_BTC = self.wte(tokens_BT) + self.wpe(position_T)
  if self.drop then x_BTC = self.drop(x_BTC) end
  for i, block in ipairs(self.h) do x_BTC = block(x_BTC, cache and cache[i]) end
  decoder.advance(cache, n_time)
  return decoder.finish(self, self.lm_head, self.ln_f(x_BTC), batch, B, n_time)
end

--- Recomputes every block's activations in backward (false: keeps them again).
function GPT2:checkpoint(on)
  for _, block in ipairs(self.h) do block:checkpoint(on) end
  return self
end

--- An empty cache of keys and values for B sequences of up to n_ctx tokens.
function GPT2:new_cache(B, n_ctx) return decoder.new_cache(self, B, n_ctx, self.wte.weight.dtype) end

--- As Module:load_state_dict; names may be a file's, with 'transformer.' in front.
function GPT2:load_state_dict(t, o) return nn.Module.load_state_dict(self, weights.rename(t, self), o) end

function GPT2:describe()
  local o = self.options
  return ('(n_layer %d, n_head %d, n_embd %d, vocab_size %d, n_ctx %d)'):format(o.n_layer, o.n_head, o.n_embd,
    o.vocab_size, o.n_ctx)
end

--- Builds a model.
-- @param given  'nano', '124M', '355M', '774M', '1.5B', or a table of options
-- @tab[opt] overrides  options over the preset's: vocab_size, n_ctx, n_layer, n_head, n_embd, n_inner, dropout (all
--   three of embd_dropout, attn_dropout, resid_dropout), activation, norm_eps, bias, tie, init_std, dtype
-- @raise ARG
function M.new(given, overrides)
  local o = options.read('models.gpt2', M.defaults, presets, given, overrides)
  for _, key in ipairs { 'embd_dropout', 'attn_dropout', 'resid_dropout' } do
    o[key] = o[key] or o.dropout or 0
    err.require_arg(o[key] >= 0 and o[key] < 1, 'models.gpt2: %s is %g, wants 0 <= p < 1', key, o[key])
  end
  return GPT2(o)
end

M.GPT2, M.Block = GPT2, Block

return M
