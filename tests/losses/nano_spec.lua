--- nano_spec.lua -- the loss curve of twenty steps of a small GPT on real text: stored, repeated bit for bit, and alike
-- with another number of threads.
-- Z3_CPU: all
-- nano_f32.txt holds one loss a line. To renew it after a change that means to change numbers:
--   Z3_WRITE_LOSSES=1 and run this file; say in the commit how far the curve moved.
local z3 = require 'z3'
local C  = require('z3.ffi').C

local GOLDEN = 'tests/losses/nano_f32.txt'
local ACROSS_MACHINES = 2e-4                    -- other vector lengths and product kernels round differently
local ACROSS_THREADS = 1e-4                     -- products split their sums by threads

local function curve(dtype)
  return z3.scope(function()
    z3.manual_seed(1)
    local ids = z3.safetensors.load 'tests/parity/data/train/batches.safetensors'.ids
    local steps, width = ids.shape[1], ids.shape[3] - 1
    local engine = z3.initialize {
      model = require 'models.gpt2'.new('nano', { n_ctx = width, dropout = 0.1 }),
      optimizer = z3.optim.adamw { lr = 1e-3, betas = { 0.9, 0.95 }, weight_decay = 0.1 },
      schedule = z3.sched.cosine { warmup = 5, total = steps, min = 0.1 },
      config = { train_micro_batch_size_per_gpu = 2, gradient_accumulation_steps = 2,
        bf16 = { enabled = dtype == 'bf16' } },
    }
    local losses = {}
    for k = 0, steps - 1 do
      local rows, m = ids[k], 0
      losses[k + 1] = engine:train_batch({ next = function()
        m = m + 1
        local part = rows:narrow(0, 2 * (m - 1), 2)
        return { tokens = part:narrow(1, 0, width), targets = part:narrow(1, 1, width) }
      end }).loss
    end
    engine:close()
    return losses
  end)
end

local function near(a, b, tolerance)
  assert.equal(#a, #b)
  for k = 1, #a do
    assert(math.abs(a[k] - b[k]) <= tolerance, ('step %d: %.9g and %.9g'):format(k, a[k], b[k]))
  end
end

describe('the loss curve', function()
  it('is the stored one', function()
    local losses = curve 'f32'
    if os.getenv 'Z3_WRITE_LOSSES' then
      local f = assert(io.open(GOLDEN, 'wb'))
      for _, v in ipairs(losses) do f:write(('%.9g\n'):format(v)) end
      f:close()
    end
    local stored = {}
    for line in io.lines(GOLDEN) do stored[#stored + 1] = tonumber(line) end
    near(losses, stored, ACROSS_MACHINES)
    assert(losses[#losses] < losses[1] - 1.5)
  end)

  for _, dtype in ipairs { 'f32', 'bf16' } do
    it('in ' .. dtype .. ' repeats bit for bit', function()
      assert.same(curve(dtype), curve(dtype))
    end)
  end

  it('is alike with one thread and with two', function()
    local before = C.z3_threads(0)
    local curves = {}
    for n = 1, 2 do
      C.z3_threads(n)
      curves[n] = curve 'f32'
    end
    C.z3_threads(before)
    near(curves[1], curves[2], ACROSS_THREADS)
  end)
end)
