--- sched_spec.lua -- schedules against DeepSpeed's and Hugging Face's own tables, and the rules of the library's own.
local z3 = require 'z3'
local sched = z3.sched

local function manifest()
  local f = assert(io.open('tests/parity/data/sched/manifest.json', 'rb'))
  local text = f:read '*a'
  f:close()
  return z3.json.decode(text)
end

local function code_of(fn, ...)
  local ok, e = pcall(fn, ...)
  return not ok and e.code or nil, not ok and tostring(e) or ''
end

describe('schedules of others', function()
  local data = manifest()
  local tolerance = data.tolerance

  local function near(got, want)
    return math.abs(got - want) <= tolerance.atol + tolerance.rtol * math.abs(want)
  end

  assert(#data.tables >= 30)
  for _, t in ipairs(data.tables) do
    it(t.name, function()
      local rate, beta1
      if t.source == 'deepspeed' then
        local s = sched.deepspeed(t.type, t.params, t.optimizer_lr)
        rate, beta1 = s.rate, s.beta1
      else
        local o = { lr = t.optimizer_lr }
        for k, v in pairs(t.params) do o[k] = v end
        local factor = sched.transformers(t.type, o)
        rate = function(step) return t.optimizer_lr * factor(step) end
      end
      for k, want in ipairs(t.lr) do
        assert(near(rate(k), want), ('step %d: %.17g, wants %.17g'):format(k, rate(k), want))
      end
      assert(near(rate(#t.lr + 1), t.lr_after))
      if beta1 then
        for k, want in ipairs(t.beta1) do assert(near(beta1(k), want), ('beta1 of step %d'):format(k)) end
      elseif t.beta1 then
        for _, want in ipairs(t.beta1) do assert.equal(0.9, want) end
      end
    end)
  end

  it('starts in the middle after last_batch_iteration', function()
    local whole = sched.deepspeed('WarmupLR', { warmup_max_lr = 1, warmup_num_steps = 10, warmup_type = 'linear' }, 0.5)
    local rest = sched.deepspeed('WarmupLR', { warmup_max_lr = 1, warmup_num_steps = 10, warmup_type = 'linear',
      last_batch_iteration = 3 }, 0.5)
    assert.equal(0.5, rest.rate(1))
    for k = 2, 12 do assert.equal(whole.rate(k + 4), rest.rate(k)) end
  end)
end)

describe('own schedules', function()
  local all = {
    constant = {}, linear = {}, cosine = {}, cosine_with_restarts = { cycles = 3 }, polynomial = { power = 2 },
    inverse_sqrt = {}, wsd = { decay = 20 }, one_cycle = {},
  }
  for name, more in pairs(all) do
    it(name .. ' wastes no update', function()
      local W, T = 10, 100
      local o = { warmup = W, total = T, min = 0.1 }
      for k, v in pairs(more) do o[k] = v end
      local f = sched[name](o)
      for step = 1, W do assert.equal(step / W, f(step)) end
      assert.equal(1, f(W + 1))                 -- progress 0: the peak
      for step = 1, T do
        assert(f(step) > 0 and f(step) <= 1, ('step %d has %g'):format(step, f(step)))
      end
      assert(f(T) > 0.1 - 1e-15)
      assert.equal(f(37), f(37))                -- pure
      f(90)
      assert.equal(sched[name](o)(37), f(37))
    end)
  end

  it('follow their curves at progress (step - 1 - W)/(T - W)', function()
    local W, T, low = 4, 24, 0.2
    local linear, cosine = sched.linear { warmup = W, total = T, min = low }, sched.cosine { warmup = W, total = T }
    local square = sched.polynomial { warmup = W, total = T, power = 2 }
    local cycles = sched.cosine_with_restarts { warmup = W, total = T, cycles = 2 }
    local wsd = sched.wsd { warmup = W, total = T, decay = 5, min = low }
    for step = W + 1, T do
      local p = (step - 1 - W) / (T - W)
      assert.is_near(low + (1 - low) * (1 - p), linear(step), 1e-15)
      assert.is_near(0.5 * (1 + math.cos(math.pi * p)), cosine(step), 1e-15)
      assert.is_near((1 - p) ^ 2, square(step), 1e-15)
      assert.is_near(0.5 * (1 + math.cos(math.pi * (2 * p % 1))), cycles(step), 1e-12)
      local into = math.max(0, step - 1 - (T - 5)) / 5
      assert.is_near(low + (1 - low) * (1 - into), wsd(step), 1e-15)
    end
    assert.equal(low, linear(T + 1))
    assert.equal(low, linear(T + 1000))
    assert.is_near(0.5, sched.inverse_sqrt { warmup = 9 }(9 + 1 + 27), 1e-15)
  end)

  it('a run of warm-up 4 begins with quarters', function()
    local f = sched.constant { warmup = 4 }
    assert.same({ 0.25, 0.5, 0.75, 1, 1 }, { f(1), f(2), f(3), f(4), f(5) })
  end)

  it('refuse what makes no sense and name it', function()
    local code, text = code_of(sched.cosine, { warmup = 200, total = 100 })
    assert.equal('ARG', code)
    assert.matches('200', text)
    assert.matches('100', text)
    code, text = code_of(sched.cosine, { warmpu = 2, total = 100 })
    assert.equal('ARG', code)
    assert.matches('"warmup"', text)
    assert.equal('ARG', (code_of(sched.cosine, { warmup = 2 })))
    assert.equal('ARG', (code_of(sched.cosine, { total = 10.5 })))
    assert.equal('ARG', (code_of(sched.cosine, { total = 10, min = 2 })))
    assert.equal('ARG', (code_of(sched.wsd, { warmup = 60, total = 100, decay = 50 })))
    local f = sched.cosine { total = 10 }
    for _, step in ipairs { 0, -1, 1.5 } do assert.equal('ARG', (code_of(f, step))) end
    assert.equal('ARG', (code_of(f, '1')))
    code, text = code_of(sched.transformers, 'cosin', {})
    assert.equal('ARG', code)
    assert.matches('"cosine"', text)
    assert.equal('ARG', (code_of(sched.transformers, 'cosine', { num_warmup_steps = 1 })))
    assert.equal('ARG', (code_of(sched.transformers, 'linear', { num_warmup_steps = 11, num_training_steps = 10 })))
    assert.equal('CONFIG', (code_of(sched.deepspeed, 'WarmUpLR', {})))
    code, text = code_of(sched.deepspeed, 'WarmupLR', { warmup_num_step = 3 }, 1e-3)
    assert.equal('CONFIG', code)
    assert.matches('"warmup_num_steps"', text)
    assert.equal('CONFIG', (code_of(sched.deepspeed, 'WarmupDecayLR', {}, 1e-3)))
    assert.equal('CONFIG', (code_of(sched.deepspeed, 'WarmupLR', { warmup_num_steps = 0 }, 1e-3)))
  end)
end)
