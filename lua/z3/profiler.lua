--- profiler.lua -- z3.profiler: where the time of training steps goes, and traces for chrome://tracing and Perfetto.
--
--   z3.profiler.start { events = 100000 }
--   ... steps of an engine, or anything else ...
--   z3.print(z3.profiler.stop())               -- the report's table as text
--   z3.profiler.trace 'run.json'
--
-- `z3lua --profile` and `--trace FILE` do the same around a whole script. The core counts (zero3/prof.h): kernels by
-- kind of work, and the calls that run them. What a call took beyond its kernels is the library's own time: checks,
-- shapes, memory, the tape. The rest of a step is Lua's: the script, reading data, small calls as a tensor's shape.
local ffi    = require 'ffi'
local err    = require 'z3.error'
local check  = require 'z3.check'
local opts   = require 'z3.opts'
local clock  = require 'z3.engine.clock'
local report = require 'z3.profile_report'
local C      = require('z3.ffi').C

local M = {}

ffi.cdef [[
typedef struct { long user_s, user_us, system_s, system_us, max_rss, ixrss, idrss, isrss, minor_faults, major_faults,
  rest[8]; } z3lua_usage;
int z3lua_getrusage(int who, z3lua_usage *usage) __asm__("getrusage");
]]

local CELLS = C.Z3P_KINDS * C.Z3OP_COUNT
local STEPS_MAX = 10000                         -- steps remembered one by one; later ones only add to the sums
local DEFAULT_EVENTS = 131072
local usage, stats = ffi.new 'z3lua_usage', ffi.new 'z3_memory_stats'
local state                                     -- nil: never started

--- Sums over some steps.
local function new_sums()
  return { steps = 0, seconds = 0, tokens = 0, totals = ffi.new('z3_prof_total[?]', CELLS), list = {} }
end

local function page_faults()
  ffi.C.z3lua_getrusage(0, usage)
  return tonumber(usage.minor_faults)
end

local function system_allocs()
  check(C.z3_memory_stats_get(state.device, stats), 'profiler')
  return tonumber(stats.system_allocs)
end

-- What counts from, read in the order in which take() reads: what is between belongs to nobody.
local function mark_start()
  state.faults, state.allocs = page_faults(), system_allocs()
  C.z3_prof_totals(state.before)
  state.began = clock.now()
end

-- Adds what happened since mark_start to `sums`; returns seconds, faults, allocations.
local function take(sums)
  local seconds = clock.now() - state.began
  C.z3_prof_totals(state.now)
  local into, now, before = sums.totals, state.now, state.before
  for i = 0, CELLS - 1 do
    into[i].count = into[i].count + (now[i].count - before[i].count)
    into[i].ns = into[i].ns + (now[i].ns - before[i].ns)
    into[i].bytes = into[i].bytes + (now[i].bytes - before[i].bytes)
    into[i].flops = into[i].flops + (now[i].flops - before[i].flops)
  end
  sums.steps, sums.seconds = sums.steps + 1, sums.seconds + seconds
  return seconds, page_faults() - state.faults, system_allocs() - state.allocs
end

--- Starts counting, from nothing.
-- @tab[opt] o  events = room for single events, for trace() (0: none, only sums; the oldest are overwritten);
--              warmup = first steps that are left out of the sums, because they make plans and fill the pool (2)
-- @raise ARG, OOM
function M.start(o)
  o = opts.read(o, { events = 0, warmup = 2 }, 'profiler.start')
  for key, v in pairs(o) do
    err.require_arg(v >= 0 and v % 1 == 0 and v <= 2 ^ 26,
      'profiler.start: %s is %s, wants a whole number from 0 to 2^26', key, tostring(v))
  end
  check(C.z3_prof_enable(o.events), 'profiler.start')
  state = { device = require('z3.tensor_core').default_device(), warmup = o.warmup, events = o.events,
            before = ffi.new('z3_prof_total[?]', CELLS), now = ffi.new('z3_prof_total[?]', CELLS),
            first = new_sums(), steady = new_sums(), whole = new_sums(), spans = {}, span_names = {}, trace_steps = {},
            open = false }
  state.whole_began, state.whole_faults, state.whole_allocs = clock.now(), page_faults(), system_allocs()
end

local function need(who)
  if not state then err.throw('ARG', who .. ': nothing was profiled: z3.profiler.start() first') end
end

--- Stops counting; returns the report. What was counted stays for report() and trace().
function M.stop()
  need 'profiler.stop'
  if C.z3_prof_enabled() then
    state.whole_s = clock.now() - state.whole_began
    C.z3_prof_disable()
  end
  return M.report()
