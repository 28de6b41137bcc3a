--- train_parity_spec.lua -- twenty steps of a small GPT-2 and Llama against trajectories that PyTorch ran in float64:
-- AdamW, a large eps, Adam with L2, SGD with Nesterov, Lion, clipping with a schedule, uneven accumulation.
-- Data: tests/parity/data/train; its README says how it was made. Row b of the accumulation run is micro-batch b.
-- Z3_CPU: all
local z3 = require 'z3'

local ROOT = 'tests/parity/data/'
local RUNS = { 'adamw', 'adamw_big_eps', 'adam_l2', 'sgd_nesterov', 'lion', 'adamw_clip_cosine', 'adamw_accumulate4' }

local function manifest(path)
  local f = assert(io.open(path, 'rb'))
  local text = f:read '*a'
  f:close()
  return z3.json.decode(text)
end

local function optimizer(o)
  local decay = o.weight_decay_matrices or 0
  local kinds = {
    AdamW = function() return z3.optim.adamw { lr = o.lr, betas = o.betas, eps = o.eps, weight_decay = decay } end,
    Adam = function() return z3.optim.adam { lr = o.lr, betas = o.betas, eps = o.eps, weight_decay = o.l2 } end,
    SGD = function()
      return z3.optim.sgd { lr = o.lr, momentum = o.momentum, nesterov = o.nesterov, weight_decay = o.l2 }
    end,
    Lion = function() return z3.optim.lion { lr = o.lr, betas = o.betas, weight_decay = decay } end,
  }
  local groups = o.weight_decay_matrices and function(_, p)
    return { weight_decay = p.ndim >= 2 and o.weight_decay_matrices or o.weight_decay_vectors }
  end
  return kinds[o.type](), groups
end

-- Micro-batches of one step: rows first .. first+n-1, tokens without their last, labels without their first.
local function micro_batches(ids, labels, step, parts)
  local list, rows = {}, ids.shape[2] / parts
  local width = ids.shape[3] - 1
  for b = 0, parts - 1 do
    local x, y = ids[step]:narrow(0, b * rows, rows), labels[step]:narrow(0, b * rows, rows)
    list[b + 1] = { tokens = x:narrow(1, 0, width), targets = y:narrow(1, 1, width) }
  end
  local i = 0
  return { next = function() i = i + 1; return list[i] end }
end

local function near(what, got, want, tolerance)
  assert(math.abs(got - want) <= tolerance, ('%s: %.9g, wants %.9g within %.3g'):format(what, got, want, tolerance))
end

local function parameter(model, name)
  local short = name:gsub('^transformer%.', ''):gsub('^model%.', '')
  for n, p in model:parameters() do
    if n:gsub('^transformer%.', ''):gsub('^model%.', '') == short then return p end
  end
  error('no parameter ' .. name)
end

-- Each parameter's sum and norm, and the stored values, after the last step.
local function check_parameters(model, m, dir)
  for name, want in pairs(m.params_after) do
    local full = parameter(model, name):full()
    near(name .. ' sum', full:sum():item(), want.sum, want.sum_tolerance)
    near(name .. ' norm', (full * full):sum():sqrt():item(), want.l2, want.l2_tolerance)
  end
  local stored = z3.safetensors.load(dir .. '/tensors.safetensors')
  for name, info in pairs(m.tensors['tensors.safetensors']) do
    local full, want = parameter(model, name):full(), stored[name]
    if full.ndim == 2 then full = full:narrow(0, 0, want.shape[1]) end
    local d = (full - want):abs() - want:abs() * info.tolerance.rtol
    local worst = d:max():item()
    assert(worst <= info.tolerance.atol, ('%s: off by %.3g, allowed %.3g'):format(name, worst, info.tolerance.atol))
  end
end

local function run(arch, name)
  local dir = ROOT .. 'train/' .. arch .. '_' .. name
  local m = manifest(dir .. '/manifest.json')
  local data = z3.safetensors.load(ROOT .. 'train/batches.safetensors')
  local ids, labels = data.ids, data[m.labels]
  local model = require 'models.auto'.from_pretrained(ROOT .. m.model)
  local opt, groups = optimizer(m.optimizer)
  local s = type(m.schedule) == 'table' and m.schedule
  local engine = z3.initialize {
    model = model, optimizer = opt, groups = groups,
    schedule = s and z3.sched.transformers('cosine', { num_warmup_steps = s.warmup,
      num_training_steps = s.total }) or nil,
    config = { train_micro_batch_size_per_gpu = ids.shape[2] / m.micro_batches,
      gradient_accumulation_steps = m.micro_batches,
      gradient_clipping = type(m.clip_grad_norm) == 'number' and m.clip_grad_norm or 0 },
  }
  for k = 1, #m.loss do
    local r = engine:train_batch(micro_batches(ids, labels, k - 1, m.micro_batches))
    near(('loss of step %d'):format(k), r.loss, m.loss[k], m.loss_tolerance[k])
    near(('norm of step %d'):format(k), r.grad_norm, m.grad_norm[k], m.grad_norm_tolerance[k])
    near(('rate of step %d'):format(k), r.lr, m.lr[k], 1e-12)
  end
  near('loss after', engine:evaluate(micro_batches(ids, labels, #m.loss - 1, m.micro_batches)), m.loss_after,
    m.loss_after_tolerance)
  check_parameters(model, m, dir)
  engine:close()
end

describe('twenty steps of', function()
  setup(function()                              -- the table of rotary angles stays for the life of the process
    z3.scope(function()
      z3.no_grad(require 'models.auto'.from_pretrained(ROOT .. 'models/llama'),
        { tokens = z3.zeros({ 1, 33 }, { dtype = 'i32' }) })
    end)
  end)

  for _, arch in ipairs { 'gpt2', 'llama' } do
    for _, name in ipairs(RUNS) do
      it(arch .. ' ' .. name, function() z3.scope(run, arch, name) end)
    end
  end
end)
