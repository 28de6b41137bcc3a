--- engine_spec.lua -- accumulation, counting, clipping, the three-call form, frozen and untouched parameters, bf16.
local z3  = require 'z3'
local kit = require 'tests.lua.engine_kit'
local nn  = z3.nn

local code_of, values, distance = kit.code_of, kit.values, kit.distance

describe('accumulation', function()
  it('of uneven micro-batches equals one big batch', function()
    local whole = kit.batch(4, 6, 1, { [1] = 6, [2] = 1, [3] = 4, [4] = 0 })
    local big, big_model = kit.engine(kit.Lm)
    local small, small_model = kit.engine(kit.Lm, nil, { gradient_accumulation_steps = 4 })
    for _ = 1, 3 do
      local a = big:train_batch(whole)
      local parts = {}
      for b = 0, 3 do parts[b + 1] = kit.rows(whole, b, 1) end
      local r = small:train_batch(kit.iter(parts))
      assert.is_near(a.loss, r.loss, 1e-6)
      assert.is_near(a.grad_norm, r.grad_norm, 1e-6)
      assert.equal(11, r.tokens)
      assert.equal(11, a.tokens)
    end
    assert(distance(values(big_model), values(small_model)) < 1e-6)
    assert.equal(12, small.micro_count)
    assert.equal(3, small.step_count)
    assert.equal(33, small.tokens)
    assert.equal(12, small.samples)
    big:close()
    small:close()
  end)

  -- A model that returns what its batch says.
  local Said = nn.class 'Said'
  function Said:init() self.w = nn.Parameter({ 1 }, { init = 'ones' }) end
  function Said:forward(b) return (self.w * b.sum):sum(), b.count end

  it('weights by targets: 100 at 0.5 and 900 at 0.3 are 0.32', function()
    for _, kind in ipairs { 'number', 'tensor' } do
      local engine, model = kit.engine(Said, nil, { gradient_accumulation_steps = 2 })
      local function count(n) return kind == 'number' and n or z3.tensor({ n }, { dtype = 'i64' }) end
      local r = engine:train_batch(kit.iter { { sum = 50, count = count(100) }, { sum = 270, count = count(900) } })
      assert.is_near(0.32, r.loss, 1e-7)
      assert.is_near(0.32, r.grad_norm, 1e-7)
      assert.equal(1000, r.tokens)
      assert.is_near(1 - 0.1 * 0.32, model.w:full():item(), 1e-7)
      engine:close()
    end
  end)

  it('of plain losses is their mean', function()
    local engine, model = kit.engine(function() return kit.Given(2) end, nil, { gradient_accumulation_steps = 3 })
    local list = {}
    for i = 1, 3 do list[i] = z3.tensor { i, 2 * i } end
    local r = engine:train_batch(kit.iter(list))
    assert.is_near(6, r.loss, 1e-6)             -- (3 + 6 + 9) / 3
    assert.is_near(math.sqrt(4 + 16), r.grad_norm, 1e-6)
    assert.is_near(0.8, model.w:full():totable()[1], 1e-6)
    assert.is_near(0.6, model.w:full():totable()[2], 1e-6)
    engine:close()
  end)

  it('divides a short last window by what it had, then ends', function()
    local engine = kit.engine(function() return kit.Given(1) end, nil, { gradient_accumulation_steps = 4 })
    local list = {}
    for i = 1, 7 do list[i] = z3.tensor { i } end
    local iter = kit.iter(list)
    assert.is_near((1 + 2 + 3 + 4) / 4, engine:train_batch(iter).grad_norm, 1e-6)
    assert.is_near((5 + 6 + 7) / 3, engine:train_batch(iter).grad_norm, 1e-6)
    assert.is_nil(engine:train_batch(iter))
    assert.equal(2, engine.step_count)
    assert.equal(7, engine.micro_count)
    engine:close()
  end)

  it('takes micro-batches in which nothing counts', function()
    local engine, model = kit.engine(Said, { optimizer = z3.optim.sgd { lr = 0.1, weight_decay = 0.5 } },
      { gradient_accumulation_steps = 2 })
    local r = engine:train_batch(kit.iter { { sum = 8, count = 4 }, { sum = 0 / 0, count = 0 } })
    assert.is_near(2, r.loss, 1e-6)
    r = engine:train_batch(kit.iter { { sum = 5, count = 0 }, { sum = 0 / 0, count = 0 } })
    assert.equal(0, r.loss)
    assert.equal(0, r.grad_norm)
    assert.equal(0, r.tokens)
    assert.is_near((1 - 0.1 * 2.5) * 0.95, model.w:full():item(), 1e-6)     -- only the decay moved it
    local empty = kit.engine(kit.Lm)
    local none = z3.zeros({ 0, 4 }, { dtype = 'i32' })
    r = empty:train_batch { tokens = none, targets = none }
    assert.equal(0, r.loss)
    engine:close()
    empty:close()
  end)

  it('refuses losses that it cannot use', function()
    local Odd = nn.class 'Odd'
    function Odd:init() self.w = nn.Parameter({ 2 }) end
    function Odd:forward(b) return b.make(self.w) end
    local engine = kit.engine(Odd, nil, { gradient_accumulation_steps = 2 })
    local function try(...)
      local list = { ... }
      for i, make in ipairs(list) do list[i] = { make = make } end
      return code_of(engine.train_batch, engine, kit.iter(list))
    end
    local function mean(w) return w:sum() end
    local function sum(w) return w:sum(), 2 end
    assert.equal('SHAPE', (try(function(w) return w * 2 end)))
    assert.equal('ARG', (try(function() return nil end)))
    assert.equal('ARG', (try(function() return 3 end)))
    assert.equal('ARG', (try(function(w) return w:sum(), -1 end)))
    assert.equal('ARG', (try(function(w) return w:sum(), 'many' end)))
    assert.equal('ARG', (try(function(w) return w:sum(), w end)))
    assert.equal('DTYPE', (try(function() return z3.ones({ 1 }, { dtype = 'i32' }) end)))
    assert.equal('ARG', (try(mean, sum)))
    local code = try(function() return z3.ones { 1 } end)      -- no history
    assert.equal('ARG', code)
    assert.equal(0, engine.step_count)
    assert.is_near(0, engine:train_batch(kit.iter { { make = mean }, { make = mean } }).loss, 1e-9)
    engine:close()
  end)
end)

