--- null_spec.lua -- the null device runs the same programs as the cpu: equal shapes, dtypes and byte counts, no values.
-- Random programs over a growing set of tensors, forward and backward, are run on both and compared step by step.
local z3 = require 'z3'
require 'tests.lua.helper'
local F = z3.nn.functional

--- A small generator of its own: programs must not depend on math.random's state.
local function dice(seed)
  local x = seed * 2654435761 % 2 ^ 32
  return function(n)
    x = (x * 1664525 + 1013904223) % 2 ^ 32
    return math.floor(x / 65536) % n + 1
  end
end

local function first(t, fits)                     -- the newest tensor that fits
  for i = #t, 1, -1 do if fits(t[i]) then return t[i] end end
end
local function is_float(x) return x.dtype ~= 'i32' and x.dtype ~= 'i64' and x.dtype ~= 'u8' end
local function matrix(x) return x.ndim == 2 and is_float(x) and x:numel() > 0 end

-- Each takes the tensors so far and the dice, and returns a new tensor, or nil where none fits.
local STEPS = {
  function(t, d) local x = t[d(#t)]; return x + 1 end,
  function(t, d) local x = t[d(#t)]; return is_float(x) and F.gelu(x, 'tanh') or nil end,
  function(t, d) local x = t[d(#t)]; return is_float(x) and z3.tanh(x) * x or nil end,
  function(t, d) local x = t[d(#t)]; return x.ndim > 0 and x:sum(d(x.ndim) - 1) or nil end,
  function(t, d) local x = t[d(#t)]; return x.ndim > 0 and is_float(x) and x:mean(d(x.ndim) - 1, true) or nil end,
  function(t, d) local x = t[d(#t)]; return x.ndim > 1 and x:transpose(0, d(x.ndim) - 1) or nil end,
  function(t, d) local x = t[d(#t)]; return x:reshape(-1) end,
  function(t, d)
    local x = t[d(#t)]
    if x.ndim == 0 or x.shape[1] == 0 then return nil end
    return x:narrow(0, 0, d(x.shape[1]))
  end,
  function(t) local x = first(t, matrix); return x and z3.matmul(x, x:transpose(0, 1)) end,
  function(t) local x = first(t, matrix); return x and x:softmax(-1) end,
  function(t) local x = first(t, matrix); return x and F.layer_norm(x) end,
  function(t) local x = first(t, matrix); return x and z3.cat({ x, x }, 1) end,
  function(t, d) local x = t[d(#t)]; return is_float(x) and x:to(({ 'bf16', 'f32', 'f16' })[d(3)]) or nil end,
  function(t, d) local x = t[d(#t)]; return x:gt(0) end,
  function(t) local x = first(t, function(x) return x.ndim == 3 and is_float(x) end); return x and x:contiguous() end,
  function(t, d) local x = t[d(#t)]; return x:unsqueeze(0) end,
}

local MOST = 4096                                 -- elements: programs that grow beyond are cut short

local function text(x)
  return ('%s (%s) %d'):format(x.dtype, table.concat(x.shape, ','), x:numel())
end

--- Runs program number seed on a device.
-- @return what it saw: one line a step, then the gradients' shapes, then the peak of the memory
local function run(device, seed)
  return z3.scope(function()
    local d, seen = dice(seed), {}
    local function make(shape)
      local x = z3.randn(shape, { device = device })
      return x:requires_grad_()
    end
    z3.memory.reset_peak(device)
    local before = z3.memory.stats(device).current
    local leaves = { make { 2, 3, 4 }, make { 5, 3 }, make { 0, 4 } }
    local t = { unpack(leaves) }
    for _ = 1, 25 do
      local x = STEPS[d(#STEPS)](t, d)
      if x and x:numel() <= MOST and x.ndim < 6 then
        t[#t + 1] = x
        seen[#seen + 1] = text(x)
      end
    end
    local loss
    for _, x in ipairs(t) do
      if is_float(x) then
        local s = x:to('f32'):sum()
        loss = loss and loss + s or s
      end
    end
    loss:backward()
    for _, x in ipairs(leaves) do seen[#seen + 1] = x.grad and 'grad ' .. text(x.grad) or 'no grad' end
    seen[#seen + 1] = ('bytes %d'):format(z3.memory.stats(device).current - before)
    return seen
  end)
end

describe('the null device', function()
  it('agrees with the cpu on random programs', function()
    for seed = 1, 300 do
      local want, got = run('cpu', seed), run('null', seed)
      assert.are.same(want, got, 'program ' .. seed)
    end
  end)

  it('has no values to give', function()
    local x = z3.ones({ 2 }, { device = 'null' })
    for _, ask in ipairs { 'item', 'totable', 'data' } do
      local ok, e = pcall(x[ask], ask == 'item' and x:sum() or x)
      assert.is_false(ok)
      assert.is_true(z3.is_error(e, 'UNSUPPORTED'), tostring(e))
    end
  end)

  it('runs a model of any size without touching memory', function()
    z3.scope(function()
      local x = z3.zeros({ 1024, 1024, 1024, 64 }, { device = 'null' })     -- 256 GiB
      local y = (x * 2 + 1):sum()
      assert.are.equal('null', y.device)
      assert.is_true(z3.memory.stats('null').peak > 2 ^ 38)
    end)
    collectgarbage()
    collectgarbage()
  end)
end)
