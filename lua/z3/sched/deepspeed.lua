--- deepspeed.lua -- DeepSpeed's five schedules, from the "scheduler" section of a config; equal to theirs.
-- Legend: k = 0-based index of the update (step - 1). Their schedulers are built before the first update and
-- stepped after each one, so update k > 0 uses iteration k - 1 of the formula: warm-ups use the start value twice.
-- They give absolute rates, the same for every parameter. Source: DeepSpeed's documentation of its schedulers;
-- tables in tests/parity/data/sched.
local err     = require 'z3.error'
local nearest = require 'z3.nearest'
local curves  = require 'z3.sched.curves'
local log     = require 'z3.log'

local M = {}
local NONE, REQUIRED = {}, {}                   -- nil unless given; must be given

-- Start of every warm-up: iteration it of n, 0 to 1.
local function warm(it, n, kind)
  if kind == 'linear' then return it / n end
  return math.log(it + 1) / math.log(n)
end

local function warmup_kind(who, kind)
  if kind == 'log' or kind == 'linear' then return kind end
  log.warn(("%s: warmup_type %s is unknown; 'log' is used, as DeepSpeed does"):format(who, tostring(kind)))
  return 'log'
end

local function warn_short(who, total, n)
  if total < n then
    log.warn(('%s: total_num_steps %d is less than warmup_num_steps %d'):format(who, total, n))
  end
end

local WARMUP = { warmup_min_lr = 0, warmup_num_steps = 1000, warmup_type = 'log', last_batch_iteration = -1 }
local function keys(base, more)
  local t = {}
  for k, v in pairs(base) do t[k] = v end
  for k, v in pairs(more) do t[k] = v end
  return t
end

-- WarmupLR and WarmupDecayLR differ in what follows the warm-up.
local function warmup(o, who, after)
  local n, kind = math.max(2, o.warmup_num_steps), warmup_kind(who, o.warmup_type)
  local low, delta = o.warmup_min_lr, o.warmup_max_lr - o.warmup_min_lr
  return function(k)
    if k == 0 then return low end
    local it = k - 1
    return low + delta * (it < n and warm(it, n, kind) or after(it, n))
  end
end

local function one_cycle(o, who)
  local first, second = o.cycle_first_step_size, o.cycle_second_step_size or o.cycle_first_step_size
  local stairs1 = o.cycle_first_stair_count
  local stairs2 = o.cycle_second_stair_count or stairs1
  if o.cycle_min_lr > o.cycle_max_lr then
    log.warn(('%s: cycle_min_lr %g is above cycle_max_lr %g'):format(who, o.cycle_min_lr, o.cycle_max_lr))
  end
  local total, ratio = first + second, first / (first + second)
  local decays = o.decay_step_size ~= 0

  local function height(b)                       -- 0 at both ends of the cycle, 1 at its top
    local c = b % total
    if (c <= first and stairs1 or stairs2) > 0 then
      if c <= first then return math.floor(c * stairs1 / first) / stairs1 end
      return math.floor((total - c) * stairs2 / second) / stairs2
    end
    local x = 1 + b / total - math.floor(1 + b / total)
    if x <= ratio then return x / ratio end
    return (x - 1) / (ratio - 1)
  end

  local function rate(k)
    if k == 0 then return o.cycle_min_lr end
    if k - 1 < total then return o.cycle_min_lr + (o.cycle_max_lr - o.cycle_min_lr) * height(k) end
    if not decays or o.decay_lr_rate == 0 then return o.cycle_min_lr end
    return o.cycle_min_lr / (1 + o.decay_lr_rate * ((k - total) / o.decay_step_size))
  end

  local function beta1(k)
    if k == 0 then return o.cycle_min_mom end     -- theirs starts at the minimum for one step
    if k - 1 < total then return o.cycle_max_mom - (o.cycle_max_mom - o.cycle_min_mom) * height(k) end
    if not decays or o.decay_mom_rate == 0 then return o.cycle_max_mom end
    return o.cycle_max_mom * (1 + o.decay_mom_rate * ((k - total) / o.decay_step_size))
  end
  return rate, o.cycle_momentum and beta1 or nil
end

