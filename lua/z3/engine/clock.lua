--- clock.lua -- monotonic seconds.
local ffi = require 'ffi'

ffi.cdef [[
typedef struct { long seconds, nanoseconds; } z3lua_moment;
int z3lua_clock(int clock, z3lua_moment *now) __asm__("clock_gettime");
]]
local CLOCK_MONOTONIC = 1
local moment = ffi.new 'z3lua_moment'

local M = {}

--- Seconds since some fixed point in the past.
function M.now()
  ffi.C.z3lua_clock(CLOCK_MONOTONIC, moment)
  return tonumber(moment.seconds) + tonumber(moment.nanoseconds) * 1e-9
end

return M
