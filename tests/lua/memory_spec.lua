--- memory_spec.lua -- the memory of a training step: the formula that README states holds, and the null device, which
-- computes nothing, counts the same bytes as the cpu in every category but `buffer`: there it counts the blocks of the
-- loss, and leaves out the small scratch of other kernels.
local z3     = require 'z3'
local core   = require 'z3.tensor_core'
local memory = require 'z3.memory'

local TOLERANCE = 0.05

-- ---- the formula -----------------------------------------------------------------------------------
-- Legend: P parameters, N = B T tokens, C width, I inner width, H and K heads of queries and keys, D width of a head,
-- V vocabulary, L layers, e bytes of an element: 4 (f32) or 2 (bf16).

-- Bytes that one layer keeps for backward.
local LAYER = {
  -- x, ln_1(x), q k v, attention, x, ln_2(x), c_fc, gelu; of each norm mean and rstd; of each head a log-sum-exp
  gpt2 = function(s) return s.N * ((8 * s.C + 2 * s.I) * s.e + 16 + 4 * s.H) end,
  -- x, norm(x), q and k turned, v, attention, x, norm(x), gate, up, their product; rstds and log-sum-exps
  llama = function(s)
    return s.N * ((4 * s.C + 2 * s.H * s.D + 2 * s.K * s.D + 3 * s.I) * s.e + 8 + 4 * s.H)
  end,
}
-- What backward holds besides when it is in the feed-forward part of the last layer: its gradients, less what is gone.
local PASSING = {
  gpt2 = function(s) return s.N * (s.I - s.C) * s.e end,
  llama = function(s) return s.N * (2 * s.I - s.C) * s.e end,
}

--- Bytes of a step with AdamW on the cpu, by category.
-- @string kind   'gpt2' or 'llama'
-- @tab o         the model's options
-- @int P         its parameters
local function formula(kind, o, P, dtype, B, T, checkpoint)
  local H = o.n_head
  local s = { N = B * T, C = o.n_embd, I = o.n_inner or 4 * o.n_embd, H = H, K = o.n_kv_head or H,
              D = o.head_dim or o.n_embd / H, e = dtype == 'f32' and 4 or 2 }
  local stream = s.N * s.C * s.e                -- one (B,T,C): what a recomputed layer keeps
  local layer, last = LAYER[kind](s), 2 * stream
  local kept = o.n_layer * (checkpoint and stream or layer)
  local in_layer = kept + last + PASSING[kind](s)
  if checkpoint then in_layer = in_layer + layer - stream end
  -- The loss makes its logits in blocks of at most 2^23, in f32 and for backward in the weights' type too.
  local block = math.min(s.N * o.vocab_size, 2 ^ 23)
  local buffer = block * (s.e == 4 and 4 or 6) + 4 * s.N * s.C * (s.e == 4 and 0 or 1)
  local in_loss = kept + last + stream
  return {
    param_shard = s.e * P, grad = 4 * P, optimizer = (s.e == 4 and 8 or 12) * P,
    activation = math.max(in_layer, in_loss), buffer = math.max(0, in_loss + buffer - math.max(in_layer, in_loss)),
  }
end

local function total(by)
  local sum = 0
  for _, bytes in pairs(by) do sum = sum + bytes end
  return sum
end

-- ---- a step ----------------------------------------------------------------------------------------

--- Peak memory of two training steps on a device: z3.memory.stats() and the report's memory_peak.
local function measure(device, kind, options, dtype, B, T, o)
  o = o or {}
  core.set_default_device(device)
  local function run()
    z3.manual_seed(1)
    local model = require('models.' .. kind).new(unpack(options))
    if o.checkpoint then model:checkpoint() end
    local P = model:numel()
    local start = memory.stats(device).current
    local engine = z3.initialize { model = model, optimizer = (o.optimizer or z3.optim.adamw) {},
      config = { train_micro_batch_size_per_gpu = B, gradient_accumulation_steps = o.accumulate or 1,
                 bf16 = { enabled = dtype == 'bf16' }, gradient_clipping = 1 } }
    local batch = { tokens = z3.data.random_tokens(B, T, model.options.vocab_size, 1),
                    targets = z3.data.random_tokens(B, T, model.options.vocab_size, 2) }
    memory.reset_peak(device)
    local report
    for _ = 1, 2 do report = engine:train_batch { next = function() return batch end } end
    local stats = memory.stats(device)
    engine:close()
    return stats, report.memory_peak, model.options, P, start
  end
  local results = { pcall(z3.scope, run) }
  core.set_default_device 'cpu'
  require('z3.rope_table').clear()               -- it would outlive the test, and be there already in the next
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2)
end

