--- step.lua -- the end of a window: norm with the finite check in it, clipping, update, counters, report.
-- Legend: scale = 1 / (targets or micro-batches of the window); the accumulated gradient times scale is the step's.
local ffi        = require 'ffi'
local err        = require 'z3.error'
local check      = require 'z3.check'
local autograd   = require 'z3.autograd'
local C          = require('z3.ffi').C
local accumulate = require 'z3.engine.accumulate'
local nonfinite  = require 'z3.engine.nonfinite'
local report     = require 'z3.engine.report'
local weights    = require 'z3.engine.weights'
local windows    = require 'z3.engine.window'

local M = {}

local SUM, BAD = ffi.new 'double[1]', ffi.new 'int64_t[1]'
local CLIP_EPSILON = 1e-6                       -- DeepSpeed's and PyTorch's

-- Sum of squares of all gradients, in double and in the order of the parameters. A parameter that got no gradient in
-- this window has a zero one: it is still decayed and its moments move, as DeepSpeed's do.
-- @return sum, the first slot with a value that isn't finite (or nil), how many such values it has
local function sum_of_squares(slots)
  local total, culprit, bad = 0, nil, 0
  for _, slot in ipairs(slots) do
    if slot.trainable then
      if not C.z3_grad_touched(slot.h) then check(C.z3_tensor_fill(slot.native.grad, 0), slot.name) end
      check(C.z3_sumsq(slot.native.grad, SUM, BAD), slot.name)
      total = total + SUM[0]
      if BAD[0] > 0 and not culprit then culprit, bad = slot, tonumber(BAD[0]) end
    end
  end
  return total, culprit, bad
end

-- Nothing was applied yet: says what went wrong and where it began.
local function throw_overflow(engine, w, culprit, bad)
  local again = w.bad and w.bad.args or w.last or w.args
  local micro = w.bad and w.bad.micro or w.micro - 1
  local found = again and nonfinite.module(engine, again, accumulate.position(engine, micro))
  if culprit then nonfinite.throw_gradient(engine, culprit, bad, found) end
  nonfinite.throw_loss(('step %d'):format(engine.step_count + 1), w.bad.value, found, '; nothing was applied')
end

local function update_all(engine, at)
  local optimizer, done = engine.optimizer, 0
  for _, slot in ipairs(engine.slots) do
    if slot.trainable then
      at.lr, at.name = engine.rates:at(at.step, slot.options.lr), slot.name
      if optimizer.custom then
        local ok, e = pcall(optimizer.update, optimizer, slot.native, slot.options, at)
        if not ok then
          if done > 0 then
            engine.broken = ('the update of %s failed when %d parameters had theirs already'):format(slot.name, done)
          end
          error(e, 0)
        end
      else
        optimizer:update(slot.native, slot.options, at)
      end
      done = done + 1
    end
  end
end

-- The end of a skipped window: it counts in `skipped` and moves nothing else.
local function skip(engine, w, values)
  engine.skipped = engine.skipped + 1
  accumulate.drop(engine)
  values.step, values.skipped, values.tokens = engine.step_count + 1, true, w.tokens
  return report.finish(engine, w, values)
end

local function apply(engine, w)
  local scale = w:scale()
  if w.kind == 'sum' then w.tokens = w.count end
  local squares, culprit, bad = sum_of_squares(engine.slots)
  local norm = math.sqrt(squares) * scale
  local step = engine.step_count + 1
  local clip = engine.clip
  local clip_coef = clip > 0 and math.min(1, clip / (norm + CLIP_EPSILON)) or 1
  local values = { loss = w:loss(), grad_norm = norm, clip_coef = clip_coef, lr = engine.rates:at(step) }
  if culprit or w.bad then
    if engine.nonfinite == 'error' then throw_overflow(engine, w, culprit, bad) end
    return skip(engine, w, values)
  end
  update_all(engine, { step = step, scale = scale * clip_coef, beta1 = engine.rates:beta1(step) })
  engine.step_count = step
  engine.tokens = engine.tokens + w.tokens
  engine.samples = engine.samples + w.samples
  weights.clear(engine.slots)
  engine.window = windows.new()
  values.step, values.skipped, values.tokens = step, false, w.tokens
  return report.finish(engine, w, values)
end

--- Ends a window with an optimizer step.
-- @return the report
-- @raise OVERFLOW when nonfinite = 'error': nothing is applied
function M.apply_window(engine, w)
  return autograd.no_grad(apply, engine, w)
end

--- Throws when an earlier update was left half done.
function M.check_whole(engine, who)
  if engine.broken then
    err.throw('STALE', ('%s: %s; the engine can\'t go on: build it again'):format(who, engine.broken))
  end
end

return M
