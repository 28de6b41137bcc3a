-- presets.lua -- sizes of Llama models, from the published configurations (Touvron et al. 2023, Llama 3 and 3.2,
-- TinyLlama, llama-160m). nano is for tests and first experiments, with bytes as its vocabulary.
local function llama3(factor)
  return { rope_type = 'llama3', factor = factor, low_freq_factor = 1.0, high_freq_factor = 4.0,
           original_max_position_embeddings = 8192 }
end

return {
  nano = { n_layer = 4, n_head = 4, n_kv_head = 2, n_embd = 128, n_inner = 352, vocab_size = 256, n_ctx = 256 },
  ['160M'] = { n_layer = 12, n_head = 12, n_embd = 768, n_inner = 3072, vocab_size = 32000, n_ctx = 2048,
               norm_eps = 1e-6 },
  ['1.1B'] = { n_layer = 22, n_head = 32, n_kv_head = 4, n_embd = 2048, n_inner = 5632, vocab_size = 32000,
               n_ctx = 2048, norm_eps = 1e-5 },
  ['1B'] = { n_layer = 16, n_head = 32, n_kv_head = 8, n_embd = 2048, n_inner = 8192, head_dim = 64,
             vocab_size = 128256, n_ctx = 131072, rope_theta = 500000, rope_scaling = llama3(32), norm_eps = 1e-5,
             tie = true },
  ['3B'] = { n_layer = 28, n_head = 24, n_kv_head = 8, n_embd = 3072, n_inner = 8192, head_dim = 128,
             vocab_size = 128256, n_ctx = 131072, rope_theta = 500000, rope_scaling = llama3(32), norm_eps = 1e-5,
             tie = true },
  ['7B'] = { n_layer = 32, n_head = 32, n_embd = 4096, n_inner = 11008, vocab_size = 32000, n_ctx = 4096,
             norm_eps = 1e-5 },
  ['8B'] = { n_layer = 32, n_head = 32, n_kv_head = 8, n_embd = 4096, n_inner = 14336, vocab_size = 128256,
             n_ctx = 131072, rope_theta = 500000, rope_scaling = llama3(8), norm_eps = 1e-5 },
}
