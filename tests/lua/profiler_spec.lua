--- profiler_spec.lua -- z3.profiler: what a step is made of, spans, traces, and what they cost when off.
local z3  = require 'z3'
local kit = require 'tests.lua.engine_kit'
local C   = require('z3.ffi').C

local function row(r, work, phase)
  for _, x in ipairs(r.rows) do if x.work == work and x.phase == phase then return x end end
end

--- Some steps of a small model; profiling is on around all of them.
local function steps(n, options, config)
  local engine = kit.engine(kit.Lm, { optimizer = z3.optim.adamw {} }, config)
  z3.profiler.start(options)
  for i = 1, n do engine:train_batch(kit.batch(2, 3, i)) end
  local r = z3.profiler.stop()
  engine:close()
  return r
end

--- Runs fn(path) with a name for a file.
local function with_file(fn)
  local path = os.tmpname()
  local ok, e = pcall(fn, path)
  os.remove(path)
  if not ok then error(e, 0) end
end

local function trace_of(path)
  local f = assert(io.open(path))
  local text = f:read '*a'
  f:close()
  return z3.json.decode(text)
end

describe('z3.profiler', function()
  it('divides a step among kernels, the library and Lua', function()
    local r = steps(6)
    assert.equal(4, r.steps)
    assert.equal(2, r.warmup)
    assert.truthy(r.step_s > 0 and r.kernels_s > 0 and r.library_s > 0 and r.lua_s > 0)
    local sum = r.kernels_s + r.library_s + r.lua_s
    assert.truthy(math.abs(sum - r.step_s) <= 1e-6 * r.step_s, sum / r.step_s)
    local by_rows = 0
    for _, x in ipairs(r.rows) do by_rows = by_rows + x.seconds end
    assert.truthy(math.abs(by_rows - r.kernels_s) <= 1e-9)
    assert.truthy(math.abs(r.tokens_per_s * r.step_s - 6) < 1e-6, r.tokens_per_s)     -- 2 rows of 3 tokens
  end)

  it('counts each kind of work of a step, its products and bytes', function()
    local r = steps(4)
    -- 6 tokens: 8 -> 16 and 16 -> 11
    local flops = 2 * 6 * (8 * 16 + 16 * 11)
    local f, b = row(r, 'linear', 'forward'), row(r, 'linear', 'backward')
    assert.equal(2, f.calls)
    assert.equal(flops, f.flops)
    assert.equal(2, b.calls)
    assert.equal(2 * flops, b.flops)
    assert.equal(5, row(r, 'adamw', 'update').calls)           -- parameters
    assert.equal(5, row(r, 'sum of squares', 'norm').calls)
    local numel = 11 * 8 + 8 * 16 + 16 + 16 * 11 + 11
    assert.equal(28 * numel, row(r, 'adamw', 'update').bytes)
    assert.equal(4 * numel, row(r, 'sum of squares', 'norm').bytes)
    assert.equal(1, row(r, 'gelu_tanh', 'backward').calls)
    assert.is_nil(row(r, 'linear', 'recompute'))
    for i = 2, #r.rows do assert.truthy(r.rows[i - 1].seconds >= r.rows[i].seconds) end
  end)

  it('adds up accumulated micro-batches', function()
    local r = steps(1, { warmup = 0 }, { gradient_accumulation_steps = 1 })
    local engine = kit.engine(kit.Lm, nil, { gradient_accumulation_steps = 3 })
    z3.profiler.start { warmup = 0 }
    engine:train_batch(kit.iter { kit.batch(2, 3, 1), kit.batch(2, 3, 2), kit.batch(2, 3, 3) })
    local three = z3.profiler.stop()
    engine:close()
    assert.equal(1, three.steps)
    assert.equal(3 * row(r, 'linear', 'forward').calls, row(three, 'linear', 'forward').calls)
    assert.equal(0, three.warmup)
  end)

  it('names recomputed work', function()
    local engine = kit.engine(function()
      return require('models.gpt2').new { n_layer = 2, n_head = 2, n_embd = 8, vocab_size = 11, n_ctx = 4 }:checkpoint()
    end)
    z3.profiler.start()
    engine:train_batch(kit.batch(2, 3, 1))
    local r = z3.profiler.stop()
    engine:close()
    assert.equal(1, r.steps)                                   -- no more than the warm-up: taken as it is
    assert.equal(0, r.warmup)
    assert.equal(4, row(r, 'layer_norm', 'recompute').calls)
    assert.equal(5, row(r, 'layer_norm', 'forward').calls)     -- the last one is outside of the blocks
    assert.equal(5, row(r, 'layer_norm', 'backward').calls)
  end)

  it('takes the whole time where no engine steps', function()
    z3.profiler.start()
    local x = z3.randn { 4, 5 }
    local y = z3.profiler.span('product', function() return x:matmul(x:transpose(0, 1)) end)
    local r = z3.profiler.stop()
    assert.truthy(r.whole)
    assert.equal(1, row(r, 'matmul', 'forward').calls)
    assert.equal(2 * 4 * 5 * 4, row(r, 'matmul', 'forward').flops)
    assert.equal(1, row(r, 'random', 'data').calls)
    assert.equal('product', r.spans[1].name)
    assert.equal(1, r.spans[1].calls)
    assert.truthy(tostring(r):find 'no step of an engine')
    x:free()
    y:free()
  end)

  it('prints as a table', function()
    local text = tostring(steps(5))
    assert.truthy(text:find('^profile: 3 steps of %d+%.%d%d ms %(median %d+%.%d%d%), the first 2 left out, %d+ tokens'))
    for _, line in ipairs { '  kernels +%d+%.%d%d ms +%d+%.%d %%', '  library ', '  Lua ', '  work +calls +ms +share',
                            '  linear backward +2 +%d+%.%d%d%d +%d+%.%d %% +%d+%.%d +%d+%.%d',
                            '  system: %d+%.%d allocations, %d+%.%d minor page faults a step',
                            '  memory: peak %S+ %S+ %(param_shard ' } do
      assert.truthy(text:find('\n' .. line), line .. '\n' .. text)
    end
  end)

  it('writes a trace that says module, work, flops and bytes, once', function()
    with_file(function(path)
      steps(2, { events = 4096 })
      local count, dropped = z3.profiler.trace(path)
      assert.equal(0, dropped)
      local trace = trace_of(path)
      local kernels, found, first, last = 0, nil, nil, nil
      for _, e in ipairs(trace.traceEvents) do
        if e.ph == 'X' and e.tid == 2 then
          kernels = kernels + 1
          if e.name == 'linear backward' and e.args.module == 'up' then found = e end
        elseif e.ph == 'X' and e.tid == 1 then
          first = first or e
          last = e
        end
      end
      assert.equal(count, kernels)
      assert.equal(2 * 2 * 6 * 8 * 16, found.args.flops)
      assert.truthy(found.args.bytes > 0 and found.dur > 0)
      assert.equal('step 1', first.name)
      assert.equal('step 2', last.name)
      assert.equal(6, last.args.tokens)
      assert.truthy(found.ts >= first.ts and found.ts + found.dur <= last.ts + last.dur + 0.01)
      assert.equal(0, (z3.profiler.trace(path)))
    end)
  end)

  it('keeps the newest events and says how many it dropped', function()
    with_file(function(path)
      steps(3, { events = 10 })
      local count, dropped = z3.profiler.trace(path)
      assert.equal(10, count)
      assert.truthy(dropped > 0)
      assert.equal(dropped, trace_of(path).otherData.dropped_events)
    end)
  end)

  it('shows spans by name, and lets errors through', function()
    with_file(function(path)
      z3.profiler.start { events = 100 }
      assert.equal(7, (z3.profiler.span('say "hi"', function(x) return x end, 7)))
      local code = kit.code_of(z3.profiler.span, 'fails', function() z3.zeros { 2 }:view(3) end)
      assert.equal('SHAPE', code)
      z3.profiler.stop()
      z3.profiler.trace(path)
      local names = {}
      for _, e in ipairs(trace_of(path).traceEvents) do
        if e.tid == 3 and e.ph == 'X' then names[#names + 1] = e.name end
      end
      assert.same({ 'say "hi"', 'fails' }, names)
      assert.equal(3, z3.profiler.span('off', function() return 3 end))
    end)
  end)

  it('changes no number', function()
    local function losses(profiled)
      local engine = kit.engine(kit.Lm, { optimizer = z3.optim.adamw {} })
      if profiled then z3.profiler.start { events = 50 } end
      local out = {}
      for i = 1, 3 do out[i] = engine:train_batch(kit.batch(2, 3, i)).loss end
      if profiled then z3.profiler.stop() end
      engine:close()
      return out
    end
    assert.same(losses(false), losses(true))
  end)

  it('sees a steady step take nothing from the system', function()
    local r = steps(12)
    assert.equal(0, r.system_allocs.mean)
  end)

  it('refuses wrong options and times', function()
    assert.equal('ARG', (kit.code_of(z3.profiler.start, { event = 5 })))
    assert.equal('ARG', (kit.code_of(z3.profiler.start, { events = -1 })))
    assert.equal('ARG', (kit.code_of(z3.profiler.start, { warmup = 0.5 })))
    z3.profiler.start()
    z3.profiler.stop()
    assert.is_false(C.z3_prof_enabled())
    local code, text = kit.code_of(z3.profiler.trace, 'x.json')
    assert.equal('ARG', code)
    assert.truthy(text:find('no events were kept', 1, true))
    z3.profiler.start { events = 4 }
    z3.profiler.stop()
    assert.equal('IO', (kit.code_of(z3.profiler.trace, '/no/such/folder/x.json')))
  end)
end)
