--- transformers.lua -- the schedules of Hugging Face's get_scheduler, index for index.
-- Legend: k = 0-based index of the update (step - 1), W = num_warmup_steps, T = num_training_steps.
-- The first update has k = 0, so with a warm-up its rate is 0: that is what those runs do.
-- Source: the formulas in the documentation of transformers.optimization; tables in tests/parity/data/sched.
local err     = require 'z3.error'
local opts    = require 'z3.opts'
local nearest = require 'z3.nearest'
local curves  = require 'z3.sched.curves'

local M = {}
local NONE = opts.number                        -- nil unless given
local REQUIRED = setmetatable({}, {})           -- must be given
local pi = math.pi

local function ramp(k, W) return k / math.max(1, W) end

-- Share of the way from the end of warm-up to the end; goes on beyond 1, as theirs does.
local function past(k, o) return (k - o.num_warmup_steps) / math.max(1, o.num_training_steps - o.num_warmup_steps) end

local function waves(cycles, p) return 0.5 * (1 + math.cos(pi * cycles * 2 * p)) end

-- min_lr is absolute, min_lr_rate relative: exactly one of them.
local function floor_rate(who, o)
  if (o.min_lr == nil) == (o.min_lr_rate == nil) then
    err.throw('ARG', who .. ': give either min_lr (with lr) or min_lr_rate')
  end
  if o.min_lr_rate then return o.min_lr_rate end
  if not o.lr then err.throw('ARG', who .. ': min_lr is absolute, so lr (the base rate) is needed too') end
  return o.min_lr / o.lr
end

local WITH_TOTAL = { num_warmup_steps = REQUIRED, num_training_steps = REQUIRED, lr = NONE }
local function keys(more)
  local t = {}
  for k, v in pairs(WITH_TOTAL) do t[k] = v end
  for k, v in pairs(more) do t[k] = v end
  return t
end

local function choice(who, key, v, allowed)
  if not allowed[v] then
    err.throw('ARG', ("%s: %s is %s, wants 'linear', 'cosine' or '1-sqrt'"):format(who, key, tostring(v)))
  end
  return allowed[v]
end

local UP = {
  linear = function(p) return p end,
  cosine = function(p) return 0.5 * (1 - math.cos(pi * p)) end,
  ['1-sqrt'] = function(p) return 1 - math.sqrt(1 - p) end,
}
local DOWN = {
  linear = function(p) return 1 - p end,
  cosine = function(p, cycles) return waves(cycles, p) end,
  ['1-sqrt'] = function(p) return 1 - math.sqrt(p) end,
}

