--- step.lua -- a training step of GPT-2 on random tokens: tokens per second and memory, median over some steps.
-- z3lua tests/bench/step.lua [--preset 124M --batch 4 --seq 256 --dtype bf16 --steps 5]      prints one JSON line
local z3 = require 'z3'
local args = z3.args({
  preset = 'all', batch = 4, seq = 256, dtype = 'auto', steps = 5, vocab = 50257,
}, {
  preset = 'a size of models/gpt2/presets.lua, or all: nano and 124M',
  dtype = 'f32, bf16, or auto: what the CPU has',
})

local dtype = args.dtype
if dtype == 'auto' then dtype = z3.features().bf16 and 'bf16' or 'f32' end

local function median(values)
  table.sort(values)
  return values[math.floor(#values / 2) + 1]
end

local function measure(preset, vocab, batch, seq)
  local model = require 'models.gpt2'.new(preset, { vocab_size = vocab, n_ctx = seq })
  local engine = z3.initialize { model = model, optimizer = z3.optim.adamw { lr = 1e-4 },
    config = { train_micro_batch_size_per_gpu = batch, bf16 = { enabled = dtype == 'bf16' } } }
  local speeds, seconds, report = {}, {}, nil
  for step = 1, args.steps + 2 do                -- the first two make plans and fill the pool
    local tokens = z3.data.random_tokens(batch, seq + 1, vocab, step)
    report = engine:train_batch { tokens = tokens:narrow(1, 0, seq), targets = tokens:narrow(1, 1, seq) }
    -- Random tokens teach nothing: a loss away from log(vocab) means that something is wrong with what was timed.
    assert(math.abs(report.loss - math.log(vocab)) < 1, 'loss ' .. report.loss)
    if step > 2 then speeds[#speeds + 1], seconds[#seconds + 1] = report.tokens_per_s, report.step_s end
  end
  print(z3.json.encode { bench = 'step', preset = preset, parameters = model:numel(), dtype = dtype, batch = batch,
    seq = seq, tokens_per_s = math.floor(median(speeds) + 0.5), step_s = median(seconds),
    memory_peak = report.memory_peak, isa = z3.features().isa, threads = z3.features().threads })
  engine:close()
end

if args.preset ~= 'all' then
  measure(args.preset, args.vocab, args.batch, args.seq)
else
  measure('nano', 256, 8, 128)
  measure('124M', args.vocab, args.batch, args.seq)
end
