--- progress.lua -- z3.progress: trains until a step number and shows how far it is.
-- On a terminal: one line at the bottom that is taken away before the loop's body runs (so that what it prints stands
-- alone) and drawn again after it. In a file: plain lines, about twenty of them, without carriage returns.
local ffi   = require 'ffi'
local err   = require 'z3.error'
local opts  = require 'z3.opts'
local clock = require 'z3.engine.clock'

local M = {}

ffi.cdef [[
typedef struct { unsigned short rows, columns, x, y; } z3lua_window_size;
int z3lua_isatty(int fd) __asm__("isatty");
int z3lua_ioctl(int fd, unsigned long request, z3lua_window_size *size) __asm__("ioctl");
]]
local STDOUT, TIOCGWINSZ = 1, 0x5413
local LINES = 20                                -- plain lines of a run, about
local CLEAR = '\r\27[K'

-- Columns of the terminal; 80 when it doesn't say.
local function width()
  local size = ffi.new 'z3lua_window_size'
  if ffi.C.z3lua_ioctl(STDOUT, TIOCGWINSZ, size) == 0 and size.columns > 0 then return size.columns end
  return tonumber(os.getenv 'COLUMNS') or 80
end

local function duration(s)
  if s >= 360000 or s ~= s then return '--:--' end
  s = math.floor(s + 0.5)
  if s < 3600 then return ('%d:%02d'):format(math.floor(s / 60), s % 60) end
  return ('%d:%02d:%02d'):format(math.floor(s / 3600), math.floor(s / 60) % 60, s % 60)
end

-- 950, 12.3k, 4.56M: three digits are enough at a glance.
local function short(n)
  if n < 1000 then return ('%.0f'):format(n) end
  if n < 1e6 then return ('%.3gk'):format(n / 1e3) end
  return ('%.3gM'):format(n / 1e6)
end

local function facts(self, r)
  local loss = r.skipped and 'skipped' or ('loss %.4f'):format(r.loss)
  local rate = r.tokens > 0 and ('  %s tokens/s'):format(short(r.tokens_per_s)) or ''
  local done = self.engine.step_count - self.first
  local left = done > 0 and (self.steps - self.engine.step_count) * (clock.now() - self.started) / done or math.huge
  return ('step %d/%d  %s'):format(self.engine.step_count, self.steps, loss), rate, ('  ETA %s'):format(duration(left))
end

-- The bar takes what the texts leave; a narrow terminal loses the bar first, then the rest from its end.
local function draw(self, r)
  local head, rate, eta = facts(self, r)
  local room = width() - 1
  local text = head .. rate .. eta
  local bar = room - #text - 3
  if bar >= 8 then
    bar = math.min(bar, 40)
    local full = math.floor(bar * self.engine.step_count / self.steps + 0.5)
    text = '[' .. ('='):rep(full) .. (' '):rep(bar - full) .. '] ' .. text
  end
  self.shown = text:sub(1, math.max(0, room))
end

local function plain(self, r)
  local n, steps = self.engine.step_count, self.steps
  local every = math.max(1, math.ceil(steps / LINES))
  if n ~= self.first + 1 and n ~= steps and n % every ~= 0 then return end
  local head, rate, eta = facts(self, r)
  io.stdout:write(head, rate, n < steps and eta or '', '\n')
  io.stdout:flush()
end

local function finish(self)
  if self.shown then io.stdout:write(CLEAR, self.shown, '\n') end
  self.shown = nil
  io.stdout:flush()
end

local function advance(self)
  if self.engine.step_count >= self.steps then
    finish(self)
    return nil
  end
  if self.shown then
    io.stdout:write(CLEAR, self.shown)
    io.stdout:flush()
  end
  local r = self.engine:train_batch()
  if not r then
    finish(self)
    return nil
  end
  if not self.quiet then
    if self.terminal then
      draw(self, r)
      io.stdout:write(CLEAR)                    -- not flushed: without output of the body the line only changes
    else
      plain(self, r)
    end
  end
  return r
end

--- Iterates over the reports of engine:train_batch() until step number `steps`; a resumed run does only the rest. Ends
-- with the data too. [all ranks]
-- @tab engine
-- @int steps
-- @tab[opt] o  quiet = true shows nothing; terminal = true or false overrides what standard output is
function M.progress(engine, steps, o)
  if type(engine) ~= 'table' or type(engine.train_batch) ~= 'function' then
    err.throw('ARG', 'progress: the first argument wants an engine')
  end
  if type(steps) ~= 'number' or steps < 0 or steps % 1 ~= 0 then
    err.throw('ARG', ('progress: steps is %s, wants a whole number >= 0'):format(tostring(steps)))
  end
  o = opts.read(o, { quiet = false, terminal = opts.boolean }, 'progress')
  local terminal = o.terminal
  if terminal == nil then terminal = ffi.C.z3lua_isatty(STDOUT) == 1 end
  return advance, { engine = engine, steps = steps, first = engine.step_count, started = clock.now(),
                    terminal = terminal, quiet = o.quiet or err.rank > 0 }
end

return M
