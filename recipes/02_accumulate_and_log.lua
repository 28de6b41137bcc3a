-- 02: everything from a DeepSpeed JSON file; four micro-batches per step; the log read back.
--   z3lua recipes/02_accumulate_and_log.lua --data input.txt
-- The engine adds up sums and counts and divides once, so a step of 4 x 2 sequences is a step of 8, whatever each held.
local z3 = require 'z3'
local args = z3.args { data = 'input.txt', config = 'recipes/ds_config.json', steps = 60, seq = 128,
                       log = 'accumulate.jsonl' }

local tok    = z3.tokenizer.bytes()
local model  = require 'models.gpt2'.new('nano', { vocab_size = tok.vocab_size, n_ctx = args.seq })
local data   = z3.data.text(args.data, tok)
local engine = z3.initialize { model = model, config = args.config, log = args.log }
local loader = z3.data.loader { dataset = data, seq = args.seq, shuffle = true,
                                batch = engine.config.train_micro_batch_size_per_gpu }

for _ = 1, args.steps do
  local r = engine:train_batch(loader)
  if not r then break end
  if r.step % 10 == 0 then
    z3.print(('step %3d  loss %.4f  norm %.3f  clipped to %.2f  rate %.2e'):format(r.step, r.loss, r.grad_norm,
      r.clip_coef, r.lr))
  end
end
z3.print(('%d steps of %d micro-batches: %d sequences, %d bytes'):format(engine.step_count,
  engine.config.gradient_accumulation_steps, engine.samples, engine.tokens))

local best
for line in io.lines(args.log) do
  local row = z3.json.decode(line)
  if not best or row.loss < best.loss then best = row end
end
z3.print(('best step %d: loss %.4f'):format(best.step, best.loss))
