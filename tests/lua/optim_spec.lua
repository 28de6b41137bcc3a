--- optim_spec.lua -- optimizers through the engine against their formulas in Lua's doubles, and what they refuse.
local z3 = require 'z3'
local nn = z3.nn

local N, STEPS = 37, 6

-- loss = sum(w * g): the gradient of w is g itself.
local Linear = nn.class 'GivenGradient'
function Linear:init(start) self.w = nn.Parameter(z3.tensor(start)) end
function Linear:forward(g) return (self.w * g):sum(), 1 end

local function numbers(seed, scale)
  local rng, out = z3.data.random_tokens(1, N, 2001, seed), {}
  for i, v in ipairs(rng:totable()[1]) do out[i] = (v - 1000) / 1000 * scale end
  rng:free()
  return out
end

local function f32(list)
  local t = z3.tensor(list)
  local out = t:totable()
  t:free()
  return out
end

-- Trains `STEPS` steps on given gradients; returns the parameter after each.
local function run(optimizer, more)
  local model = Linear(numbers(1, 1))
  local o = { model = model, optimizer = optimizer, config = { train_micro_batch_size_per_gpu = 1,
    gradient_clipping = 0 } }
  for k, v in pairs(more or {}) do o[k] = v end
  local engine, trail = z3.initialize(o), {}
  for k = 1, STEPS do
    local g = z3.tensor(numbers(10 + k, 0.5))
    engine:train_batch(g)
    local full = model.w:full()
    trail[k] = full:totable()
    full:free()
    g:free()
  end
  engine:close()
  return trail
end

-- The same with a formula over doubles: step(p, g, state, k) returns the new p.
local function reference(formula)
  local p, states, trail = f32(numbers(1, 1)), {}, {}
  for i = 1, N do states[i] = { m = 0, v = 0 } end
  for k = 1, STEPS do
    local g = f32(numbers(10 + k, 0.5))
    for i = 1, N do p[i] = formula(p[i], g[i], states[i], k) end
    trail[k] = { unpack(p) }
  end
  return trail
end

local function close(want, got, tolerance)
  for k = 1, STEPS do
    for i = 1, N do
      local d = math.abs(want[k][i] - got[k][i])
      assert(d <= tolerance, ('step %d, element %d: %.9g, wants %.9g'):format(k, i, got[k][i], want[k][i]))
    end
  end
end

local function adam(lr, b1, b2, eps, wd, l2)
  return function(p, g, s, t)
    g = g + (l2 or 0) * p
    p = p * (1 - lr * (wd or 0))
    s.m, s.v = b1 * s.m + (1 - b1) * g, b2 * s.v + (1 - b2) * g * g
    return p - lr * (s.m / (1 - b1 ^ t)) / (math.sqrt(s.v / (1 - b2 ^ t)) + eps)
  end
end

local function sgd(lr, mu, nesterov, l2)
  return function(p, g, s, t)
    g = g + l2 * p
    s.m = t == 1 and g or mu * s.m + g
    if mu == 0 then return p - lr * g end
    return p - lr * (nesterov and g + mu * s.m or s.m)
  end
end

local function lion(lr, b1, b2, wd)
  return function(p, g, s)
    p = p * (1 - lr * wd)
    local u = b1 * s.m + (1 - b1) * g
    s.m = b2 * s.m + (1 - b2) * g
    return p - lr * (u > 0 and 1 or u < 0 and -1 or 0)
  end
end

local function code_of(fn, ...)
  local ok, e = pcall(fn, ...)
  return not ok and e.code or nil, not ok and tostring(e) or ''
end

describe('built-in optimizers follow their formulas', function()
  it('adamw', function()
    close(reference(adam(0.01, 0.9, 0.999, 1e-8, 0.01)), run(z3.optim.adamw { lr = 0.01 }), 2e-6)
    close(reference(adam(0.02, 0.8, 0.95, 1e-3, 0.2)),
      run(z3.optim.adamw { lr = 0.02, betas = { 0.8, 0.95 }, eps = 1e-3, weight_decay = 0.2 }), 2e-6)
  end)
  it('adam with L2', function()
    close(reference(adam(0.01, 0.9, 0.999, 1e-8, 0, 0.1)), run(z3.optim.adam { lr = 0.01, weight_decay = 0.1 }), 2e-6)
  end)
  it('sgd, plain, with momentum, nesterov', function()
    close(reference(sgd(0.1, 0, false, 0)), run(z3.optim.sgd { lr = 0.1 }), 1e-6)
    close(reference(sgd(0.1, 0.9, false, 0.01)),
      run(z3.optim.sgd { lr = 0.1, momentum = 0.9, weight_decay = 0.01 }), 2e-6)
    close(reference(sgd(0.1, 0.9, true, 0.01)),
      run(z3.optim.sgd { lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.01 }), 2e-6)
  end)
  it('lion', function()
    close(reference(lion(0.01, 0.9, 0.99, 0.1)),
      run(z3.optim.lion { lr = 0.01, betas = { 0.9, 0.99 }, weight_decay = 0.1 }), 1e-6)
  end)
  it('with a schedule and with groups', function()
    local function half(step) return 0.5 ^ (step - 1) end
    local want = reference(function(p, g, s, t) return adam(0.02 * half(t), 0.9, 0.999, 1e-8, 0.3)(p, g, s, t) end)
    close(want, run(z3.optim.adamw { lr = 0.1, weight_decay = 0 }, { schedule = half, groups = function(name, p)
      assert.equal('w', name)
      assert.equal(1, p.ndim)
      return { lr = 0.02, weight_decay = 0.3 }
    end }), 2e-6)
  end)
end)