describe('clipping', function()
  local function norm_and_move(config)
    local engine, model = kit.engine(function() return kit.Given(2, 'zeros') end, nil, config)
    local r = engine:train_batch(z3.tensor { 3, 4 })
    local w = model.w:full():totable()
    engine:close()
    return r, w
  end

  it('multiplies by min(1, clip/(norm + 1e-6))', function()
    local r, w = norm_and_move { gradient_clipping = 0.5 }
    assert.is_near(5, r.grad_norm, 1e-6)
    assert.is_near(0.5 / (5 + 1e-6), r.clip_coef, 1e-12)
    assert.is_near(-0.1 * 3 * r.clip_coef, w[1], 1e-8)
    assert.is_near(-0.1 * 4 * r.clip_coef, w[2], 1e-8)
    r = norm_and_move { gradient_clipping = 10 }
    assert.equal(1, r.clip_coef)
  end)

  it('is off at 0 and 1.0 when absent', function()
    assert.equal(1, norm_and_move({ gradient_clipping = 0 }).clip_coef)
    local engine = z3.initialize { model = kit.Given(2), optimizer = z3.optim.sgd { lr = 0.1 },
      config = { train_micro_batch_size_per_gpu = 1 } }
    assert.is_near(1 / 5, engine:train_batch(z3.tensor { 3, 4 }).clip_coef, 1e-6)
    engine:close()
  end)
end)

