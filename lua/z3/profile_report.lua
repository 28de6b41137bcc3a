--- profile_report.lua -- the profiler's sums as a table of numbers, and that table as text.
local ffi  = require 'ffi'
local opts = require 'z3.opts'
local C    = require('z3.ffi').C

local M = {}

local Report = {}
Report.__index = Report

local PHASES = { [C.Z3P_FORWARD] = 'forward', [C.Z3P_BACKWARD] = 'backward', [C.Z3P_RECOMPUTE] = 'recompute',
                 [C.Z3P_UPDATE] = 'update', [C.Z3P_NORM] = 'norm', [C.Z3P_DATA] = 'data' }
local UPDATES = { [C.Z3_ADAMW] = 'adamw', [C.Z3_ADAM] = 'adam', [C.Z3_SGD] = 'sgd', [C.Z3_LION] = 'lion' }
local DATA = { [C.Z3P_COPY] = 'copy', [C.Z3P_FILL] = 'fill', [C.Z3P_RANDOM] = 'random' }

--- Names of a kind of work: 'linear', 'backward'. Nil for calls and marks.
function M.names(kind, object)
  local phase = PHASES[kind]
  if not phase then return nil end
  if kind == C.Z3P_UPDATE then return UPDATES[object], phase end
  if kind == C.Z3P_NORM then return 'sum of squares', phase end
  if kind == C.Z3P_DATA then return DATA[object], phase end
  return ffi.string(C.z3_op_name(object)), phase
end

local function median(list, key)
  if #list == 0 then return 0 end
  local values = {}
  for i, x in ipairs(list) do values[i] = x[key] end
  table.sort(values)
  local n = #values
  return n % 2 == 1 and values[(n + 1) / 2] or (values[n / 2] + values[n / 2 + 1]) / 2
end

local function mean(list, key)
  local sum = 0
  for _, x in ipairs(list) do sum = sum + x[key] end
  return #list > 0 and sum / #list or 0
end

-- Rows of all kernels and their seconds together, of one step.
local function rows_of(totals, steps, step_s)
  local rows, kernels = {}, 0
  for kind = 0, C.Z3P_CALL - 1 do
    for object = 0, C.Z3OP_COUNT - 1 do
      local t = totals[kind * C.Z3OP_COUNT + object]
      local work, phase = M.names(kind, object)
      if t.count > 0 and work then
        local seconds = tonumber(t.ns) * 1e-9
        kernels = kernels + seconds
        rows[#rows + 1] = { work = work, phase = phase, calls = tonumber(t.count) / steps, seconds = seconds / steps,
          flops = t.flops / steps, bytes = tonumber(t.bytes) / steps, share = seconds / steps / step_s,
          gflop_s = seconds > 0 and t.flops / seconds * 1e-9 or 0,
          gb_s = seconds > 0 and tonumber(t.bytes) / seconds * 1e-9 or 0 }
      end
    end
  end
  table.sort(rows, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds > b.seconds end
    return a.work .. a.phase < b.work .. b.phase
  end)
  return rows, kernels / steps
end

local function spans_of(names, totals)
  local out = {}
  for i, name in ipairs(names) do
    if i > C.Z3OP_COUNT then break end            -- the core keeps no sums of more
    local t = totals[C.Z3P_MARK * C.Z3OP_COUNT + i - 1]
    out[#out + 1] = { name = name, calls = tonumber(t.count), seconds = tonumber(t.ns) * 1e-9 }
  end
  return out
end

--- A report.
-- @tab sums        { steps=, seconds=, tokens=, totals=, list=, whole= }
-- @int warmup      steps left out
-- @tab span_names  names of marks
-- @param spans     totals that hold the marks
-- @tab memory      z3.memory.stats()
function M.new(sums, warmup, span_names, spans, memory)
  local steps, list = sums.steps, sums.list
  local step_s = sums.seconds / steps
  local rows, kernels_s = rows_of(sums.totals, steps, step_s)
  local calls = 0
  for object = 0, C.Z3OP_COUNT - 1 do
    calls = calls + tonumber(sums.totals[C.Z3P_CALL * C.Z3OP_COUNT + object].ns) * 1e-9 / steps
  end
  return setmetatable({
    steps = steps, warmup = warmup, whole = sums.whole, step_s = step_s, step_median_s = median(list, 'seconds'),
    tokens_per_s = sums.seconds > 0 and sums.tokens / sums.seconds or 0, rows = rows, kernels_s = kernels_s,
    library_s = math.max(0, calls - kernels_s), lua_s = math.max(0, step_s - calls),
    page_faults = { mean = mean(list, 'faults'), median = median(list, 'faults') },
    system_allocs = { mean = mean(list, 'allocs'), median = median(list, 'allocs') },
    spans = spans_of(span_names, spans), memory = memory,
  }, Report)
end

-- ---- text ------------------------------------------------------------------------------------------

local function add(lines, fmt, ...) lines[#lines + 1] = fmt:format(...) end

-- Blank where there is nothing to tell: a copy has no flops.
local function rate(v)
  return v > 0 and ('%9.1f'):format(v) or ('%9s'):format ''
end

local function head(self, lines)
  if self.whole then
    add(lines, 'profile: %.3f s, no step of an engine among it', self.step_s)
  else
    add(lines, 'profile: %d step%s of %.2f ms (median %.2f)%s%s', self.steps, self.steps == 1 and '' or 's',
      self.step_s * 1e3, self.step_median_s * 1e3,
      self.warmup > 0 and (', the first %d left out'):format(self.warmup) or '',
      self.tokens_per_s > 0 and (', %.0f tokens/s'):format(self.tokens_per_s) or '')
  end
  for _, part in ipairs { { 'kernels', self.kernels_s, '' }, { 'library', self.library_s, '  tape, dispatch, memory' },
                          { 'Lua', self.lua_s, '  script, data, small calls' } } do
    add(lines, '  %-10s %9.2f ms  %5.1f %%%s', part[1], part[2] * 1e3, 100 * part[2] / self.step_s, part[3])
  end
end

local function body(self, lines)
  add(lines, '  %-32s %8s %10s %7s %9s %9s', 'work', 'calls', 'ms', 'share', 'GFLOP/s', 'GB/s')
  for _, r in ipairs(self.rows) do
    local calls = r.calls % 1 == 0 and ('%8d'):format(r.calls) or ('%8.1f'):format(r.calls)
    add(lines, '  %-32s %s %10.3f %5.1f %% %s %s', r.phase == 'data' and r.work or r.work .. ' ' .. r.phase, calls,
      r.seconds * 1e3, 100 * r.share, rate(r.gflop_s), rate(r.gb_s))
  end
  for _, s in ipairs(self.spans) do
    add(lines, '  span %-27s %8d %10.3f ms in all', s.name, s.calls, s.seconds * 1e3)
  end
end

local function memory(self, lines)
  add(lines, '  system: %.1f allocations, %.1f minor page faults %s (median %g and %g)', self.system_allocs.mean,
    self.page_faults.mean, self.whole and 'in all' or 'a step', self.system_allocs.median, self.page_faults.median)
  local parts = {}
  for _, name in ipairs(require('z3.memory').CATEGORIES) do
    local by = self.memory.by[name]
    if by.peak > 0 then parts[#parts + 1] = ('%s %s'):format(name, opts.bytes_text(by.peak)) end
  end
  add(lines, '  memory: peak %s (%s)', opts.bytes_text(self.memory.peak), table.concat(parts, ', '))
end

function Report:__tostring()
  local lines = {}
  head(self, lines)
  body(self, lines)
  memory(self, lines)
  return table.concat(lines, '\n')
end

return M