describe('optim.custom', function()
  it('equals the built-in one when it does the same', function()
    local mine = z3.optim.custom {
      name = 'my adamw', state = { 'm', 'v' }, defaults = { lr = 0.01, b1 = 0.9, b2 = 0.999, decay = 0.1 },
      update = function(p, g, s, o)
        assert.equal(1, p.ndim)
        s.m:copy_(s.m * o.b1 + g * (1 - o.b1))
        s.v:copy_(s.v * o.b2 + g * g * (1 - o.b2))
        local m, v = s.m / (1 - o.b1 ^ o.step), s.v / (1 - o.b2 ^ o.step)
        p:copy_(p * (1 - o.lr * o.decay) - m / (v:sqrt() + 1e-8) * o.lr)
      end,
    }
    close(reference(adam(0.01, 0.9, 0.999, 1e-8, 0.1)), run(mine), 3e-6)
    close(reference(adam(0.02, 0.9, 0.999, 1e-8, 0.1)), run(mine { lr = 0.02 }), 3e-6)
  end)

  it('hands over whole parameters when asked, and the scheduled rate', function()
    local seen = {}
    local o = z3.optim.custom { name = 'whole', whole = true, defaults = { lr = 1 }, update = function(p, g, _, opt)
      seen[#seen + 1] = { p.shape, g.shape, opt.lr, opt.step }
      p:copy_(p - g * opt.lr)
    end }
    local model = nn.Linear(3, 2)
    local engine = z3.initialize { model = model, optimizer = o, schedule = function(k) return 1 / k end,
      config = { train_micro_batch_size_per_gpu = 1 } }
    for _ = 1, 2 do
      local loss = engine:forward(z3.ones { 1, 3 }):sum()
      engine:backward(loss)
      engine:step()
    end
    assert.same({ { 2, 3 }, { 2, 3 }, 1, 1 }, seen[1])
    assert.same({ { 2 }, { 2 }, 1, 1 }, seen[2])
    assert.same({ { 2, 3 }, { 2, 3 }, 0.5, 2 }, seen[3])
    engine:close()
  end)

  it('leaves a parameter alone when its update throws, and says that the engine is spoilt', function()
    local calls = 0
    local o = z3.optim.custom { name = 'thrower', defaults = { lr = 1 }, update = function(p, g)
      calls = calls + 1
      p:copy_(p - g)
      if calls == 2 then error('no more') end
    end }
    local model = nn.Linear(2, 1)
    local engine = z3.initialize { model = model, optimizer = o, config = { train_micro_batch_size_per_gpu = 1 } }
    local before = model.bias:full():item()
    engine:backward(engine:forward(z3.ones { 1, 2 }):sum())
    local ok, e = pcall(engine.step, engine)
    assert.is_false(ok)
    assert.matches('no more', tostring(e))
    assert.equal(before, model.bias:full():item())
    assert.equal('STALE', (code_of(engine.forward, engine, z3.ones { 1, 2 })))
    engine:close()
  end)
end)

describe('options of optimizers', function()
  it('are checked, with the nearest name', function()
    local code, text = code_of(z3.optim.adamw, { learning_rate = 1 })
    assert.equal('ARG', code)
    assert.matches('lr', text)
    for _, o in ipairs { { lr = -1 }, { lr = 0 / 0 }, { lr = '1' }, { betas = { 0.9 } }, { betas = { 0.9, 1 } },
      { eps = -1 }, { weight_decay = -0.1 } } do
      assert.equal('ARG', (code_of(z3.optim.adamw, o)))
    end
    assert.equal('ARG', (code_of(z3.optim.sgd, { nesterov = true })))
    assert.equal('ARG', (code_of(z3.optim.sgd, { betas = { 0.9, 0.9 } })))
    assert.equal('ARG', (code_of(z3.optim.custom, { name = 'x' })))
    assert.equal('ARG', (code_of(z3.optim.custom, { update = print, stat = {} })))
  end)

  it("default to PyTorch's", function()
    assert.same({ lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0.01 }, z3.optim.adamw().options)
    assert.same({ lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0 }, z3.optim.adam().options)
    assert.same({ lr = 1e-3, momentum = 0, nesterov = false, weight_decay = 0 }, z3.optim.sgd().options)
  end)

  it('come from a config as DeepSpeed reads it', function()
    local section = require('z3.optim.section').new
    local o = section { type = 'Adam', params = { lr = 0.5 } }
    assert.equal('adamw', o.name)
    assert.equal(0, o.options.weight_decay)
    assert.equal('adam', section { type = 'Adam', params = { lr = 0.5, adam_w_mode = false } }.name)
    assert.equal('adamw', section { type = 'AdamW', params = { lr = 0.5, adam_w_mode = false } }.name)
    assert.equal(0.9, section { type = 'SGD', params = { lr = 0.5, momentum = 0.9 } }.options.momentum)
    assert.same({ 0.95, 0.98 }, section { type = 'Lion', params = { lr = 1, betas = { 0.95, 0.98 } } }.options.betas)
    assert.equal('UNSUPPORTED', (code_of(section, { type = 'Lamb', params = {} })))
    local code, text = code_of(section, { type = 'AdmW', params = {} })
    assert.equal('CONFIG', code)
    assert.matches('AdamW', text)
    assert.equal('CONFIG', (code_of(section, { type = 'AdamW', params = { lr = -1 } })))
  end)

  it('per parameter too', function()
    local model = nn.Linear(2, 2)
    local function build(groups)
      return z3.initialize { model = model, optimizer = z3.optim.adamw {}, groups = groups }
    end
    local code, text = code_of(build, function() return { weight_deca = 1 } end)
    assert.equal('ARG', code)
    assert.matches('weight_decay', text)
    assert.matches('weight', text)
    assert.equal('ARG', (code_of(build, function() return 5 end)))
    build(function() return nil end):close()
  end)
end)