-- name -> { keys, make }: make(o, who) returns k -> factor.
local KINDS = {
  constant = { { num_warmup_steps = NONE, num_training_steps = NONE, lr = NONE },
    function() return function() return 1 end end },

  constant_with_warmup = { { num_warmup_steps = REQUIRED, num_training_steps = NONE, lr = NONE }, function(o)
    local W = o.num_warmup_steps
    return function(k) return k < W and ramp(k, W) or 1 end
  end },

  linear = { keys {}, function(o)
    local W = o.num_warmup_steps
    return function(k) return k < W and ramp(k, W) or math.max(0, 1 - past(k, o)) end
  end },

  cosine = { keys { num_cycles = 0.5 }, function(o)
    local W = o.num_warmup_steps
    return function(k) return k < W and ramp(k, W) or math.max(0, waves(o.num_cycles, past(k, o))) end
  end },

  cosine_with_restarts = { keys { num_cycles = 1 }, function(o)
    local W = o.num_warmup_steps
    return function(k)
      if k < W then return ramp(k, W) end
      local p = past(k, o)
      if p >= 1 then return 0 end
      return math.max(0, 0.5 * (1 + math.cos(pi * (o.num_cycles * p % 1))))
    end
  end },

  polynomial = { keys { lr_end = 1e-7, power = 1, lr = REQUIRED }, function(o, who)
    local W, T, lr, last = o.num_warmup_steps, o.num_training_steps, o.lr, o.lr_end
    if lr <= last then
      err.throw('ARG', ('%s: lr_end %g must be below lr %g'):format(who, last, lr))
    end
    return function(k)
      if k < W then return ramp(k, W) end
      if k > T or T == W then return last / lr end
      return ((lr - last) * (1 - (k - W) / (T - W)) ^ o.power + last) / lr
    end
  end },

  inverse_sqrt = { { num_warmup_steps = REQUIRED, num_training_steps = NONE, timescale = NONE, lr = NONE },
    function(o)
      local W = o.num_warmup_steps
      local scale = o.timescale or (W ~= 0 and W or 10000)
      return function(k) return k < W and ramp(k, W) or 1 / math.sqrt((k + scale - W) / scale) end
    end },

  cosine_with_min_lr = { keys { num_cycles = 0.5, min_lr = NONE, min_lr_rate = NONE }, function(o, who)
    local W, low = o.num_warmup_steps, floor_rate(who, o)
    return function(k)
      return k < W and ramp(k, W) or math.max(0, waves(o.num_cycles, past(k, o)) * (1 - low) + low)
    end
  end },

  cosine_warmup_with_min_lr = {
    keys { num_cycles = 0.5, min_lr = NONE, min_lr_rate = NONE, warmup_lr_rate = NONE }, function(o, who)
      local W, low, start = o.num_warmup_steps, floor_rate(who, o), o.warmup_lr_rate
      return function(k)
        if k < W then
          if not start then return (k + 1) / math.max(1, W) end
          return start + (1 - start) * k / math.max(1, W - 1)
        end
        return math.max(0, waves(o.num_cycles, past(k + 1, o)) * (1 - low) + low)
      end
    end },

  warmup_stable_decay = {
    { num_warmup_steps = REQUIRED, num_decay_steps = REQUIRED, num_training_steps = NONE, num_stable_steps = NONE,
      warmup_type = 'linear', decay_type = 'cosine', min_lr_ratio = 0, num_cycles = 0.5, lr = NONE }, function(o, who)
      local W, D, low = o.num_warmup_steps, o.num_decay_steps, o.min_lr_ratio
      if not (o.num_stable_steps or o.num_training_steps) then
        err.throw('ARG', who .. ': give num_training_steps or num_stable_steps')
      end
      local S = o.num_stable_steps or o.num_training_steps - W - D
      local up = choice(who, 'warmup_type', o.warmup_type, UP)
      local down = choice(who, 'decay_type', o.decay_type, DOWN)
      return function(k)
        if k < W then return math.max(0, up(ramp(k, W)) * (1 - low) + low) end
        if k < W + S then return 1 end
        if k < W + S + D then
          return math.max(0, down((k - W - S) / math.max(1, D), o.num_cycles) * (1 - low) + low)
        end
        return low
      end
    end },
}

local COUNTS = { num_warmup_steps = 0, num_training_steps = 1, num_decay_steps = 0, num_stable_steps = 0,
                 timescale = 1 }

local function read(o, spec, who)
  local known = {}
  for k, d in pairs(spec) do known[k] = d == REQUIRED and opts.number or d end
  local v = opts.read(o, known, who)
  for _, k in ipairs(nearest.keys(spec)) do
    if spec[k] == REQUIRED and v[k] == nil then err.throw('ARG', ('%s: %s is missing'):format(who, k)) end
  end
  return v
end

--- A schedule of Hugging Face's get_scheduler by its name there.
-- @string name  'linear', 'cosine', 'cosine_with_restarts', 'polynomial', 'constant', 'constant_with_warmup',
--               'inverse_sqrt', 'cosine_with_min_lr', 'cosine_warmup_with_min_lr', 'warmup_stable_decay'
-- @tab o        num_warmup_steps, num_training_steps and the keys of that schedule; lr where an end rate is absolute
-- @treturn function  step -> factor; step 1 is their index 0
-- @raise ARG (unknown name or key, missing or bad value, warm-up longer than the total)
function M.new(name, o)
  local kind = KINDS[name]
  if not kind then
    err.throw('ARG', ('sched.transformers: unknown schedule "%s"%s'):format(tostring(name),
      nearest.hint(tostring(name), nearest.keys(KINDS))))
  end
  local who = ("sched.transformers '%s'"):format(name)
  local v = read(o, kind[1], who)
  for key, least in pairs(COUNTS) do
    local n = v[key]
    if n ~= nil and (type(n) ~= 'number' or n ~= math.floor(n) or n < least) then
      err.throw('ARG', ('%s: %s is %s, wants a whole number >= %d'):format(who, key, tostring(n), least))
    end
  end
  local W, T = v.num_warmup_steps, v.num_training_steps
  if W and T and W > T then
    err.throw('ARG', ('%s: num_warmup_steps %d is longer than num_training_steps %d'):format(who, W, T))
  end
  local factor = kind[2](v, who)
  return function(step)
    curves.check_step(who, step)
    return factor(step - 1)
  end
end

return M
