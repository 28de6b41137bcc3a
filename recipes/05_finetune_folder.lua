-- 05: a Hugging Face folder (GPT-2 or Llama) goes on learning from a text, its embeddings frozen.
--   z3lua recipes/05_finetune_folder.lua --model ./folder --data input.txt
-- The model's tokenizer isn't read yet: this is for models that know bytes (ids 0 to 255).
local z3 = require 'z3'
local args = z3.args { model = '', data = 'input.txt', steps = 50, batch = 4, seq = 32, lr = 3e-4 }

local tok    = z3.tokenizer.bytes()
local train, held_out = z3.data.text(args.data, tok):split(0.9)
local model  = require 'models.auto'.from_pretrained(args.model)
for name, p in model:parameters() do
  if name:find 'wte' or name:find 'wpe' or name:find 'embed' then p:requires_grad_(false) end
end

local engine = z3.initialize {
  model = model, data = z3.data.loader { dataset = train, batch = args.batch, seq = args.seq, shuffle = true },
  optimizer = z3.optim.adamw { lr = args.lr }, schedule = z3.sched.linear { warmup = 5, total = args.steps },
  config = { train_micro_batch_size_per_gpu = args.batch },
}
local function held_out_loss()
  return engine:evaluate(z3.data.loader { dataset = held_out, batch = args.batch, seq = args.seq }, 10)
end
local before = held_out_loss()
for _ in z3.progress(engine, args.steps) do end
z3.print(('held out: %.4f before, %.4f after %d steps'):format(before, held_out_loss(), engine.step_count))
