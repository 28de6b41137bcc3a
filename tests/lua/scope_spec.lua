--- scope_spec.lua -- who frees tensors: scopes, free, the collector and its pace; memory statistics and limits.
local z3     = require 'z3'
local handle = require 'z3.handle'
local C      = require('z3.ffi').C

local MIB = 2 ^ 20

local function fails(code, pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, 'expected an error')
  assert.is_true(z3.is_error(e, code), tostring(e))
  assert.matches(pattern, e.message)
  return e
end

local function live() return tonumber(C.z3_tensor_live()) end

describe('free', function()
  it('ends a tensor; twice is harmless; use afterwards names it', function()
    local t = z3.zeros { 2, 3 }
    local n = live()
    t:free()
    assert.equal(n - 1, live())
    t:free()
    assert.equal(n - 1, live())
    for _, use in ipairs {
      function() return t + 1 end, function() return t.shape end, function() return t:item() end,
      function() return #t end, function() return t[0] end, function() return t:view(6) end,
      function() return z3.ones { 2, 3 } * t end, function() t:fill_(1) end,
    } do
      fails('STALE', 'f32 %(2,3%) was freed', use)
    end
    assert.equal('a freed tensor', tostring(t))
  end)

  it('leaves views and what backward needs alive', function()
    local x = z3.tensor({ 1, 2 }):requires_grad_()
    local v, y = x:view(2, 1), x * x
    local s = y:sum()
    y:free()
    x:free()
    assert.same({ { 1 }, { 2 } }, v:totable())
    s:backward()
  end)
end)

describe('z3.scope', function()
  it('frees what was made inside and not returned, and returns all results', function()
    local n, kept = live(), {}
    local a, b, c, d = z3.scope(function(x, y)
      for i = 1, 50 do kept[i] = z3.zeros { i } end
      return kept[1], nil, { deep = { kept[2] } }, x + y
    end, 1, 2)
    assert.equal(n + 2, live())
    assert.same({ 1 }, a.shape)
    assert.is_nil(b)
    assert.same({ 2 }, c.deep[1].shape)
    assert.equal(3, d)
    fails('STALE', 'made in a z3.scope', function() return kept[3] + 1 end)
  end)

  it('frees on error and passes the error on', function()
    local n = live()
    local e = fails('SHAPE', '', z3.scope, function() return z3.zeros { 2 } + z3.zeros { 3 } end)
    assert.is_true(z3.is_error(e))
    assert.equal(n, live())
    local ok, text = pcall(z3.scope, function() local _ = z3.zeros { 2 }; error('plain', 0) end)
    assert.same({ false, 'plain' }, { ok, text })
    assert.equal(n, live())
    assert.is_nil(handle.current())
  end)

  it('nests: a result of the inner one belongs to the outer one', function()
    local n, inner = live(), nil
    z3.scope(function()
      inner = z3.scope(function() return z3.ones { 3 } end)
      assert.equal(n + 1, live())
      assert.equal(3, inner:sum():item())
    end)
    assert.equal(n, live())
    fails('STALE', 'scope', function() return inner:sum() end)
    local outer = z3.ones { 1 }
    z3.scope(function() return z3.scope(function() return outer end) end)
    assert.equal(1, outer:item())
  end)

  it('does not free what is kept or made outside of it', function()
    local kept, apart
    z3.scope(function()
      kept = handle.keep(z3.ones { 1 })
      apart = handle.outside(function() return z3.ones { 2 } end)
    end)
    assert.equal(1, kept:item())
    assert.equal(2, apart:sum():item())
  end)

  it('lets backward work after its end', function()
    local x = z3.tensor({ 3 }):requires_grad_()
    local loss = z3.scope(function()
      local y = x * x
      return (y * 2):sum()
    end)
    loss:backward()
    assert.same({ 12 }, x.grad:totable())
  end)

  it('lets the collector take dead tensors when they are many or large, and frees the rest at its end', function()
    local n = live()
    z3.scope(function()
      local most = 0
      for _ = 1, 20000 do
        local _ = z3.zeros { 1 }
        most = math.max(most, live() - n)
      end
      assert.is_true(most > 100 and most < 10000, most)
    end)
    assert.equal(n, live())
    local x = z3.zeros({ 2 * MIB }, { device = 'null' })
    z3.memory.reset_peak 'null'
    z3.scope(function()
      for _ = 1, 1000 do local _ = x + 1 end
    end)
    assert.is_true(z3.memory.stats('null').peak < 300 * MIB, z3.bytes(z3.memory.stats('null').peak))
    assert.equal(n + 1, live())
  end)
end)