local function close_to(want, got, what)
  assert(math.abs(got / want - 1) <= TOLERANCE, ('%s: %s, the formula says %s (%+.1f %%)'):format(what, z3.bytes(got),
    z3.bytes(want), 100 * (got / want - 1)))
end

describe("a step's memory", function()
  local MODELS = {
    { 'gpt2', { 'nano' }, { { 1, 32 }, { 8, 128 }, { 2, 256 }, { 64, 64 } } },
    { 'llama', { 'nano' }, { { 1, 32 }, { 8, 128 }, { 2, 256 }, { 64, 64 } } },
    { 'gpt2', { '124M', { vocab_size = 50304 } }, { { 1, 128 }, { 4, 256 }, { 1, 1024 }, { 16, 1024 } } },
    { 'llama', { '160M' }, { { 4, 256 }, { 1, 2048 } } },
    { 'llama', { '1B' }, { { 8, 4096 } } },
    { 'gpt2', { '1.5B' }, { { 32, 1024 } } },
  }

  for _, dtype in ipairs { 'f32', 'bf16' } do
    for _, checkpoint in ipairs { false, true } do
      it(('is what the formula says, on the null device (%s%s)'):format(dtype, checkpoint and ', recomputed' or ''),
        function()
        for _, m in ipairs(MODELS) do
          for _, shape in ipairs(m[3]) do
            local B, n_time = shape[1], shape[2]
            local stats, peak, o, P = measure('null', m[1], m[2], dtype, B, n_time, { checkpoint = checkpoint })
            local want = formula(m[1], o, P, dtype, B, n_time, checkpoint)
            local what = ('%s %s %dx%d'):format(m[1], m[2][1], B, n_time)
            assert.equal(peak, stats.peak)
            close_to(total(want), peak, what)
            want.buffer = nil
            for name, bytes in pairs(want) do close_to(bytes, stats.by[name].peak, what .. ' ' .. name) end
          end
        end
      end)
    end

    it(('is what the formula says, on the cpu (%s)'):format(dtype), function()
      for _, m in ipairs { { 'gpt2', { 'nano', { vocab_size = 20000 } } }, { 'llama', { 'nano' } } } do
        for _, checkpoint in ipairs { false, true } do
          local _, peak, o, P, start = measure('cpu', m[1], m[2], dtype, 8, 128, { checkpoint = checkpoint })
          close_to(total(formula(m[1], o, P, dtype, 8, 128, checkpoint)), peak - start, m[1])
        end
      end
    end)
  end
end)

describe('the null device', function()
  local SAME = { 'param_shard', 'param_full', 'grad', 'optimizer', 'activation', 'io', 'other' }

  local function compare(kind, options, dtype, B, T, o)
    local cpu = measure('cpu', kind, options, dtype, B, T, o)
    local null = measure('null', kind, options, dtype, B, T, o)
    local what = ('%s %s %dx%d'):format(kind, dtype, B, T)
    for _, name in ipairs(SAME) do
      assert.equal(cpu.by[name].peak, null.by[name].peak, what .. ': peak of ' .. name)
    end
    assert(cpu.by.buffer.peak >= null.by.buffer.peak and null.by.buffer.peak > 0, what .. ': buffers')
    assert(cpu.peak >= null.peak and cpu.peak - null.peak <= cpu.by.buffer.peak, what .. ': more than buffers differs')
  end

  it('counts the bytes of every category as the cpu does, over models, types and ways to train', function()
    for _, dtype in ipairs { 'f32', 'bf16' } do
      compare('gpt2', { 'nano' }, dtype, 3, 40)
      compare('gpt2', { 'nano', { dropout = 0.1 } }, dtype, 2, 33)
      compare('gpt2', { 'nano', { tie = false, bias = false, n_inner = 200 } }, dtype, 1, 7, { accumulate = 3 })
      compare('gpt2', { 'nano' }, dtype, 2, 64, { checkpoint = true, optimizer = z3.optim.lion })
      compare('llama', { 'nano' }, dtype, 3, 40)
      compare('llama', { 'nano', { n_kv_head = 1, tie = true } }, dtype, 2, 64, { checkpoint = true, accumulate = 2 })
      compare('llama', { 'nano', { attn_dropout = 0.1 } }, dtype, 2, 16)
      compare('qwen2', { 'nano' }, dtype, 2, 48, { optimizer = z3.optim.sgd })
    end
  end)
end)
