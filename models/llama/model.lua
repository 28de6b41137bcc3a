-- model.lua -- Llama: RMSNorm, rotary positions, grouped queries, SwiGLU. Parameter names are those of Hugging Face
-- files without their leading 'model.'. Qwen2 is the same with other defaults (models/qwen2).
-- Legend: B batch, T time, C width (n_embd), V vocabulary.
-- Sources: Touvron et al. 2023 (arXiv:2302.13971, 2307.09288).
local z3      = require 'z3'
local opts    = require 'z3.opts'
local decoder = require 'models.decoder'
local options = require 'models.options'
local weights = require 'models.llama.weights'

local nn = z3.nn

local M = {}

M.defaults = {
  vocab_size = 32000, n_ctx = 2048, n_layer = 32, n_head = 32, n_kv_head = opts.integer, head_dim = opts.integer,
  n_embd = 4096, n_inner = 11008, rope_theta = 10000, rope_scaling = opts.table, norm_eps = 1e-6,
  attention_bias = false, qkv_bias = opts.boolean, mlp_bias = false, attn_dropout = 0, tie = false, init_std = 0.02,
  dtype = 'f32',
}

local Block = nn.class 'LlamaBlock'
Block.frees = true

function Block:init(o)
  local init = { 'normal', std = o.init_std }
  self.input_layernorm = nn.RMSNorm(o.n_embd, { eps = o.norm_eps, dtype = o.dtype })
  self.self_attn = nn.CausalSelfAttention {
    n_embd = o.n_embd, n_head = o.n_head, n_kv_head = o.n_kv_head, head_dim = o.head_dim,
    rope = { theta = o.rope_theta, scaling = o.rope_scaling }, bias = o.attention_bias, qkv_bias = o.qkv_bias,
    dropout = o.attn_dropout, fused = false, init = init, dtype = o.dtype,
  }
  self.post_attention_layernorm = nn.RMSNorm(o.n_embd, { eps = o.norm_eps, dtype = o.dtype })
  self.mlp = nn.SwiGLU { n_embd = o.n_embd, n_inner = o.n_inner, bias = o.mlp_bias, init = init, dtype = o.dtype }
end

function Block:forward(x_BTC, layer_cache)
  x_BTC = x_BTC + self.self_attn(self.input_layernorm(x_BTC), layer_cache)
  return x_BTC + self.mlp(self.post_attention_layernorm(x_BTC))
end

--- A class of this shape: what differs is its name and the names of its files.
-- @string name          'Llama'
-- @string architecture  the folder in models/
-- @tab w                its weights.lua
function M.make(name, architecture, w)
  local Model = nn.class(name)
  Model.frees = true
  Model.architecture = architecture

  function Model:init(o)
    self.options = o
    local init = { 'normal', std = o.init_std }
    self.embed_tokens = nn.Embedding(o.vocab_size, o.n_embd, { init = init, dtype = o.dtype })
    self.layers = {}
    for i = 1, o.n_layer do self.layers[i] = Block(o) end
    self.norm = nn.RMSNorm(o.n_embd, { eps = o.norm_eps, dtype = o.dtype })
    self.lm_head = nn.Linear(o.n_embd, o.vocab_size, { bias = false, init = init, dtype = o.dtype })
    if o.tie then self.lm_head.weight = self.embed_tokens.weight end
  end

  --- { tokens = (B,T), targets = (B,T) } -> sum of the losses, their count; { tokens = } -> logits (B,T,V).
  -- targets[b][t] is the token that follows tokens[b][t]; -100 doesn't count.
  -- @tparam[opt] table cache  from new_cache: the tokens continue what is in it
  function Model:forward(batch, cache)
    local tokens_BT, B, n_time, _
    tokens_BT, B, n_time, _, cache = decoder.tokens(self, batch, cache)
    local x_BTC = self.embed_tokens(tokens_BT)
    for i, block in ipairs(self.layers) do x_BTC = block(x_BTC, cache and cache[i]) end
    decoder.advance(cache, n_time)
    return decoder.finish(self, self.lm_head, self.norm(x_BTC), batch, B, n_time)
  end

  --- Recomputes every block's activations in backward (false: keeps them again).
  function Model:checkpoint(on)
    for _, block in ipairs(self.layers) do block:checkpoint(on) end
    return self
  end

  --- An empty cache of keys and values for B sequences of up to n_ctx tokens.
  function Model:new_cache(B, n_ctx) return decoder.new_cache(self, B, n_ctx, self.embed_tokens.weight.dtype) end

  --- As Module:load_state_dict; names may be a file's, with 'model.' in front.
  function Model:load_state_dict(t, o) return nn.Module.load_state_dict(self, w.rename(t, self), o) end

  function Model:describe()
    local o = self.options
    return ('(n_layer %d, n_head %d, n_kv_head %d, n_embd %d, vocab_size %d, n_ctx %d)'):format(o.n_layer, o.n_head,
      o.n_kv_head or o.n_head, o.n_embd, o.vocab_size, o.n_ctx)
  end

  return Model
end

--- new(preset_or_options [, overrides]) of a class.
function M.builder(Model, what, defaults, presets)
  return function(given, overrides) return Model(options.read(what, defaults, presets, given, overrides)) end
end

M.Llama = M.make('Llama', 'llama', weights)
M.Block = Block

--- Builds a model.
-- @param given  'nano', '160M', '1B', ..., or a table of options
-- @tab[opt] overrides  options over the preset's: vocab_size, n_ctx, n_layer, n_head, n_kv_head, head_dim, n_embd,
--   n_inner, rope_theta, rope_scaling, norm_eps, attention_bias, qkv_bias, mlp_bias, attn_dropout, tie, init_std, dtype
-- @raise ARG
M.new = M.builder(M.Llama, 'models.llama', M.defaults, require 'models.llama.presets')

return M
