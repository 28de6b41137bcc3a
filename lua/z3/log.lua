--- log.lua -- what the library says by itself: notices and warnings on the error stream, steps as JSON lines in a file.
local err = require 'z3.error'

local M = {}

local function say(text)
  io.stdout:flush()                             -- keeps the order of a recipe's own lines and ours on a terminal
  io.stderr:write(text, '\n')
end

--- A line of information, on rank 0 only.
function M.notice(text)
  if err.rank == 0 then say('z3: ' .. text) end
end

local warned = {}

--- A warning, on every rank that has it; the same text is written once.
function M.warn(text)
  if warned[text] then return end
  warned[text] = true
  say((err.rank > 0 and ('[rank %d] '):format(err.rank) or '') .. 'z3: warning: ' .. text)
end

-- Shortest decimal text that reads back as the same double; whole numbers up to 2^53 in full. JSON has no nan or inf.
local function number(v)
  if v ~= v or v == math.huge or v == -math.huge then return 'null' end
  if v == math.floor(v) and math.abs(v) <= 2 ^ 53 then return ('%.0f'):format(v) end
  local short = ('%.15g'):format(v)
  if tonumber(short) == v then return short end
  return ('%.17g'):format(v)
end

local function value(v)
  if type(v) == 'number' then return number(v) end
  if type(v) == 'boolean' then return tostring(v) end
  local text = tostring(v):gsub('[%c"\\]', function(c) return ('\\u%04x'):format(c:byte()) end)
  return '"' .. text .. '"'
end

--- One JSON object on one line.
-- @tab row    plain values
-- @tab order  keys in the order to write them; absent ones are left out
function M.json_line(row, order)
  local parts = {}
  for _, key in ipairs(order) do
    if row[key] ~= nil then parts[#parts + 1] = ('"%s":%s'):format(key, value(row[key])) end
  end
  return '{' .. table.concat(parts, ',') .. '}'
end

local Steps = {}
Steps.__index = Steps

-- The lines of an older run that come before `step`: what a resumed run goes on from.
local function lines_before(path, step)
  local f = io.open(path, 'rb')
  if not f then return {} end
  local kept = {}
  for line in f:lines() do
    local n = tonumber(line:match '"step":(%d+)')
    if n and n < step and line:sub(-1) == '}' then kept[#kept + 1] = line end
  end
  f:close()
  return kept
end

--- A file of JSON lines, one per step. It is opened by the first row: rows of an older run with that step or a later
-- one are dropped then, so a fresh run starts a fresh file and a resumed one has each step once.
-- @string path
-- @tab order  keys in the order to write them
function M.steps(path, order)
  return setmetatable({ path = path, order = order }, Steps)
end

function Steps:open(step)
  local kept = lines_before(self.path, step)
  -- The old rows are written beside the file first, so that a crash here loses none of them.
  local temporary = self.path .. '.part'
  local f, why = io.open(temporary, 'wb')
  if not f then err.throw('IO', ('log: cannot write %s: %s'):format(self.path, tostring(why))) end
  for _, line in ipairs(kept) do f:write(line, '\n') end
  f:close()
  local ok, problem = os.rename(temporary, self.path)
  if not ok then err.throw('IO', ('log: cannot write %s: %s'):format(self.path, tostring(problem))) end
  self.file, why = io.open(self.path, 'ab')
  if not self.file then err.throw('IO', ('log: cannot write %s: %s'):format(self.path, tostring(why))) end
end

--- Appends one row and flushes it: a run that dies leaves every finished step on disk.
-- @raise IO
function Steps:write(row)
  if not self.file then self:open(row.step) end
  local ok, why = self.file:write(M.json_line(row, self.order), '\n')
  if ok then ok, why = self.file:flush() end
  if not ok then err.throw('IO', ('log: cannot write %s: %s'):format(self.path, tostring(why))) end
end

--- Rows after `step` don't count any more (a checkpoint was loaded): the next row starts the file anew from there.
function Steps:rewind()
  self:close()
end

--- Closes the file; twice is harmless.
function Steps:close()
  if self.file then self.file:close() end
  self.file = nil
end

return M
