--- curves.lua -- the library's own schedules: step -> factor on the base rate.
-- Legend: W = warm-up steps, T = total steps, p = progress in [0, 1], min = the factor that the curve ends at.
-- Rule: step <= W gives step/W, so the first update already moves; later the curve is read at
-- p = (step - 1 - W)/(T - W), so the first step after warm-up has the full rate and the last one isn't wasted at 0.
-- Sources: Loshchilov & Hutter 2017 (cosine, restarts), Vaswani et al. 2017 (inverse square root),
-- Hu et al. 2024 (warm-up, stable, decay), Smith & Topin 2018 (one cycle).
local err  = require 'z3.error'
local opts = require 'z3.opts'

local M = {}

local function whole(who, key, v, least)
  if type(v) ~= 'number' or v ~= math.floor(v) or v < least or v == math.huge then
    err.throw('ARG', ('%s: %s is %s, wants a whole number >= %d'):format(who, key, tostring(v), least))
  end
  return v
end

local function number(who, key, v, low, high)
  if type(v) ~= 'number' or not (v >= low and v <= high) then
    err.throw('ARG', ('%s: %s is %s, wants a number from %g to %g'):format(who, key, tostring(v), low, high))
  end
  return v
end

--- Checks that a schedule is asked for a step that exists.
-- @raise ARG unless step is a whole number >= 1
function M.check_step(who, step)
  if type(step) ~= 'number' or step < 1 or step ~= math.floor(step) then
    err.throw('ARG', ('%s: asked for step %s; schedules know whole steps from 1'):format(who, tostring(step)))
  end
end

-- Builds step -> factor from a curve over p. A curve without a total never ends, so its p counts steps.
local function build(name, o, curve)
  local who = 'sched.' .. name
  local W = whole(who, 'warmup', o.warmup, 0)
  local T = o.total
  if T ~= nil then
    whole(who, 'total', T, 1)
    if W > T then
      err.throw('ARG', ('%s: warmup %d is longer than total %d; the rate would never reach its peak')
        :format(who, W, T))
    end
  end
  local low = number(who, 'min', o.min, 0, 1)
  return function(step)
    M.check_step(who, step)
    if step <= W then return step / W end
    return low + (1 - low) * curve(step - 1 - W, T and math.max(1, T - W), W)
  end
end

-- One constructor: strict options, then build. Every schedule takes warmup, total and min.
local function define(name, defaults, needs_total, make)
  M[name] = function(given)
    local who = 'sched.' .. name
    local known = { warmup = 0, total = opts.number, min = 0 }
    for k, v in pairs(defaults) do known[k] = v end
    local o = opts.read(given, known, who)
    if needs_total and o.total == nil then
      err.throw('ARG', ('%s: total is missing; it is the number of steps that the curve spans'):format(who))
    end
    return build(name, o, make(o, who))
  end
end

local function progress(n, span) return math.min(1, n / span) end
local function cosine(p) return 0.5 * (1 + math.cos(math.pi * p)) end

--- The base rate after warm-up. sched.constant{warmup=0, total=}
define('constant', {}, false, function() return function() return 1 end end)

--- Straight down to min. sched.linear{warmup=0, total=, min=0}
define('linear', {}, true, function() return function(n, span) return 1 - progress(n, span) end end)

--- Half a cosine down to min. sched.cosine{warmup=0, total=, min=0}
define('cosine', {}, true, function() return function(n, span) return cosine(progress(n, span)) end end)

--- Several half cosines, each from the full rate. sched.cosine_with_restarts{warmup=0, total=, min=0, cycles=1}
define('cosine_with_restarts', { cycles = 1 }, true, function(o, who)
  local cycles = whole(who, 'cycles', o.cycles, 1)
  return function(n, span)
    if n >= span then return 0 end
    return cosine((n * cycles % span) / span)
  end
end)

--- (1 - p)^power. sched.polynomial{warmup=0, total=, min=0, power=1}
define('polynomial', { power = 1 }, true, function(o, who)
  local power = number(who, 'power', o.power, 0, 1e6)
  return function(n, span) return (1 - progress(n, span)) ^ power end
end)

--- 1/sqrt of the time since warm-up, in units of timescale (default: warmup, or 10000 without one).
-- sched.inverse_sqrt{warmup=0, total=, min=0, timescale=}
define('inverse_sqrt', { timescale = opts.number }, false, function(o, who)
  local scale = whole(who, 'timescale', o.timescale or (o.warmup ~= 0 and o.warmup or 10000), 1)
  return function(n) return math.sqrt(scale / (scale + n)) end
end)

--- Warm-up, stable, decay: full rate, then down to min over the last `decay` steps (default: a tenth of total).
-- sched.wsd{warmup=0, total=, min=0, decay=, shape='linear'|'cosine'|'1-sqrt'}
define('wsd', { decay = opts.number, shape = 'linear' }, true, function(o, who)
  local span = o.total - o.warmup
  local decay = whole(who, 'decay', o.decay or math.max(1, math.floor(o.total / 10)), 1)
  if o.decay and decay > span then
    err.throw('ARG', ('%s: warmup %d and decay %d are longer than total %d'):format(who, o.warmup, decay, o.total))
  end
  local shapes = {
    linear = function(p) return 1 - p end,
    cosine = cosine,
    ['1-sqrt'] = function(p) return 1 - math.sqrt(p) end,
  }
  local shape = shapes[o.shape]
  if not shape then
    err.throw('ARG', ("%s: shape is %s, wants 'linear', 'cosine' or '1-sqrt'"):format(who, tostring(o.shape)))
  end
  return function(n)
    local into = n - (span - decay)
    if into <= 0 then return 1 end
    return shape(progress(into, decay))
  end
end)

local one_cycle

--- One cycle: warm-up over the first 30 % (unless given), then half a cosine down to almost nothing.
-- sched.one_cycle{warmup=, total=, min=4e-6}
function M.one_cycle(given)
  if type(given) ~= 'table' then return one_cycle(given) end    -- which refuses it
  local o = {}
  for k, v in pairs(given) do o[k] = v end
  if o.warmup == nil and type(o.total) == 'number' then o.warmup = math.floor(0.3 * o.total) end
  if o.min == nil then o.min = 4e-6 end           -- a 25th of the peak at the start, a 10,000th of that at the end
  return one_cycle(o)
end
do
  local public = M.one_cycle
  define('one_cycle', {}, true, function() return function(n, span) return cosine(progress(n, span)) end end)
  one_cycle, M.one_cycle = M.one_cycle, public
end

return M
