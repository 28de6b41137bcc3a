-- 04: a small Llama with a warm-up, stable, decay schedule, dropout-free, and its activations recomputed in backward.
--   z3lua recipes/04_llama_text.lua --data input.txt
local z3 = require 'z3'
local args = z3.args({ data = 'input.txt', steps = 200, batch = 8, seq = 128, lr = 2e-3, recompute = false },
                     { recompute = 'keep only each block\'s input: less memory, more time, the same numbers' })
z3.manual_seed(1)

local tok    = z3.tokenizer.bytes()
local train, held_out = z3.data.text(args.data, tok):split(0.95)
local model  = require 'models.llama'.new('nano', { vocab_size = tok.vocab_size, n_ctx = args.seq })
if args.recompute then model:checkpoint() end

local engine = z3.initialize {
  model = model, data = z3.data.loader { dataset = train, batch = args.batch, seq = args.seq, shuffle = true },
  optimizer = z3.optim.adamw { lr = args.lr, betas = { 0.9, 0.95 } },
  schedule = z3.sched.wsd { warmup = math.floor(args.steps / 10), total = args.steps,
                            decay = math.ceil(args.steps / 4), min = 0.05 },
  groups = function(_, p) return { weight_decay = p.ndim >= 2 and 0.1 or 0 } end,       -- no decay on norms
  config = { train_micro_batch_size_per_gpu = args.batch },
}
for r in z3.progress(engine, args.steps) do
  if r.step == args.steps then z3.print(('train %.4f  peak memory %s'):format(r.loss, z3.bytes(r.memory_peak))) end
end
local test = z3.data.loader { dataset = held_out, batch = args.batch, seq = args.seq }
z3.print(('held out %.4f'):format(engine:evaluate(test, 20)))
