--- trace_file.lua -- the profiler's events as a file for chrome://tracing and Perfetto.
-- Format: "Trace Event Format" (JSON object form). One track of steps, one of kernels, one of the script's spans; times
-- in microseconds since the first of them.
local ffi   = require 'ffi'
local err   = require 'z3.error'
local json  = require 'z3.json'
local names = require('z3.profile_report').names
local C     = require('z3.ffi').C

local M = {}

local CHUNK = 4096
local TRACKS = { { 1, 'steps' }, { 2, 'kernels' }, { 3, 'spans' } }
local STEP, KERNEL, SPAN = 1, 2, 3

-- A number that JSON can hold.
local function number(v) return v == v and math.abs(v) < math.huge and ('%.9g'):format(v) or 'null' end

local function bar(track, name, category, start_us, duration_us, args)
  return ('{"ph":"X","pid":%d,"tid":%d,"name":%s,"cat":"%s","ts":%.3f,"dur":%.3f,"args":{%s}}'):format(
    err.rank, track, json.encode(name), category, start_us, duration_us, args)
end

local function us(from, to) return tonumber(to - from) * 1e-3 end

local function kernel_args(e)
  local seconds = tonumber(e.end_ns - e.start_ns) * 1e-9
  local args = ('"module":%s,"bytes":%d'):format(json.encode(ffi.string(e.owner)), tonumber(e.bytes))
  if seconds > 0 then args = args .. (',"GB/s":%.1f'):format(tonumber(e.bytes) / seconds * 1e-9) end
  if e.flops > 0 then
    args = args .. (',"flops":%.0f'):format(e.flops)
    if seconds > 0 then args = args .. (',"GFLOP/s":%.1f'):format(e.flops / seconds * 1e-9) end
  end
  return args
end

local function event_text(e, first_ns, span_names)
  local start, duration = us(first_ns, e.start_ns), us(e.start_ns, e.end_ns)
  if e.kind == C.Z3P_MARK then
    return bar(SPAN, span_names[e.object + 1] or ('mark %d'):format(e.object), 'span', start, duration, '')
  end
  local work, phase = names(e.kind, e.object)
  return bar(KERNEL, work .. ' ' .. phase, phase, start, duration, kernel_args(e))
end

-- The ring's events in order of their ends; the first start among a chunk's is no earlier than the ring's oldest by
-- much, so times may be slightly negative for spans, which is allowed.
local function write_all(f, steps, span_names)
  local events, dropped, count = ffi.new('z3_event[?]', CHUNK), ffi.new 'int64_t[1]', 0
  local first_ns = steps[1] and steps[1].start_ns
  f:write '{"displayTimeUnit":"ms","traceEvents":[\n'
  for i, track in ipairs(TRACKS) do
    f:write(i > 1 and ',\n' or '', ('{"ph":"M","pid":%d,"tid":%d,"name":"thread_name","args":{"name":"%s"}}'):format(
      err.rank, track[1], track[2]))
  end
  repeat
    local n = C.z3_prof_drain(events, CHUNK, dropped)
    if n > 0 and not first_ns then first_ns = events[0].start_ns + 0LL end
    for i = 0, n - 1 do f:write(',\n', event_text(events[i], first_ns, span_names)) end
    count = count + n
  until n < CHUNK
  for _, s in ipairs(steps) do
    f:write(',\n', bar(STEP, ('step %d'):format(s.step), 'step', us(first_ns, s.start_ns), us(s.start_ns, s.end_ns),
      ('"loss":%s,"tokens":%d'):format(number(s.loss), s.tokens)))
  end
  f:write(('\n],"otherData":{"dropped_events":%d}}\n'):format(tonumber(dropped[0])))
  return count, tonumber(dropped[0])
end

--- Writes and empties the ring.
-- @tab steps       { { step=, loss=, tokens=, start_ns=, end_ns= }, ... }
-- @tab span_names  names of marks
-- @return events written, events dropped
-- @raise IO
function M.write(path, steps, span_names)
  local f, message = io.open(path, 'wb')
  if not f then err.throw('IO', 'trace: ' .. message) end
  local count, dropped = write_all(f, steps, span_names)
  local ok, problem = f:close()
  if not ok then err.throw('IO', ('trace: %s: %s'):format(path, tostring(problem))) end
  return count, dropped
end

return M
