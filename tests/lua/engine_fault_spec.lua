--- engine_fault_spec.lua -- values that aren't finite, and what initialize refuses.
local z3  = require 'z3'
local kit = require 'tests.lua.engine_kit'
local nn  = z3.nn

local code_of, values = kit.code_of, kit.values

local function read_lines(path)
  local rows = {}
  for line in io.lines(path) do rows[#rows + 1] = z3.json.decode(line) end
  return rows
end

describe('values that are not finite', function()
  local function poisoned(o)
    local engine, m = kit.engine(kit.Lm, o)
    engine:train_batch(kit.batch(1, 4, 1))
    local good = values(m)
    m:load_state_dict({ ['up.bias'] = z3.full({ 16 }, math.huge) }, { strict = false })
    return engine, m, good
  end

  it('throw OVERFLOW with the parameter and the module; nothing is applied', function()
    local engine, m, good = poisoned()
    local before = values(m)
    local code, text, e = code_of(engine.train_batch, engine, kit.batch(1, 4, 2))
    assert.equal('OVERFLOW', code)
    assert.matches('wte.weight', text, 1, true)         -- the first parameter in order with a bad gradient
    assert.matches('whose output wasn\'t finite is up', text, 1, true)
    assert.equal('up', e.module)
    assert.equal('wte.weight', e.parameter)
    assert.equal(1, engine.step_count)
    for name, list in pairs(values(m)) do
      for i, v in ipairs(list) do assert(v == before[name][i]) end
    end
    m:load_state_dict({ ['up.bias'] = z3.tensor(good['up.bias']) }, { strict = false })
    assert.equal(2, engine:train_batch(kit.batch(1, 4, 2)).step)
    engine:close()
  end)

  it('are skipped and counted when asked', function()
    local path = os.tmpname()
    local engine, m, good = poisoned { nonfinite = 'skip', log = path, schedule = z3.sched.constant { warmup = 10 } }
    local tokens = engine.tokens
    local r = engine:train_batch(kit.batch(1, 4, 2))
    assert.is_true(r.skipped)
    assert.equal(1, engine.skipped)
    assert.equal(1, engine.step_count)
    assert.equal(tokens, engine.tokens)
    assert.is_near(0.02, engine:lr(), 1e-12)
    m:load_state_dict({ ['up.bias'] = z3.tensor(good['up.bias']) }, { strict = false })
    r = engine:train_batch(kit.batch(1, 4, 2))
    assert.is_false(r.skipped)
    assert.equal(2, r.step)
    engine:close()
    local rows = read_lines(path)
    assert.equal(3, #rows)
    assert.is_true(rows[2].skipped)
    os.remove(path)
  end)

  it('in a gradient only, say that every output was finite', function()
    local Sharp = nn.class 'Sharp'
    function Sharp:init() self.w = nn.Parameter({ 1 }, { init = 'zeros' }) end
    function Sharp:forward() return self.w:sqrt():sum() end
    local engine = kit.engine(Sharp)
    local code, text = code_of(engine.train_batch, engine, 1)
    assert.equal('OVERFLOW', code)
    assert.matches("every module's output was finite", text, 1, true)
    engine:close()
  end)

  it('in a loss only, name the loss', function()
    local Far = nn.class 'Far'
    function Far:init() self.w = nn.Parameter({ 1 }) end
    function Far:forward() return self.w:sum() + math.huge end
    local engine = kit.engine(Far)
    local code, text = code_of(engine.train_batch, engine, 1)
    assert.equal('OVERFLOW', code)
    assert.matches('loss is inf', text)
    engine:close()
  end)
end)

describe('initialize', function()
  it('says what is wrong', function()
    local m = nn.Linear(2, 2)
    local function bad(o) return code_of(z3.initialize, o) end
    local code, text = bad { modle = m }
    assert.equal('ARG', code)
    assert.matches('"model"', text)
    assert.equal('ARG', (bad {}))
    assert.equal('ARG', (bad { model = 5 }))
    assert.equal('ARG', (bad { model = m, data = {} }))
    assert.equal('ARG', (bad { model = m, optimizer = { lr = 1 } }))
    assert.equal('ARG', (bad { model = m, schedule = 5, optimizer = z3.optim.sgd {} }))
    assert.equal('ARG', (bad { model = m, nonfinite = 'ignore' }))
    assert.equal('UNSUPPORTED', (bad { model = m, policy = {} }))
    assert.equal('CONFIG', (bad { model = m, config = { train_micro_batch_size_per_gpu = 1,
      optimizer = { type = 'AdmW', params = {} } } }))
    assert.equal('CONFIG', (bad { model = m, config = { train_micro_batch_size_per_gpu = 1, bf16 = { enabled = true },
      fp16 = { enabled = true } } }))
    assert.is_truthy((bad { model = m, config = 'no-such-file.json' }))
    local engine = z3.initialize { model = m }
    assert.equal('ARG', (bad { model = m }))
    for _, name in ipairs { 'save', 'load', 'save_weights', 'set_policy', 'set_knobs' } do
      assert.equal('UNSUPPORTED', (code_of(engine[name], engine, '/tmp/x')))
    end
    assert.equal('table', type(engine:knobs()))
    engine:close()
  end)

  it('refuses a schedule that gives no rate', function()
    for _, v in ipairs { 0 / 0, -1, math.huge, 'x' } do
      local engine = kit.engine(kit.Lm, { schedule = function() return v end })
      assert.equal('ARG', (code_of(engine.train_batch, engine, kit.batch(1, 3, 1))))
      engine:close()
    end
  end)

  it('shows an effective config', function()
    local engine = z3.initialize { model = kit.Lm(), optimizer = z3.optim.sgd {}, config = { train_batch_size = 8,
      gradient_accumulation_steps = 2 } }
    assert.equal(4, engine.config.train_micro_batch_size_per_gpu)
    assert.equal(2, engine.config.gradient_accumulation_steps)
    assert.equal(1, engine.config.gradient_clipping)
    engine:close()
  end)
end)
