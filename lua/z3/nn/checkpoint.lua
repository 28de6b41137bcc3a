-- checkpoint.lua -- nn.checkpoint(fn_or_module, ...) keeps only what it gets; backward computes the rest again.
-- The core replays the recorded operations, so the script isn't run a second time, and dropout draws the same masks.
local check = require 'z3.check'
local opts  = require 'z3.opts'
local C     = require('z3.ffi').C

local M = {}

local function close(ok, ...)
  if not ok then
    C.z3_checkpoint_end(true)
    error(..., 0)
  end
  check(C.z3_checkpoint_end(false), 'checkpoint')
  return ...
end

--- Runs fn(...) with its activations recomputed in backward; returns its results.
-- @param fn  a function or a module. What it changes in the script happens once, in this call.
function M.run(fn, ...)
  opts.want_callable(fn, 'nn.checkpoint')
  if not C.z3_grad_enabled() then return fn(...) end
  check(C.z3_checkpoint_begin(), 'checkpoint')
  return close(pcall(fn, ...))
end

return M
