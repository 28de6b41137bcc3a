-- 01: a small GPT learns a text file, byte by byte, and then writes some of its own.
--   z3lua recipes/01_train_text.lua --data input.txt
-- A loss of 5.5 (nats per byte) is guessing; English is learnt word by word below 2.
local z3 = require 'z3'

local args = z3.args({
  data = 'input.txt', preset = 'nano', steps = 600, batch = 16, seq = 128, lr = 2e-3, seed = 1, dtype = 'auto',
  log = 'train_text.jsonl', sample = 300, out = '',
}, {
  data = 'plain text file', preset = 'size of the model (see models/gpt2/presets.lua)', steps = 'optimizer steps',
  batch = 'sequences per step', seq = 'bytes per sequence',
  dtype = 'f32, bf16, or auto: bf16 where the CPU computes it',
  log = 'one JSON line per step goes there', sample = 'bytes to write at the end', out = 'folder for a checkpoint',
})
z3.manual_seed(args.seed)
local dtype = args.dtype == 'auto' and (z3.features().bf16 and 'bf16' or 'f32') or args.dtype

local tok    = z3.tokenizer.bytes()
local data   = z3.data.text(args.data, tok)
local train, held_out = data:split(0.95)
local loader = z3.data.loader { dataset = train, batch = args.batch, seq = args.seq, shuffle = true, seed = args.seed }
local model  = require 'models.gpt2'.new(args.preset, { vocab_size = tok.vocab_size, n_ctx = args.seq })

local engine = z3.initialize {
  model = model, data = loader, log = args.log,
  optimizer = z3.optim.adamw { lr = args.lr, betas = { 0.9, 0.95 }, weight_decay = 0.1 },
  groups = function(_, p) return { weight_decay = p.ndim >= 2 and 0.1 or 0 } end,
  schedule = z3.sched.cosine { warmup = math.min(40, args.steps), total = args.steps, min = 0.1 },
  config = { train_micro_batch_size_per_gpu = args.batch, gradient_clipping = 1.0,
             bf16 = { enabled = dtype == 'bf16' } },
}
local function held_out_loss()
  return engine:evaluate(z3.data.loader { dataset = held_out, batch = args.batch, seq = args.seq }, 20)
end
z3.print(('%s bytes of text, %s parameters in %s; held-out loss %.4f before training'):format(
  data:numel(), model:numel(), dtype, held_out_loss()))

local tokens, seconds = 0, 0
for report in z3.progress(engine, args.steps) do
  tokens, seconds = tokens + report.tokens, seconds + report.step_s
  if report.step % 100 == 0 or report.step == args.steps then
    z3.print(('step %d  train %.4f  held out %.4f'):format(report.step, report.loss, held_out_loss()))
  end
end
z3.print(('%.0f tokens/s, peak memory %s'):format(tokens / seconds, z3.bytes(z3.memory.stats().peak)))

if args.sample > 0 then
  z3.print 'It writes:'
  local o = { max_new_tokens = args.sample, temperature = 0.8, seed = 7 }
  z3.print(tok:decode(z3.generate(model, tok:encode '\n', o)))
end
if args.out ~= '' then engine:save(args.out) end
z3.print(('log: %s    next: recipes/02_accumulate_and_log.lua'):format(args.log))
