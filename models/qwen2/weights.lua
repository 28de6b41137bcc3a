-- weights.lua -- Qwen2 in Hugging Face's format: which option each key of config.json is, what tensors are called.
local err   = require 'z3.error'
local llama = require 'models.llama.weights'
local names = require 'models.names'

local M = { prefix = llama.prefix, tied_head = llama.tied_head, name = llama.name, file_name = llama.file_name,
            rename = llama.rename }

--- Options from a config.json.
-- @raise UNSUPPORTED, CONFIG naming the key
function M.options(c)
  local what = 'config.json of qwen2'
  local o = llama.common(what, c)
  -- Qwen2's own defaults where the key is absent.
  if names.value(c, 'vocab_size', nil) == nil then o.vocab_size = 151936 end
  if names.value(c, 'max_position_embeddings', nil) == nil then o.n_ctx = 32768 end
  o.qkv_bias = true
  local window = names.value(c, 'sliding_window', nil)
  if names.value(c, 'use_sliding_window', false) and window and window < o.n_ctx
    and names.value(c, 'max_window_layers', 28) < o.n_layer then
    err.throw('UNSUPPORTED', ('%s: sliding_window %d on layers from %d is not supported (use_sliding_window = false'
      .. ' attends to everything)'):format(what, window, names.value(c, 'max_window_layers', 28)))
  end
  return o
end

--- config.json of a model, as a table to encode.
function M.config(model, dtype)
  local c = llama.common_config(model, dtype)
  c.architectures, c.model_type, c.use_sliding_window = { 'Qwen2ForCausalLM' }, 'qwen2', false
  return c
end

return M
