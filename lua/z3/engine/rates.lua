--- rates.lua -- the learning rate of each step: the schedule's factor on the base rates, or a DeepSpeed schedule's own
-- rate for all.
local err   = require 'z3.error'
local opts  = require 'z3.opts'
local sched = require 'z3.sched'

local M = {}

local Rates = {}
Rates.__index = Rates

local function finite(v) return type(v) == 'number' and v == v and v >= 0 and v < math.huge end

--- Rates of an engine.
-- @param schedule  function(step) -> factor, or a table with rate(step) (z3.sched.deepspeed), or nil
-- @tab section     the config's "scheduler", or nil; `schedule` comes before it
-- @param optimizer or nil
function M.new(schedule, section, optimizer)
  local base = optimizer and optimizer.options.lr
  if schedule == nil and section and section.type ~= nil and optimizer then
    schedule = sched.deepspeed(section.type, section.params, base)
  end
  if schedule ~= nil and type(schedule) ~= 'function' and not (type(schedule) == 'table' and schedule.rate) then
    err.throw('ARG', ('initialize: schedule is %s, wants a function(step) -> factor, as z3.sched makes them'):format(
      opts.show(schedule)))
  end
  local absolute = type(schedule) == 'table'
  return setmetatable({ base = base, factor = not absolute and schedule or nil, absolute = absolute and schedule },
    Rates)
end

--- Rate of a step for options with rate `lr` (the base rate unless given).
-- @int step  from 1
-- @raise ARG when the schedule gives no finite number >= 0
function Rates:at(step, lr)
  if self.absolute then return self.absolute.rate(step) end
  lr = lr or self.base
  if not self.factor then return lr end
  if self.step ~= step then
    local f = self.factor(step)
    if not finite(f) then
      err.throw('ARG', ('schedule: step %d has factor %s, wants a finite number >= 0'):format(step, tostring(f)))
    end
    self.step, self.now = step, f
  end
  return lr * self.now
end

--- Momentum of a step where the schedule has one (DeepSpeed's OneCycle), else nil.
function Rates:beta1(step)
  return self.absolute and self.absolute.beta1 and self.absolute.beta1(step) or nil
end

return M
