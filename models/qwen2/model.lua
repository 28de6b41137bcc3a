-- model.lua -- Qwen2 and Qwen2.5: Llama with biases on q, k and v and another rotary base.
-- Source: Yang et al. 2024 (arXiv:2407.10671).
local llama   = require 'models.llama.model'
local weights = require 'models.qwen2.weights'

local M = {}

M.defaults = {}
for k, v in pairs(llama.defaults) do M.defaults[k] = v end
M.defaults.qkv_bias, M.defaults.rope_theta, M.defaults.vocab_size = true, 1e6, 151936

M.Qwen2 = llama.make('Qwen2', 'qwen2', weights)

--- Builds a model: 'nano', '0.5B', ... or a table of options (see models.llama), and overrides.
-- @raise ARG
M.new = llama.builder(M.Qwen2, 'models.qwen2', M.defaults, require 'models.qwen2.presets')

return M
