-- weights.lua -- Llama in Hugging Face's format: which option each key of config.json is, what tensors are called.
local err   = require 'z3.error'
local names = require 'models.names'

local M = {}

M.prefix = 'model.'
M.tied_head = 'lm_head.weight'

local BUFFERS = { 'rotary_emb%.inv_freq$' }

--- Our name of a file's tensor; nil when it is no parameter.
function M.name(file_name) return names.strip(file_name, M.prefix, BUFFERS) end

--- The file's name of a parameter.
function M.file_name(name)
  return name:match '^lm_head%.' and name or M.prefix .. name
end

--- A table of tensors under our names.
function M.rename(t, model) return names.rename(t, model, M.name) end

--- theta and scaling from either spelling: rope_parameters (newer) or rope_theta and rope_scaling.
function M.rope(what, c)
  local p = names.value(c, 'rope_parameters', nil)
  local scaling = p or names.value(c, 'rope_scaling', nil)
  if scaling ~= nil and type(scaling) ~= 'table' then
    err.throw('CONFIG', ('%s: rope_scaling is %s, wants an object or null'):format(what, tostring(scaling)))
  end
  local theta = names.number(what, p or c, 'rope_theta', names.number(what, c, 'rope_theta', 10000))
  if scaling == nil then return theta, nil end
  names.unsupported(what, scaling, 'partial_rotary_factor', 1)
  local out, kind = {}, names.value(scaling, 'rope_type', names.value(scaling, 'type', 'default'))
  for k, v in pairs(scaling) do
    if k ~= 'rope_theta' and k ~= 'type' then out[k] = v end
  end
  out.rope_type = kind
  if kind == 'default' then return theta, nil end
  return theta, out
end

--- What Llama and its relatives have in common.
function M.common(what, c)
  names.unsupported(what, c, 'hidden_act', 'silu')
  names.unsupported(what, c, 'partial_rotary_factor', 1)
  local theta, scaling = M.rope(what, c)
  return {
    vocab_size = names.size(what, c, 'vocab_size', 32000), n_ctx = names.size(what, c, 'max_position_embeddings', 2048),
    n_layer = names.size(what, c, 'num_hidden_layers', 32), n_head = names.size(what, c, 'num_attention_heads', 32),
    n_kv_head = names.size(what, c, 'num_key_value_heads'), head_dim = names.size(what, c, 'head_dim'),
    n_embd = names.size(what, c, 'hidden_size', 4096), n_inner = names.size(what, c, 'intermediate_size', 11008),
    rope_theta = theta, rope_scaling = scaling, norm_eps = names.number(what, c, 'rms_norm_eps', 1e-6),
    attn_dropout = names.number(what, c, 'attention_dropout', 0), tie = names.value(c, 'tie_word_embeddings', false),
    init_std = names.number(what, c, 'initializer_range', 0.02),
  }
end

--- Options from a config.json.
-- @raise UNSUPPORTED, CONFIG naming the key
function M.options(c)
  local what = 'config.json of llama'
  local o = M.common(what, c)
  o.attention_bias = names.value(c, 'attention_bias', false)
  o.mlp_bias = names.value(c, 'mlp_bias', false)
  return o
end

--- What Llama and its relatives have in common, the other way.
function M.common_config(model, dtype)
  local o = model.options
  return {
    hidden_act = 'silu', hidden_size = o.n_embd, intermediate_size = o.n_inner, num_hidden_layers = o.n_layer,
    num_attention_heads = o.n_head, num_key_value_heads = o.n_kv_head or o.n_head,
    head_dim = o.head_dim or o.n_embd / o.n_head, max_position_embeddings = o.n_ctx, vocab_size = o.vocab_size,
    rms_norm_eps = o.norm_eps, rope_theta = o.rope_theta, rope_scaling = o.rope_scaling, torch_dtype = dtype,
    attention_dropout = o.attn_dropout, initializer_range = o.init_std, tie_word_embeddings = o.tie,
  }
end

--- config.json of a model, as a table to encode.
-- @string dtype  of the weights in the file, as 'float32'
function M.config(model, dtype)
  local c = M.common_config(model, dtype)
  c.architectures, c.model_type = { 'LlamaForCausalLM' }, 'llama'
  c.attention_bias, c.mlp_bias = model.options.attention_bias, model.options.mlp_bias
  return c
end

return M
