-- weights.lua -- GPT-2 in Hugging Face's format: which option each key of config.json is, what tensors are called.
local names = require 'models.names'
local unsupported = names.unsupported

local M = {}

M.prefix = 'transformer.'
M.tied_head = 'lm_head.weight'

-- Buffers that older files carry: the causal mask and its fill value.
local BUFFERS = { '^h%.%d+%.attn%.bias$', '^h%.%d+%.attn%.masked_bias$' }

--- Our name of a file's tensor; nil when it is no parameter.
function M.name(file_name) return names.strip(file_name, M.prefix, BUFFERS) end

--- The file's name of a parameter.
function M.file_name(name)
  return name:match '^lm_head%.' and name or M.prefix .. name
end

--- A table of tensors under our names.
function M.rename(t, model) return names.rename(t, model, M.name) end

--- Options from a config.json.
-- @raise UNSUPPORTED naming the key
function M.options(c)
  local what = 'config.json of gpt2'
  unsupported(what, c, 'add_cross_attention', false)
  unsupported(what, c, 'scale_attn_by_inverse_layer_idx', false)
  unsupported(what, c, 'scale_attn_weights', true)
  return {
    vocab_size = names.size(what, c, 'vocab_size', 50257), n_ctx = names.size(what, c, 'n_positions', 1024, 'n_ctx'),
    n_layer = names.size(what, c, 'n_layer', 12, 'num_hidden_layers'),
    n_head = names.size(what, c, 'n_head', 12, 'num_attention_heads'),
    n_embd = names.size(what, c, 'n_embd', 768, 'hidden_size'), n_inner = names.size(what, c, 'n_inner'),
    embd_dropout = names.number(what, c, 'embd_pdrop', 0.1), attn_dropout = names.number(what, c, 'attn_pdrop', 0.1),
    resid_dropout = names.number(what, c, 'resid_pdrop', 0.1),
    activation = names.value(c, 'activation_function', 'gelu_new'),
    norm_eps = names.number(what, c, 'layer_norm_epsilon', 1e-5),
    init_std = names.number(what, c, 'initializer_range', 0.02),
    tie = names.value(c, 'tie_word_embeddings', true),
  }
end

--- config.json of a model, as a table to encode.
-- @string dtype  of the weights in the file, as 'float32'
function M.config(model, dtype)
  local o = model.options
  return {
    architectures = { 'GPT2LMHeadModel' }, model_type = 'gpt2', activation_function = names.activation(o.activation),
    attn_pdrop = o.attn_dropout, embd_pdrop = o.embd_dropout, resid_pdrop = o.resid_dropout,
    initializer_range = o.init_std, layer_norm_epsilon = o.norm_eps, n_ctx = o.n_ctx, n_positions = o.n_ctx,
    n_embd = o.n_embd, n_head = o.n_head, n_layer = o.n_layer, n_inner = o.n_inner, vocab_size = o.vocab_size,
    tie_word_embeddings = o.tie, torch_dtype = dtype,
  }
end

return M
