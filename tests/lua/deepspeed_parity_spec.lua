--- deepspeed_parity_spec.lua -- DeepSpeed's own configs, unchanged, against the losses, norms and rates that it got:
-- stages 0 to 3, fp32 and bf16, accumulation 1 and 3, Adam in both readings, clipping absent and off. Runs of one rank.
-- Not followed: DeepSpeed's bf16 at stage 0, which takes one step with zero gradients before the first (the manifest
-- says so); there plain bf16 training is the reference.
local z3 = require 'z3'

local ROOT = 'tests/parity/data/'

local function manifest()
  local f = assert(io.open(ROOT .. 'deepspeed/manifest.json', 'rb'))
  local text = f:read '*a'
  f:close()
  return z3.json.decode(text)
end

local m = manifest()
local tolerance = m.tolerance

local function near(what, got, want, allowed)
  assert(math.abs(got - want) <= allowed, ('%s: %.9g, wants %.9g within %.3g'):format(what, got, want, allowed))
end

-- The micro-batches of one step, in order; position t predicts the label of t + 1.
local function micro_batches(rows_BT, micro)
  local first, B, T = -micro, rows_BT.shape[1], rows_BT.shape[2]
  return { next = function()
    first = first + micro
    if first >= B then return nil end
    local rows = rows_BT:narrow(0, first, micro)
    return { tokens = rows:narrow(1, 0, T - 1), targets = rows:narrow(1, 1, T - 1) }
  end }
end

local function run(r)
  local bf16 = r.ds_config.bf16 ~= nil
  local odd = bf16 and r.ds_config.zero_optimization.stage == 0
  local ids = z3.safetensors.load(ROOT .. 'deepspeed/batches.safetensors').ids
  local model = require 'models.auto'.from_pretrained(ROOT .. m.model, { dtype = bf16 and 'bf16' or 'f32' })
  local engine = z3.initialize { model = model, config = r.ds_config }
  local loss_tolerance = bf16 and tolerance.bf16_loss or tolerance.fp32_loss
  local norm_tolerance = bf16 and tolerance.bf16_grad_norm_relative or tolerance.fp32_grad_norm_relative
  for k = 1, m.steps do
    local report = engine:train_batch(micro_batches(ids[k - 1], engine.config.train_micro_batch_size_per_gpu))
    near(('loss of step %d'):format(k), report.loss, (odd and m.bf16_plain_loss or r.loss)[k], loss_tolerance)
    near(('rate of step %d'):format(k), report.lr, r.lr[k], tolerance.lr)
    local norm = not odd and r.grad_norm and r.grad_norm[k]
    if type(norm) == 'number' then
      near(('norm of step %d'):format(k), report.grad_norm, norm, norm_tolerance * norm)
    end
  end
  if not odd then
    near('loss after', engine:evaluate(micro_batches(ids[0], 4)), r.loss_after, loss_tolerance)
  end
  engine:close()
end

describe('DeepSpeed', function()
  for _, r in ipairs(m.runs) do
    if r.ranks == 1 then
      it(r.name, function() z3.scope(run, r) end)
    end
  end
end)
