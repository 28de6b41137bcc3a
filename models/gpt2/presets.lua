-- presets.lua -- sizes of GPT-2 models. Source: Radford et al. 2019 (the four published sizes); nano is for tests and
-- first experiments, with bytes as its vocabulary.
return {
  nano   = { n_layer = 4, n_head = 4, n_embd = 128, vocab_size = 256, n_ctx = 256 },
  ['124M'] = { n_layer = 12, n_head = 12, n_embd = 768 },
  ['355M'] = { n_layer = 24, n_head = 16, n_embd = 1024 },
  ['774M'] = { n_layer = 36, n_head = 20, n_embd = 1280 },
  ['1.5B'] = { n_layer = 48, n_head = 25, n_embd = 1600 },
}
