--- random.lua -- seeds and positions of every random stream.
-- A random value is a pure function of (seed, purpose, position, call, element), so a run repeats exactly, resumes
-- exactly, and recomputed activations see the same dropout. The engine sets the position at each micro-batch; outside
-- of one, calls are counted since the seed was set, so all ranks draw the same values.
local ffi = require 'ffi'
local err = require 'z3.error'
local C   = require('z3.ffi').C

local M = {}

local PURPOSE = { tensor = 1, dropout = 2, sample = 3 }
local seed, calls, roots = 0, 0, 0
local step, micro, inner_calls                  -- position of the running micro-batch; step nil: outside of any

--- Starts all streams anew.
-- @int n  whole number, |n| < 2^53
function M.manual_seed(n)
  if type(n) ~= 'number' or n % 1 ~= 0 or math.abs(n) >= 2 ^ 53 then
    err.throw('ARG', ('manual_seed: seed is %s, wants a whole number below 2^53'):format(tostring(n)))
  end
  seed, calls, roots = n, 0, 0
  step, micro, inner_calls = nil, nil, nil
end

--- The seed in force.
function M.seed() return seed end

--- Ordinal of a root module that gets its first values: 0, 1, ... since the seed was set.
function M.next_root()
  roots = roots + 1
  return roots - 1
end

--- Enters a micro-batch: step (1-based update) and its global number m * world + rank. Calls count from 0 again.
function M.set_position(new_step, new_micro)
  step, micro, inner_calls = new_step, new_micro, 0
end

--- Leaves the micro-batch.
function M.clear_position() step, micro, inner_calls = nil, nil, nil end

--- The position, to be restored later: for code that must not disturb training (evaluation, sampling).
function M.state()
  return { seed = seed, calls = calls, roots = roots, step = step, micro = micro, inner_calls = inner_calls }
end

--- Takes up a position from M.state().
function M.set_state(s)
  seed, calls, roots = s.seed, s.calls, s.roots
  step, micro, inner_calls = s.step, s.micro, s.inner_calls
end

--- The key of the next call of one purpose ('tensor', 'dropout', 'sample'): uint64_t.
function M.next_key(purpose)
  local p = PURPOSE[purpose]
  local s = ffi.cast('uint64_t', ffi.cast('int64_t', seed))
  if step then
    inner_calls = inner_calls + 1
    return C.z3_key(s, 16 + p, step, micro, inner_calls)
  end
  calls = calls + 1
  return C.z3_key(s, p, calls, 0, 0)
end

--- A key for a seed of one's own (z3.generate's, a loader's): uint64_t, no state.
function M.key(own_seed, a, b, c, d)
  return C.z3_key(ffi.cast('uint64_t', ffi.cast('int64_t', own_seed)), a or 0, b or 0, c or 0, d or 0)
end

--- A function that gives uniform numbers in [0, 1) from a key, for choices made in Lua.
function M.stream(key)
  local n = 0
  return function()
    n = n + 1
    local bits = C.z3_key(key, n, 0, 0, 0)
    return tonumber(bit.rshift(bits, 11)) / 2 ^ 53
  end
end

return M