describe('the three-call form', function()
  it('equals train_batch bit for bit, dropout included', function()
    local function model() return kit.Lm { dropout = 0.3 } end
    local config = { gradient_accumulation_steps = 2, gradient_clipping = 0.3 }
    local a, am = kit.engine(model, nil, config)
    local b, bm = kit.engine(model, nil, config)
    for step = 1, 3 do
      local list = { kit.batch(2, 5, step), kit.batch(2, 5, step + 50, { 3 }) }
      local want = a:train_batch(kit.iter(list))
      local got
      for i, batch in ipairs(list) do
        assert.is_nil(got)
        b:backward(b:forward(batch))
        got = b:step()
        assert(i == 2 or got == nil)
      end
      for _, key in ipairs { 'step', 'loss', 'grad_norm', 'clip_coef', 'lr', 'tokens', 'skipped' } do
        assert.equal(want[key], got[key])
      end
    end
    assert.equal(0, distance(values(am), values(bm)))
    assert.equal(a.samples, b.samples)
    a:close()
    b:close()
  end)

  it('returns what the model returned, alive after the step', function()
    local engine = kit.engine(function() return kit.Given(2) end)
    local loss = engine:forward(z3.tensor { 1, 2 })
    engine:backward(loss)
    local r = engine:step()
    assert.equal(3, loss:item())
    assert.equal(3, r.loss)
    engine:close()
  end)

  it('says which call is missing', function()
    local engine = kit.engine(function() return kit.Given(1) end, nil, { gradient_accumulation_steps = 2 })
    local g = z3.tensor { 1 }
    local code, text = code_of(engine.step, engine)
    assert.equal('ARG', code)
    assert.matches('backward', text)
    local loss = engine:forward(g)
    code, text = code_of(engine.step, engine)
    assert.equal('ARG', code)
    assert.matches('backward is missing', text)
    engine:backward(loss)
    code, text = code_of(engine.backward, engine, loss)
    assert.equal('ARG', code)
    assert.matches('twice', text)
    code, text = code_of(engine.forward, engine, g)
    assert.equal('ARG', code)
    assert.matches('step', text)
    assert.is_nil(engine:step())
    assert.equal('ARG', (code_of(engine.step, engine)))
    assert.equal('ARG', (code_of(engine.train_batch, engine, g)))
    engine:backward(engine:forward(g))
    assert.equal(1, engine:step().step)
    engine:forward(g)                           -- a look at the model between steps stands in nobody's way
    assert.is_near(1, engine:train_batch(kit.iter { g, g }).grad_norm, 1e-7)
    engine:backward(engine:forward(g))
    local last = engine:step(true)              -- the data ran out
    assert.equal(3, last.step)
    assert.is_near(1, last.grad_norm, 1e-7)
    engine:close()
  end)

  it('a second backward of the same loss is STALE and drops the window', function()
    local engine = kit.engine(function() return kit.Given(1) end)
    local loss = engine:forward(z3.tensor { 1 })
    engine:backward(loss)
    engine:step()
    assert.equal('STALE', (code_of(engine.backward, engine, loss)))
    engine:backward(engine:forward(z3.tensor { 3 }))
    assert.is_near(3, engine:step().grad_norm, 1e-6)
    engine:close()
  end)

  it('draws other masks in a second forward of one micro-batch', function()
    local Twice = nn.class 'Twice'
    function Twice:init() self.w = nn.Parameter({ 64 }, { init = 'ones' }) self.drop = nn.Dropout(0.5) end
    function Twice:forward() return self.drop(self.w * 1) end
    local engine = kit.engine(Twice)
    local a, b = engine:forward(), engine:forward()
    assert.are_not.same(a:totable(), b:totable())
    engine:backward((a + b):sum())
    engine:step()
    engine:close()
  end)
end)