-- type -> { keys, make }: make(o, who, optimizer_lr) returns k -> rate and, for OneCycle, k -> beta1.
local KINDS = {
  WarmupLR = { keys(WARMUP, { warmup_max_lr = NONE }), function(o, who, base)
    o.warmup_max_lr = o.warmup_max_lr or base
    if not o.warmup_max_lr then
      err.throw('CONFIG', who .. ': warmup_max_lr is missing and there is no optimizer rate to take instead')
    end
    return warmup(o, who, function() return 1 end)
  end },

  WarmupDecayLR = { keys(WARMUP, { warmup_max_lr = 0.001, total_num_steps = REQUIRED }), function(o, who)
    local total = o.total_num_steps
    warn_short(who, total, math.max(2, o.warmup_num_steps))
    return warmup(o, who, function(it, n) return math.max(0, (total - it) / math.max(1, total - n)) end)
  end },

  WarmupCosineLR = {
    { total_num_steps = REQUIRED, warmup_min_ratio = 0, warmup_num_steps = 1000, cos_min_ratio = 0.0001,
      warmup_type = 'log', last_batch_iteration = -1 }, function(o, who, base)
      local total, n, kind = o.total_num_steps, math.max(2, o.warmup_num_steps), warmup_kind(who, o.warmup_type)
      local low, last = o.warmup_min_ratio, o.cos_min_ratio
      if not base then err.throw('CONFIG', who .. ': it scales the optimizer\'s rate, and there is none') end
      warn_short(who, total, n)
      return function(k)
        if k == 0 then return 0 end
        local it = k - 1
        if it < n then return base * (low + (1 - low) * warm(it, n, kind)) end
        local p = math.min(1, (it - n + 1) / math.max(1, total - n))
        return base * math.max(0, last + (1 - last) * (1 + math.cos(math.pi * p)) / 2)
      end
    end },

  OneCycle = {
    { cycle_min_lr = REQUIRED, cycle_max_lr = REQUIRED, decay_lr_rate = 0, cycle_first_step_size = 2000,
      cycle_second_step_size = NONE, cycle_first_stair_count = 0, cycle_second_stair_count = NONE,
      decay_step_size = 0, cycle_momentum = true, cycle_min_mom = 0.8, cycle_max_mom = 0.9, decay_mom_rate = 0,
      last_batch_iteration = -1 }, one_cycle },

  LRRangeTest = {
    { lr_range_test_min_lr = 1e-3, lr_range_test_step_size = 2000, lr_range_test_step_rate = 1,
      lr_range_test_staircase = false, last_batch_iteration = -1 }, function(o)
      return function(k)
        local x = k / o.lr_range_test_step_size
        if o.lr_range_test_staircase then x = math.floor(x) end
        return o.lr_range_test_min_lr * (1 + o.lr_range_test_step_rate * x)
      end
    end },
}

local LEAST = { warmup_num_steps = 1, lr_range_test_step_size = 1, cycle_first_step_size = 1,
  cycle_second_step_size = 0, total_num_steps = 1, last_batch_iteration = -1 }
local OTHER = { warmup_type = 'string', cycle_momentum = 'boolean', lr_range_test_staircase = 'boolean' }

local function check_value(who, key, v)
  local want = OTHER[key] or 'number'
  if type(v) == 'table' and #v == 1 then v = v[1] end             -- one value for the one group
  if type(v) ~= want then
    err.throw('CONFIG', ('%s: %s is %s, wants a %s'):format(who, key, tostring(v), want))
  end
  local least = LEAST[key]
  if least and (v ~= math.floor(v) or v < least) then
    err.throw('CONFIG', ('%s: %s is %s, wants a whole number >= %d'):format(who, key, tostring(v), least))
  end
  return v
end

-- "auto" reads as an absent key.
local function read(who, spec, params)
  local names, o = nearest.keys(spec), {}
  for _, key in ipairs(nearest.keys(params)) do
    if spec[key] == nil then
      err.throw('CONFIG', ('%s: unknown parameter "%s"%s'):format(who, key, nearest.hint(key, names)))
    end
    if params[key] ~= 'auto' then o[key] = check_value(who, key, params[key]) end
  end
  for _, key in ipairs(names) do
    local default = spec[key]
    if o[key] == nil and default == REQUIRED then
      err.throw('CONFIG', ('%s: "%s" is missing and has no default'):format(who, key))
    end
    if o[key] == nil and default ~= NONE then o[key] = default end
  end
  return o
end

--- A schedule of DeepSpeed by its type and params.
-- @string type          'WarmupLR', 'WarmupDecayLR', 'WarmupCosineLR', 'OneCycle' or 'LRRangeTest'
-- @tab params           its params, under their names in the JSON
-- @number[opt] base     the optimizer's rate (WarmupLR's default peak, WarmupCosineLR's base)
-- @treturn table        { rate = function(step) -> absolute rate, beta1 = function(step) or nil }
-- @raise CONFIG (unknown type or key, bad value)
function M.new(type_name, params, base)
  local kind = KINDS[type_name]
  if not kind then
    err.throw('CONFIG', ('scheduler.type: %s is unknown%s'):format(tostring(type_name),
      nearest.hint(tostring(type_name), nearest.keys(KINDS))))
  end
  local who = 'scheduler ' .. type_name
  local o = read(who, kind[1], params or {})
  local rate, beta1 = kind[2](o, who, base)
  -- A schedule that starts in the middle leaves the optimizer's own values to its first update, as theirs does.
  local skip = o.last_batch_iteration + 1
  local function from_step(f, first)
    return f and function(step)
      curves.check_step(who, step)
      if skip > 0 and step == 1 then return first end
      return f(step - 1 + skip)
    end
  end
  return { rate = from_step(rate, base), beta1 = from_step(beta1, nil) }
end

--- The names that M.new knows, for messages and the config schema.
M.types = KINDS

return M
