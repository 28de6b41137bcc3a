--- accumulate.lua -- forward and backward of micro-batches until a window is full.
-- Every entry point guards itself: an error drops the window (its gradients are forgotten, nothing was applied) and
-- leaves the engine ready for the next one.
local err     = require 'z3.error'
local rng     = require 'z3.random'
local T       = require 'z3.tensor'
local C       = require('z3.ffi').C
local batch   = require 'z3.engine.batch'
local clock   = require 'z3.engine.clock'
local weights = require 'z3.engine.weights'
local windows = require 'z3.engine.window'

local M = {}

--- Forgets what a window gathered so far.
function M.drop(engine)
  weights.clear(engine.slots)
  engine.window = windows.new()
end

local function settle(engine, ok, ...)
  if ok then return ... end
  rng.clear_position()
  M.drop(engine)
  error(..., 0)
end

--- Runs fn(...); when it throws, the window is dropped and the error goes on.
function M.guarded(engine, fn, ...)
  return settle(engine, pcall(fn, ...))
end

--- Throws unless the engine trains and is in order.
function M.check_trains(engine, who)
  engine:check_open(who)
  if not engine.optimizer then
    err.throw('ARG', who .. ': this engine has no optimizer (in the config or as an option), it can only evaluate')
  end
end

-- The first call of a window: changed requires_grad flags act now, and its time starts.
local function begin(engine)
  local w = engine.window
  if w.started then return w end
  weights.sync(engine.slots, engine.optimizer)
  w.started, w.excluded = clock.now(), 0
  if C.z3_prof_enabled() then require('z3.profiler').step_begins() end
  return w
end

-- The model on one micro-batch, at its own place in the random streams. A second forward of the same micro-batch goes
-- on in the stream, so that its dropout differs.
local function run(engine, w, ...)
  local step, micro = engine.step_count + 1, w.micro * engine.world + engine.rank
  rng.set_position(step, micro)
  if w.calls then
    local s = rng.state()
    s.inner_calls = w.calls
    rng.set_state(s)
  end
  return (function(...)
    w.calls = rng.state().inner_calls
    rng.clear_position()
    return ...
  end)(engine.model(...))
end

-- Random position of a micro-batch's forward, for running it again.
function M.position(engine, micro)
  local s = rng.state()
  s.step, s.micro, s.inner_calls = engine.step_count + 1, micro * engine.world + engine.rank, 0
  return s
end

local function note_bad(w, value, args)
  if not w.bad and (value ~= value or value == math.huge or value == -math.huge) then
    w.bad = { value = value, args = args, micro = w.micro }
  end
end

-- Backward of one micro-batch's loss, and its place in the window's sums.
local function accumulate(w, who, loss, count, args)
  loss, count = windows.read(who, loss, count)
  local value = windows.value(loss)
  w:add(value, count)
  if count == 0 then return end                 -- nothing counted: its gradient is zero whatever the sum says
  note_bad(w, value, args)
  loss:backward()
end

-- ---- train_batch ---------------------------------------------------------------------------------

local function micro_batch(engine, w, b, args)
  local loss, count = run(engine, w, b)
  accumulate(w, 'train_batch', loss, count, args)
  w.calls = nil
  w.tokens = w.tokens + ((w.kind == 'mean' and type(b) == 'table' and type(b.count) == 'number') and b.count or 0)
end

-- A micro-batch's memory goes when the next one is there: an error report may still want to run it again.
local function let_go(engine, w, iter)
  local last = w.last
  w.last = nil
  if last and not (w.bad and w.bad.args == last) then batch.recycle(engine, iter, last[1]) end
end

local function fill(engine, iter)
  local w = begin(engine)
  for _ = 1, engine.accumulation do
    local b = iter:next()
    if b == nil then break end
    let_go(engine, w, iter)
    local args = { b, n = 1 }
    w.last = args
    w.samples = w.samples + (batch.samples(b) or engine.micro_batch or 0)
    batch.scoped(engine, micro_batch, engine, w, b, args)
    engine.micro_count = engine.micro_count + 1
  end
  if w.micro == 0 then
    M.drop(engine)
    return nil
  end
  local report = engine:apply_window(w)
  let_go(engine, w, iter)
  return report
end

--- See Engine:train_batch.
function M.train_batch(engine, given)
  M.check_trains(engine, 'train_batch')
  if engine.window.state == 'forward' and engine.window.micro == 0 then M.drop(engine) end    -- it was only looked at
  if engine.window.micro > 0 or engine.window.state ~= 'ready' then
    err.throw('ARG', ('train_batch: the three-call form has a window open (%d of %d micro-batches): finish it first')
      :format(engine.window.micro, engine.accumulation))
  end
  return M.guarded(engine, fill, engine, batch.source(given, engine.data, 'train_batch'))
end

-- ---- the three-call form -------------------------------------------------------------------------

--- See Engine:forward.
function M.forward(engine, ...)
  engine:check_open 'forward'
  if not engine.optimizer then return batch.scoped(engine, engine.model, ...) end
  if engine.window.state == 'backward' then
    err.throw('ARG', 'forward: backward was called, step() is missing (call it after every backward)')
  end
  local w = begin(engine)
  if w.state == 'ready' then
    w.samples = w.samples + (batch.samples((...)) or engine.micro_batch or 0)
    w.args = { n = select('#', ...), ... }
  end
  w.state = 'forward'
  return M.guarded(engine, batch.scoped, engine, run, engine, w, ...)
end

--- See Engine:backward.
function M.backward(engine, loss, count)
  M.check_trains(engine, 'backward')
  if engine.window.state == 'backward' then
    err.throw('ARG', 'backward: called twice without step() between (call step after every backward)')
  end
  local w = begin(engine)
  M.guarded(engine, function()
    accumulate(w, 'backward', loss, count, w.args)
    engine.micro_count = engine.micro_count + 1
    w.state, w.calls = 'backward', nil
  end)
end

--- See Engine:step.
function M.step(engine, last)
  M.check_trains(engine, 'step')
  local w = engine.window
  if w.state ~= 'backward' then
    err.throw('ARG', w.state == 'forward' and 'step: forward was called, backward is missing'
      or 'step: nothing to step on: call forward and backward first')
  end
  w.state = 'ready'
  if w.micro < engine.accumulation and not last then return nil end
  return M.guarded(engine, engine.apply_window, engine, w)
end

--- The gradient of a parameter over the window so far: what a step now would use, before clipping. Nil without one.
function M.gradient(engine, slot)
  local w = engine.window
  if not slot.trainable or w.micro == 0 then return nil end
  if not C.z3_grad_touched(slot.h) then
    return T.functions.zeros(slot.p.shape, { dtype = 'f32' })
  end
  local g = T.copy_of(slot.grad)
  local scale = w:scale()
  if scale ~= 1 then
    local scaled = g * scale
    g:free()
    g = scaled
  end
  return g
end

return M