describe('parameters under an engine', function()
  it('show their gradient between backward and step', function()
    local engine, model = kit.engine(function() return kit.Given(2) end, nil, { gradient_accumulation_steps = 2 })
    assert.is_nil(model.w:grad())
    engine:backward(engine:forward(z3.tensor { 1, 2 }))
    assert.same({ 1, 2 }, model.w:grad():totable())
    engine:step()
    engine:backward(engine:forward(z3.tensor { 3, 6 }))
    assert.same({ 2, 4 }, model.w:grad():totable())
    engine:step()
    assert.is_nil(model.w:grad())
    engine:close()
  end)

  it('that no micro-batch touched count as zero: decay and moments still move them', function()
    local function model() return kit.Lm { spare = true } end
    local engine, m = kit.engine(model, { optimizer = z3.optim.adamw { lr = 0.1, weight_decay = 0.5 } })
    engine:train_batch(kit.batch(1, 4, 1))
    for _, v in ipairs(m.spare:full():totable()) do assert.is_near(0.95, v, 1e-6) end
    engine:close()
  end)

  it('keep no stale gradient from an earlier window', function()
    local Either = nn.class 'Either'
    function Either:init() self.a, self.b = nn.Parameter({ 1 }), nn.Parameter({ 1 }) end
    function Either:forward(which) return (self[which] * 3):sum() end
    local engine, m = kit.engine(Either)
    engine:train_batch 'a'
    local r = engine:train_batch 'b'
    assert.is_near(3, r.grad_norm, 1e-6)
    assert.is_near(-0.3, m.a:full():item(), 1e-6)
    assert.is_near(-0.3, m.b:full():item(), 1e-6)
    engine:close()
  end)

  it('freeze and thaw from the next step on', function()
    local engine, m = kit.engine(kit.Lm, { optimizer = z3.optim.adamw { lr = 0.01 } })
    m.wte:requires_grad_(false)
    local before = z3.memory.stats().by.grad.current
    local start = values(m)
    engine:train_batch(kit.batch(2, 4, 1))
    assert(z3.memory.stats().by.grad.current < before)
    local after = values(m)
    assert.same(start['wte.weight'], after['wte.weight'])
    assert.are_not.same(start['up.weight'], after['up.weight'])
    m.wte:requires_grad_(true)
    engine:train_batch(kit.batch(2, 4, 2))
    assert.are_not.same(start['wte.weight'], values(m)['wte.weight'])
    engine:close()
  end)

  it('frozen from the start have neither gradient nor state', function()
    z3.manual_seed(5)
    local m = kit.Lm()
    m.wte:requires_grad_(false)
    local before = z3.memory.stats().by
    local engine = z3.initialize { model = m, optimizer = z3.optim.adamw {} }
    local after = z3.memory.stats().by
    local trained = 4 * (m:numel() - m.wte:numel())
    local slack = 64 * 8                        -- the pool rounds sizes up
    local grad, state = after.grad.current - before.grad.current, after.optimizer.current - before.optimizer.current
    assert(grad >= trained and grad <= trained + slack, grad)
    assert(state >= 2 * trained and state <= 2 * trained + slack, state)
    engine:close()
    assert.equal(before.grad.current, z3.memory.stats().by.grad.current)
    assert.equal(before.optimizer.current, z3.memory.stats().by.optimizer.current)
  end)

  it('take new values after initialize', function()
    for _, dtype in ipairs { 'f32', 'bf16' } do
      local engine, m = kit.engine(kit.Lm, nil, { bf16 = { enabled = dtype == 'bf16' } })
      engine:train_batch(kit.batch(1, 4, 1))
      local other = {}
      for name, p in m:parameters() do other[name] = z3.full(p.shape, 0.1) end
      m:load_state_dict(other)
      for _, p in m:parameters() do
        assert.equal(other[p.name]:sum():item(), p:full():sum():item())   -- the master holds 0.1 unrounded
      end
      local r = engine:train_batch(kit.batch(1, 4, 1))
      assert.is_near(math.log(kit.VOCAB), r.loss, 1e-3)                   -- all logits alike
      engine:close()
    end
  end)

  it('are released for good when the engine closes', function()
    local engine, m = kit.engine(kit.Lm)
    engine:close()
    engine:close()
    assert.equal('RELEASED', (code_of(m, kit.batch(1, 2, 1))))
    assert.equal('STALE', (code_of(engine.train_batch, engine, kit.batch(1, 2, 1))))
    assert.equal('STALE', (code_of(engine.eval_batch, engine, kit.batch(1, 2, 1))))
  end)
end)

describe('bf16', function()
  it('keeps f32 masters: small updates are not lost', function()
    local engine, m = kit.engine(function() return kit.Given(1) end, { optimizer = z3.optim.adam { lr = 6e-4 } },
      { bf16 = { enabled = true } })
    assert.equal('bf16', m.w.dtype)
    local g = z3.ones({ 1 }, { dtype = 'bf16' })
    for _ = 1, 100 do engine:train_batch(g) end
    local full = m.w:full()
    assert.equal('f32', full.dtype)
    assert.is_near(0.94, full:item(), 1e-4)
    assert.equal(full:to 'bf16':item(), (m.w * 1):item())                -- the working value is the master, rounded
    engine:close()
  end)

  it('starts from the same values as f32, rounded, and trains alike', function()
    local a, am = kit.engine(kit.Lm, { optimizer = z3.optim.adamw { lr = 0.01 } })
    local b, bm = kit.engine(kit.Lm, { optimizer = z3.optim.adamw { lr = 0.01 } }, { bf16 = { enabled = true } })
    assert.equal(0, distance(values(am), values(bm)))
    for k = 1, 5 do
      local batch = kit.batch(4, 8, k)
      local x, y = a:train_batch(batch), b:train_batch(batch)
      assert.is_near(x.loss, y.loss, 0.03)
      assert.is_near(x.grad_norm, y.grad_norm, 0.05 * x.grad_norm)
    end
    a:close()
    b:close()
  end)

  it('takes models whose values are 16-bit already', function()
    local m = kit.Lm():set_dtype 'bf16'
    m:materialise()
    local start = values(m)
    local engine = z3.initialize { model = m, optimizer = z3.optim.sgd { lr = 1e-4 },
      config = { train_micro_batch_size_per_gpu = 1, bf16 = { enabled = true } } }
    assert.equal(0, distance(start, values(m)))
    engine:train_batch(kit.batch(2, 4, 1))
    assert(distance(start, values(m)) > 0)
    engine:close()
  end)
end)