describe('the collector', function()
  it('keeps 10,000 temporaries of 8 MB in a plain loop below 300 MB', function()
    local x = z3.zeros({ 2 * MIB }, { device = 'null' })
    z3.memory.reset_peak 'null'
    local before = z3.memory.stats('null').current
    for _ = 1, 10000 do local _ = x + 1 end
    assert.is_true(z3.memory.stats('null').peak - before < 290 * MIB, z3.bytes(z3.memory.stats('null').peak))
  end)

  it('does the same on the cpu', function()
    local x = z3.zeros { 2 * MIB }
    z3.memory.reset_peak()
    for _ = 1, 100 do local _ = x + 1 end
    assert.is_true(z3.memory.stats().peak < 300 * MIB, z3.bytes(z3.memory.stats().peak))
  end)

  it('does not run because of views or freed tensors', function()
    handle.collect()
    local base, x = handle.live_bytes(), z3.zeros { MIB }
    for _ = 1, 1000 do
      local v = x:view(1024, 1024)
      local y = v[0] + 1
      y:free()
    end
    assert.equal(4 * MIB, handle.live_bytes() - base)
    x:free()
    assert.equal(base, handle.live_bytes())
  end)
end)

describe('z3.memory', function()
  it('counts by category', function()
    local before = z3.memory.stats()
    local t = z3.zeros { MIB }
    local now = z3.memory.stats()
    assert.equal(before.current + 4 * MIB, now.current)
    assert.equal(before.by.other.current + 4 * MIB, now.by.other.current)
    assert.is_true(now.peak >= now.current)
    local sum = 0
    for _, v in pairs(now.by) do sum = sum + v.current end
    assert.equal(now.current, sum)
    t:free()
    assert.equal(before.current, z3.memory.stats().current)
    fails('ARG', 'device', z3.memory.stats, 'gpu')
  end)

  it('enforces a limit: OOM says what, where and who', function()
    local held = z3.zeros { 4 * MIB }
    z3.memory.set_limit('40MiB')
    assert.equal(40 * MIB, z3.memory.stats().limit)
    local e = fails('OOM', '', z3.zeros, { 16 * MIB })
    z3.memory.set_limit(nil)
    assert.equal(64 * MIB, e.requested)
    assert.matches('asked for 64 MiB', e.message)
    assert.matches('limit 40 MiB', e.message)
    assert.equal(40 * MIB, e.limit)
    assert.equal('cpu', e.device)
    assert.is_true(e.by.other >= 16 * MIB)
    assert.is_true(#e.top >= 1 and #e.top <= 10 and e.top[1].bytes >= 16 * MIB)
    assert.equal('string', type(e.top[1].owner))
    assert.is_nil(z3.memory.stats().limit)
    assert.equal(0, held:sum():item())
    fails('ARG', 'no size', z3.memory.set_limit, '3 bananas')
    fails('ARG', 'nil means none', z3.memory.set_limit, 0)
  end)

  it('collects before it gives up', function()
    collectgarbage()
    z3.memory.set_limit(z3.memory.stats().current + 40 * MIB)
    for _ = 1, 20 do local _ = z3.zeros { 4 * MIB } end      -- 16 MiB each: only dead ones stand in the way
    local x = z3.zeros { 2 * MIB }
    for _ = 1, 20 do local _ = x + 1 end
    z3.memory.set_limit(nil)
    assert.equal(0, x:sum():item())
  end)

  it('counts what is in use, not what is kept for reuse', function()
    local x = z3.zeros { 2 * MIB }
    z3.memory.set_limit(z3.memory.stats().current + 5 * MIB)     -- less than the segment that x lies in
    local y = z3.zeros { MIB }
    fails('OOM', 'in use', z3.zeros, { MIB })
    z3.memory.set_limit(nil)
    assert.equal(0, (x:sum() + y:sum()):item())
  end)

  it('collects for the history that dead losses hold', function()
    local w = z3.ones({ 2 * MIB }, { requires_grad = true })
    collectgarbage()
    z3.memory.reset_peak()
    for i = 1, 120 do                           -- each holds 16 MiB, and looks like four bytes from here
      z3.scope(function() return ((w * i) * (w + 1)):sum() end)
    end
    assert.is_true(z3.memory.stats().peak < 700 * MIB, z3.bytes(z3.memory.stats().peak))
    w:free()
  end)

  it('refuses a limit below what is in use', function()
    local x = z3.zeros { 4 * MIB }
    fails('OOM', '16 MiB are in use', z3.memory.set_limit, 1000)
    fails('OOM', '', z3.memory.set_limit, 1000)
    assert.is_nil(z3.memory.stats().limit)
    x:free()
  end)
end)

describe('hot loops', function()
  it('are compiled: no trace is given up in the wrappers', function()
    local x, y = z3.ones { 4 }, z3.ones { 4 }
    local function loop(n)
      for _ = 1, n do
        local a = x + y
        local b = a * 0.5
        a:free()
        b:free()
      end
    end
    local done, aborted = 0, {}
    -- Leaving, entering or unrolling a loop (8, 9, 10) is how the compiler looks for the right start of a trace.
    local harmless = { [8] = true, [9] = true, [10] = true }
    local function watch(what, _, _, _, code, info)
      if what == 'stop' then done = done + 1
      elseif what == 'abort' and not harmless[code] then
        aborted[#aborted + 1] = tostring(code) .. ' ' .. tostring(info)
      end
    end
    jit.flush()
    jit.attach(watch, 'trace')
    for _ = 1, 5 do loop(200) end
    jit.attach(watch)
    assert.is_true(done > 0, 'nothing was compiled')
    assert.same({}, aborted)
  end)
end)
