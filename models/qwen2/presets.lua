-- presets.lua -- sizes of Qwen2 models, from the published configurations of Qwen2.5 (arXiv:2412.15115). nano is for
-- tests and first experiments, with bytes as its vocabulary.
return {
  nano = { n_layer = 4, n_head = 4, n_kv_head = 2, n_embd = 128, n_inner = 352, vocab_size = 256, n_ctx = 256,
           tie = true },
  ['0.5B'] = { n_layer = 24, n_head = 14, n_kv_head = 2, n_embd = 896, n_inner = 4864, vocab_size = 151936,
               n_ctx = 32768, tie = true },
  ['1.5B'] = { n_layer = 28, n_head = 12, n_kv_head = 2, n_embd = 1536, n_inner = 8960, vocab_size = 151936,
               n_ctx = 131072, tie = true },
  ['3B'] = { n_layer = 36, n_head = 16, n_kv_head = 2, n_embd = 2048, n_inner = 11008, vocab_size = 151936,
             n_ctx = 32768, tie = true },
  ['7B'] = { n_layer = 28, n_head = 28, n_kv_head = 4, n_embd = 3584, n_inner = 18944, vocab_size = 152064,
             n_ctx = 131072 },
  ['14B'] = { n_layer = 48, n_head = 40, n_kv_head = 8, n_embd = 5120, n_inner = 13824, vocab_size = 152064,
              n_ctx = 131072, norm_eps = 1e-5 },
}