end

--- What was counted so far: a table that prints as text. Fields: steps, warmup (steps left out), step_s (mean),
-- step_median_s, tokens_per_s, kernels_s, library_s, lua_s (of a step), rows = { { work=, phase=, calls=, seconds=,
-- share=, gflop_s=, gb_s=, flops=, bytes= }, ... } by time, spans, page_faults and system_allocs (of a step: mean=,
-- median=), memory = z3.memory.stats(). Without steps of an engine, the whole time since start counts as one.
function M.report()
  need 'profiler.report'
  local sums, warm = state.steady, state.warmup
  if sums.steps == 0 then sums, warm = state.first, 0 end
  if sums.steps == 0 then
    sums, warm = new_sums(), 0
    C.z3_prof_totals(sums.totals)
    sums.steps, sums.whole = 1, true
    sums.seconds = state.whole_s or clock.now() - state.whole_began
    sums.list[1] = { seconds = sums.seconds, faults = page_faults() - state.whole_faults,
                     allocs = system_allocs() - state.whole_allocs }
  end
  local spans = ffi.new('z3_prof_total[?]', CELLS)
  C.z3_prof_totals(spans)
  return report.new(sums, warm, state.span_names, spans, require('z3.memory').stats())
end

--- Writes the events so far as Chrome trace JSON, for chrome://tracing or ui.perfetto.dev, and forgets them.
-- @string path
-- @return number of events written, number of older ones that the ring had dropped
-- @raise ARG when start() kept no events, IO
function M.trace(path)
  need 'profiler.trace'
  err.require_arg(type(path) == 'string', 'profiler.trace: path is %s, wants a file name', opts.show(path))
  err.require_arg(state.events > 0, 'profiler.trace: no events were kept: z3.profiler.start { events = %d }',
    DEFAULT_EVENTS)
  local steps = state.trace_steps
  state.trace_steps = {}
  return require('z3.trace_file').write(path, steps, state.span_names)
end

--- Runs fn(...) and returns its results; its time is a row of the report and a bar of the trace under `name`.
function M.span(name, fn, ...)
  err.require_arg(type(name) == 'string' and type(fn) == 'function', 'profiler.span: wants a name and a function')
  if not state or not C.z3_prof_enabled() then return fn(...) end
  local number = state.spans[name]
  if not number then
    number = #state.span_names
    state.spans[name], state.span_names[number + 1] = number, name
  end
  local start = C.z3_now_ns()
  return (function(ok, ...)
    C.z3_prof_mark(number, start)
    if not ok then error(..., 0) end
    return ...
  end)(pcall(fn, ...))
end

-- ---- the engine's side: called only while profiling is on ------------------------------------------

--- A window's first micro-batch begins.
function M.step_begins()
  if not state then return end                  -- switched on from elsewhere
  state.open = true
  state.start_ns = C.z3_now_ns()
  mark_start()
end

--- A step is done.
-- @tab r  its report
function M.step_ends(r)
  if not state or not state.open then return end
  state.open = false
  local sums = state.first
  if state.first.steps >= state.warmup then sums = state.steady end
  local seconds, faults, allocs = take(sums)
  sums.tokens = sums.tokens + r.tokens
  if sums.steps <= STEPS_MAX then sums.list[sums.steps] = { seconds = seconds, faults = faults, allocs = allocs } end
  if state.events > 0 and #state.trace_steps < STEPS_MAX then
    state.trace_steps[#state.trace_steps + 1] = { step = r.step, loss = r.loss, tokens = r.tokens,
      start_ns = state.start_ns, end_ns = C.z3_now_ns() }
  end
end

-- ---- z3lua --profile, --trace ----------------------------------------------------------------------

--- Starts as the program's options say.
-- @string[opt] trace  a file name: events are kept for it
function M.start_for(trace)
  M.start { events = trace and DEFAULT_EVENTS or 0 }
end

--- Ends the same. The report goes to standard error, where it doesn't mix with what the script prints.
-- @bool profile        print the report
-- @string[opt] trace   write the events
function M.finish_for(profile, trace)
  local r = M.stop()
  if profile then io.stderr:write(tostring(r), '\n') end
  if trace and state.events > 0 then
    local n, dropped = M.trace(trace)
    io.stderr:write(('trace: %d events in %s%s\n'):format(n, trace,
      dropped > 0 and (', %d older ones were overwritten'):format(dropped) or ''))
  end
end

return M
