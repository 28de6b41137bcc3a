--- engine_run_spec.lua -- reports, logs, evaluation, how a run goes on, progress.
local z3     = require 'z3'
local helper = require 'tests.lua.helper'
local kit    = require 'tests.lua.engine_kit'
local nn     = z3.nn

local code_of, values, distance = kit.code_of, kit.values, kit.distance

local function read_lines(path)
  local rows = {}
  for line in io.lines(path) do rows[#rows + 1] = z3.json.decode(line) end
  return rows
end

describe('a report', function()
  it('has all its fields', function()
    local engine = kit.engine(kit.Lm, { schedule = z3.sched.constant { warmup = 4 } }, { gradient_clipping = 1 })
    assert.is_near(0.025, engine:lr(), 1e-12)
    local r = engine:train_batch(kit.batch(2, 5, 1))
    for _, key in ipairs { 'step', 'loss', 'grad_norm', 'clip_coef', 'lr', 'loss_scale', 'tokens', 'tokens_per_s',
      'step_s', 'memory_peak', 'gathered_bytes', 'reduced_bytes', 'wait_s', 'oom_retries' } do
      assert.equal('number', type(r[key]), key)
    end
    assert.equal(1, r.step)
    assert.is_false(r.skipped)
    assert.equal(10, r.tokens)
    assert.is_near(0.025, r.lr, 1e-12)
    assert.is_near(0.05, engine:lr(), 1e-12)
    assert.equal(1, r.loss_scale)
    assert.is_near(r.tokens / r.step_s, r.tokens_per_s, 1e-6 * r.tokens_per_s)
    assert(r.memory_peak > 0 and r.memory_limit == nil)
    assert.equal(1, engine:stats().steps)
    assert.equal(0, engine:stats().gathers)
    engine:close()
  end)

  it("takes rates from the config's scheduler", function()
    local engine = z3.initialize { model = kit.Lm(), config = { train_micro_batch_size_per_gpu = 2,
      optimizer = { type = 'AdamW', params = { lr = 1e-3 } },
      scheduler = { type = 'WarmupLR', params = { warmup_max_lr = 8e-4, warmup_num_steps = 4,
        warmup_type = 'linear' } } } }
    local rates = {}
    for k = 1, 6 do rates[k] = engine:train_batch(kit.batch(2, 3, k)).lr end
    for k, want in ipairs { 0, 0, 2e-4, 4e-4, 6e-4, 8e-4 } do assert.is_near(want, rates[k], 1e-12) end
    engine:close()
  end)

  it('counts time without evaluations', function()
    local engine = kit.engine(kit.Lm)
    local batch = kit.batch(1, 4, 1)
    local Slow = { next = function(self)
      if self.done then return nil end
      self.done = true
      local stop = os.clock() + 0.25
      while os.clock() < stop do end
      return batch
    end }
    engine:backward(engine:forward(batch))
    engine:evaluate(Slow)
    local r = engine:step()
    assert(r.step_s < 0.2, r.step_s)
    engine:close()
  end)
end)

describe('a log', function()
  it('has a line per step; a new run from a step drops the rows from there', function()
    local path = os.tmpname()
    local function run(n)
      local engine = kit.engine(kit.Lm, { log = path })
      for k = 1, n do engine:train_batch(kit.batch(1, 4, k)) end
      engine:close()
    end
    run(3)
    local rows = read_lines(path)
    assert.equal(3, #rows)
    for k, row in ipairs(rows) do
      assert.equal(k, row.step)
      assert.equal(4, row.tokens)
      assert.equal(4 * k, row.tokens_seen)
      assert(row.loss > 0 and row.lr == 0.1 and row.skipped == false)
    end
    run(2)
    assert.equal(2, #read_lines(path))
    local log = require('z3.log').steps(path, { 'step', 'loss' })
    log:write { step = 2, loss = 824708557567779 }
    log:close()
    local f = assert(io.open(path))
    local text = f:read '*a'
    f:close()
    assert.equal('{"step":2,"loss":824708557567779}', text:match '\n(.-)\n$')
    os.remove(path)
    assert.equal('IO', (code_of(function()
      local engine = kit.engine(kit.Lm, { log = '/nowhere/run.jsonl' })
      engine:train_batch(kit.batch(1, 4, 1))
    end)))
  end)

  it('writes null for what JSON cannot say', function()
    local line = require('z3.log').json_line({ step = 1, loss = 0 / 0, lr = 1e-3, big = 2 ^ 53, why = 'a"b' },
      { 'step', 'loss', 'lr', 'big', 'gone', 'why' })
    assert.equal('{"step":1,"loss":null,"lr":0.001,"big":9007199254740992,"why":"a\\u0022b"}', line)
  end)
end)

describe('evaluation', function()
  it('restores modes and leaves no mark on training', function()
    local function model() return kit.Lm { dropout = 0.4 } end
    local function run(evaluating)
      local engine, m = kit.engine(model, { optimizer = z3.optim.adamw { lr = 0.01 } },
        { gradient_accumulation_steps = 2 })
      m.head:eval()
      local function look()
        if not evaluating then return end
        local loss = engine:eval_batch(kit.batch(2, 5, 77))
        assert.equal(loss, engine:eval_batch(kit.batch(2, 5, 77)))       -- no dropout
        assert.equal(loss, engine:evaluate(kit.iter { kit.batch(2, 5, 77) }))
        assert.is_true(m.drop.training)
        assert.is_false(m.head.training)
      end
      for k = 1, 3 do
        for half = 0, 1 do
          look()
          local loss, count = engine:forward(kit.batch(2, 5, 2 * k + half))
          look()
          engine:backward(loss, count)
          look()
          engine:step()
        end
      end
      local v = values(m)
      engine:close()
      return v
    end
    assert.equal(0, distance(run(true), run(false)))
  end)

  it('weights by targets, goes round a loader once, respects max_batches', function()
    local engine = kit.engine(kit.Lm)
    local a, b = kit.batch(1, 6, 1, { 1 }), kit.batch(1, 6, 2)
    local la, lb = engine:eval_batch(a), engine:eval_batch(b)
    assert.is_near((la * 1 + lb * 6) / 7, engine:evaluate(kit.iter { a, b }), 1e-6)
    assert.is_near(la, engine:evaluate(kit.iter { a, b }, 1), 1e-6)
    local d = { numel = function() return 41 end, get = function(_, first, n)
      local ids = {}
      for i = 1, n do ids[i] = (first + i) % kit.VOCAB end
      return ids
    end }
    local loader = z3.data.loader { dataset = d, batch = 4, seq = 4 }
    local once = engine:evaluate(loader)
    assert.equal(0, loader.epoch)
    assert.is_near(once, engine:evaluate(loader), 1e-6)
    assert.equal('ARG', (code_of(engine.evaluate, engine, kit.iter {})))
    assert.equal('ARG', (code_of(engine.evaluate, engine, a)))
    assert.equal('ARG', (code_of(engine.evaluate, engine, loader, 0)))
    assert.equal('ARG', (code_of(engine.eval_batch, engine)))
    engine:close()
  end)

  it('works without an optimizer, where training says why it cannot', function()
    local engine = kit.engine(kit.Lm, { optimizer = false })
    assert(engine:eval_batch(kit.batch(1, 4, 1)) > 0)
    assert.equal(0, z3.memory.stats().by.grad.current)
    local code, text = code_of(engine.train_batch, engine, kit.batch(1, 4, 1))
    assert.equal('ARG', code)
    assert.matches('optimizer', text)
    assert.is_nil(engine:lr())
    engine:close()
  end)

  it('of a loss that is nan names the module', function()
    local engine, m = kit.engine(kit.Lm)
    local bad = { ['up.weight'] = z3.full(m.up.weight.shape, 0 / 0) }
    m:load_state_dict(bad, { strict = false })
    local code, text = code_of(engine.eval_batch, engine, kit.batch(1, 4, 1))
    assert.equal('OVERFLOW', code)
    assert.matches('nan', text)
    assert.matches('up', text)
    assert.is_true(m.training)
    engine:close()
  end)
end)

describe('a run', function()
  it('repeats bit for bit', function()
    local function run()
      local engine, m = kit.engine(function() return kit.Lm { dropout = 0.2 } end,
        { optimizer = z3.optim.adamw { lr = 0.01 } }, { gradient_clipping = 0.5, gradient_accumulation_steps = 2 })
      local losses = {}
      for k = 1, 8 do
        losses[k] = engine:train_batch(kit.iter { kit.batch(3, 7, 2 * k), kit.batch(2, 7, 2 * k + 1) }).loss
      end
      local v = values(m)
      engine:close()
      return losses, v
    end
    local a, av = run()
    local b, bv = run()
    assert.same(a, b)
    assert.equal(0, distance(av, bv))
    assert(a[8] < a[1])
  end)

  it('takes no memory from the system once it is steady, and gives micro-batches back at once', function()
    local d = { numel = function() return 4001 end, get = function(_, first, n)
      local ids = {}
      for i = 1, n do ids[i] = (first + i) % kit.VOCAB end
      return ids
    end }
    local loader = z3.data.loader { dataset = d, batch = 8, seq = 32 }
    local engine = kit.engine(kit.Lm, { data = loader, optimizer = z3.optim.adamw {} },
      { gradient_accumulation_steps = 2 })
    for _ = 1, 3 do engine:train_batch() end
    local before = z3.memory.stats()
    local live = tonumber(require('z3.ffi').C.z3_tensor_live())
    collectgarbage 'stop'
    for _ = 1, 5 do engine:train_batch() end
    local after = z3.memory.stats()
    assert.equal(live, tonumber(require('z3.ffi').C.z3_tensor_live()))
    collectgarbage 'restart'
    assert.equal(before.system_allocs, after.system_allocs)
    assert.equal(before.current, after.current)
    assert(after.allocs > before.allocs)
    engine:close()
  end)

  it('keeps tensors that modules keep, and frees the others', function()
    local kept, lost
    local Keeper = nn.class 'Keeper'
    function Keeper:init() self.lin = nn.Linear(3, 3) end
    function Keeper:forward(x)
      local h = self.lin(x)
      self.last, self.list = h:detach(), { h * 2 }
      lost = h + 1
      return h:sum()
    end
    local engine, m = kit.engine(Keeper)
    engine:train_batch(z3.ones { 2, 3 })
    kept = m.last:clone()
    assert.equal(2 * kept:sum():item(), m.list[1]:sum():item())
    local code = code_of(lost.sum, lost)
    assert.equal('STALE', code)
    engine:train_batch(z3.zeros { 2, 3 })
    assert.are_not.same(kept:totable(), m.last:totable())
    m.last, m.list = nil, nil
    engine:close()
  end)

  it('hands any value to the model untouched', function()
    local got
    local Any = nn.class 'Any'
    function Any:init() self.w = nn.Parameter({ 1 }) end
    function Any:forward(...) got = { n = select('#', ...), ... }; return self.w:sum() end
    local engine = kit.engine(Any)
    for _, batch in ipairs { 'text', 5, true, { 1, 2 }, print } do
      engine:train_batch(batch)
      assert.equal(batch, got[1])
      assert.equal(1, got.n)
    end
    assert.equal('ARG', (code_of(engine.train_batch, engine)))
    engine:close()
  end)

  it('stops when memory is short, and can begin again with more', function()
    z3.manual_seed(1)
    local m = nn.Linear(256, 256)
    collectgarbage()
    z3.memory.trim()
    z3.memory.set_limit(z3.memory.stats().current + 600 * 1024)
    local o = { model = m, optimizer = z3.optim.adamw {}, config = { train_micro_batch_size_per_gpu = 1 } }
    local code, _, e = code_of(z3.initialize, o)
    z3.memory.set_limit(nil)
    assert.equal('OOM', code)
    assert(e.requested > 0 and e.by and e.top)
    local engine = z3.initialize(o)
    engine:backward(engine:forward(z3.ones { 1, 256 }):sum())
    assert.equal(1, engine:step().step)
    engine:close()
  end)

  it('survives an error in the model: the window is dropped', function()
    local Fails = nn.class 'Fails'
    function Fails:init() self.w = nn.Parameter({ 1 }) end
    function Fails:forward(x)
      if x == 'bad' then error('model says no') end
      return (self.w * x):sum()
    end
    local engine = kit.engine(Fails, nil, { gradient_accumulation_steps = 2 })
    local ok, e = pcall(engine.train_batch, engine, kit.iter { 5, 'bad' })
    assert.is_false(ok)
    assert.matches('model says no', tostring(e))
    assert.is_near(2, engine:train_batch(kit.iter { 1, 3 }).grad_norm, 1e-6)
    engine:close()
  end)
end)

describe('progress', function()
  local RECIPE = [[
    local z3 = require 'z3'
    local m = z3.nn.Linear(2, 1)
    local Wrap = z3.nn.class 'Wrap'
    function Wrap:init() self.lin = m end
    function Wrap:forward(b) return self.lin(b.x):sum(), 2 end
    local data = { n = 0, next = function(d) d.n = d.n + 1; if d.n <= LIMIT then return { x = z3.ones{1, 2} } end end }
    local engine = z3.initialize { model = Wrap(), data = data, optimizer = z3.optim.sgd {} }
    for r in z3.progress(engine, STEPS, { terminal = TERMINAL }) do
      if r.step % 20 == 0 then print('at ' .. r.step) end
    end
    print('end ' .. engine.step_count)
  ]]

  local function run(values_of)
    local path = os.tmpname()
    local f = assert(io.open(path, 'wb'))
    f:write((RECIPE:gsub('%u%u%u%u%u+', values_of)))
    f:close()
    local out, problem, code = helper.z3lua(path)
    os.remove(path)
    assert.equal('', problem)
    assert.equal(0, code)
    return out
  end

  it('writes a few plain lines into a file', function()
    local out = run { LIMIT = '1000', STEPS = '40', TERMINAL = 'nil' }
    assert.is_nil(out:find '\r')
    local _, lines = out:gsub('\n', '\n')
    assert(lines >= 20 and lines <= 30, out)
    assert.matches('step 1/40  loss %-?%d+%.%d+', out)
    assert.matches('step 40/40', out)
    assert.matches('ETA', out)
    assert.matches('at 20\n', out)
    assert.matches('end 40', out)
  end)

  it('draws a bar on a terminal and clears it for what the body prints', function()
    local out = run { LIMIT = '1000', STEPS = '40', TERMINAL = 'true' }
    assert.matches('\r\27[K[=', out, 1, true)
    assert.matches('\r\27[Kat 20\n', out, 1, true)
    assert.matches('tokens/s', out, 1, true)
    assert.matches('\nend 40', out, 1, true)
  end)

  it("and the config's steps_per_print write to the error stream", function()
    local _, problem, code = helper.z3lua [[-e "
      local z3 = require 'z3'
      local m = z3.nn.Linear(2, 1)
      local engine = z3.initialize { model = m, optimizer = z3.optim.sgd {}, config = {
        train_micro_batch_size_per_gpu = 1, steps_per_print = 2 } }
      for _ = 1, 5 do engine:backward(engine:forward(z3.ones {1, 2}):sum()); engine:step() end"]]
    assert.equal(0, code)
    assert.matches('z3: step 2: loss', problem, 1, true)
    assert.matches('z3: step 4: loss', problem, 1, true)
    assert.is_nil(problem:find('step 3', 1, true))
  end)

  it('ends with the data', function()
    assert.matches('end 7', run { LIMIT = '7', STEPS = '40', TERMINAL = 'false' }, 1, true)
  end)
end)
