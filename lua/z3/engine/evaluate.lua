--- evaluate.lua -- losses without a tape, in eval mode, that leave no mark on training: modes, random streams,
-- gradients and an open window are as before.
local err       = require 'z3.error'
local autograd  = require 'z3.autograd'
local rng       = require 'z3.random'
local batch     = require 'z3.engine.batch'
local clock     = require 'z3.engine.clock'
local nonfinite = require 'z3.engine.nonfinite'
local windows   = require 'z3.engine.window'

local M = {}

local function finite(v) return v == v and v ~= math.huge and v ~= -math.huge end

-- Loss sum and count of one micro-batch; a mean counts once.
local function one(engine, who, b)
  return batch.scoped(engine, function()
    local loss, count = engine.model(b)
    local n
    loss, n = windows.read(who, loss, count)
    return windows.value(loss), n
  end)
end

local function restore(engine, modes, state, started, ok, ...)
  for i, m in ipairs(engine.modules) do rawset(m, 'training', modes[i]) end
  rng.set_state(state)
  local w = engine.window
  if w.started then w.excluded = w.excluded + clock.now() - started end
  if not ok then error(..., 0) end
  return ...
end

-- Runs fn(...) in eval mode and outside of any micro-batch's random streams.
local function quietly(engine, fn, ...)
  local modes, state, started = {}, rng.state(), clock.now()
  for i, m in ipairs(engine.modules) do
    modes[i] = rawget(m, 'training')
    rawset(m, 'training', false)
  end
  rng.clear_position()
  return restore(engine, modes, state, started, pcall(autograd.no_grad, fn, ...))
end

local function check_value(engine, who, value, count, b)
  if count == 0 or finite(value) then return end
  nonfinite.throw_loss(who, value, nonfinite.module(engine, { b, n = 1 }))
end

--- See Engine:eval_batch.
function M.eval_batch(engine, b)
  engine:check_open 'eval_batch'
  if b == nil then err.throw('ARG', 'eval_batch: no micro-batch given') end
  return quietly(engine, function()
    local value, count = one(engine, 'eval_batch', b)
    check_value(engine, 'eval_batch', value, count, b)
    if count == 0 then return 0 end
    return count and value / count or value
  end)
end

local function all(engine, iter, limit)
  local sum, total, seen = 0, 0, 0
  while seen < limit do
    local b = iter:next()
    if b == nil then break end
    seen = seen + 1
    local value, count = one(engine, 'evaluate', b)
    check_value(engine, 'evaluate', value, count, b)
    if count ~= 0 then sum = sum + value end
    total = total + (count or 1)
    batch.recycle(engine, iter, b)
  end
  if seen == 0 then err.throw('ARG', 'evaluate: the iterator gave no micro-batch') end
  return total == 0 and 0 or sum / total
end

--- See Engine:evaluate.
function M.evaluate(engine, iter, max_batches)
  engine:check_open 'evaluate'
  if not batch.is_iterator(iter) then
    err.throw('ARG', 'evaluate: wants an iterator (a table with next), as z3.data.loader; eval_batch takes one'
      .. ' micro-batch')
  end
  if max_batches ~= nil and (type(max_batches) ~= 'number' or max_batches < 1 or max_batches % 1 ~= 0) then
    err.throw('ARG', ('evaluate: max_batches is %s, wants a whole number >= 1'):format(tostring(max_batches)))
  end
  -- A loader without end goes round once.
  local round = iter.epochs == nil and type(iter.batches_left) == 'function' and iter:batches_left() or math.huge
  return quietly(engine, all, engine, iter, math.min(max_batches or math.huge, round))
end

return M
