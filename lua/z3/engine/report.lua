--- report.lua -- what a step tells: a table of numbers, and the same as a line of the log.
local ffi   = require 'ffi'
local check = require 'z3.check'
local log   = require 'z3.log'
local C     = require('z3.ffi').C
local clock = require 'z3.engine.clock'

local M = {}

local STATS = ffi.new 'z3_memory_stats'

--- Keys of a log line in the order they are written.
M.ORDER = { 'step', 'loss', 'grad_norm', 'clip_coef', 'lr', 'loss_scale', 'skipped', 'tokens', 'tokens_per_s',
  'step_s', 'memory_peak', 'memory_limit', 'gathered_bytes', 'reduced_bytes', 'wait_s', 'oom_retries', 'tokens_seen',
  'samples_seen', 'time' }

--- Completes a report, adds to the engine's totals and writes the log line.
-- @tab values  step, loss, grad_norm, clip_coef, lr, skipped, tokens
function M.finish(engine, w, values)
  check(C.z3_memory_stats_get(engine.device, STATS), 'report')
  local r = values
  r.step_s = clock.now() - w.started - w.excluded
  r.tokens_per_s = r.step_s > 0 and r.tokens / r.step_s or 0
  r.loss_scale = engine:loss_scale()
  r.memory_peak = tonumber(STATS.peak)
  local limit = tonumber(STATS.limit)
  r.memory_limit = limit > 0 and limit or nil
  r.gathered_bytes, r.reduced_bytes, r.wait_s, r.oom_retries = 0, 0, 0, 0     -- one process: nothing travels
  engine.totals.step_s = engine.totals.step_s + r.step_s
  if engine.log and engine.rank == 0 then
    local row = setmetatable({ tokens_seen = engine.tokens, samples_seen = engine.samples, time = os.time() },
      { __index = r })
    engine.log:write(row)
  end
  if C.z3_prof_enabled() then require('z3.profiler').step_ends(r) end
  local every = engine.config.steps_per_print
  if every and r.step % every == 0 then
    log.notice(('step %d: loss %.6g, norm %.4g, rate %.4g, %d skipped, %.0f tokens/s'):format(r.step, r.loss,
      r.grad_norm, r.lr, engine.skipped, r.tokens_per_s))
  end
  return r
end

--- The log of an engine: a JSON line per step in `path`.
function M.log(path) return log.steps(path, M.ORDER) end

return M
