--- workers.lua -- the other processes of a benchmark: one line in, one JSON line out. A worker that waits uses no core.
local json = require('z3').json

local M = {}

local Worker = {}
Worker.__index = Worker

--- A word for the shell.
function M.quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

local folder, count

--- The folder for files of this run; made on first use.
function M.folder()
  if folder then return folder end
  local pipe = assert(io.popen 'mktemp -d')
  folder = pipe:read '*l'
  pipe:close()
  return folder
end

--- Removes it.
function M.clean()
  if folder then os.execute('rm -rf ' .. M.quote(folder)) end
  folder = nil
end

-- The end of what a program said on standard error.
local function tail(path)
  local f = io.open(path)
  local text = f and f:read '*a' or ''
  if f then f:close() end
  return (text:sub(-800):gsub('%s+$', ''))
end

-- The next answer; lines that aren't JSON are the program's chatter.
local function answer(self)
  for line in self.out:lines() do
    if line:sub(1, 1) == '{' then return json.decode(line) end
  end
  self.dead = true
  error(('%s ended without an answer:\n%s'):format(self.name, tail(self.log)), 0)
end

--- Starts a program and goes on; several may start beside each other.
-- @string name     for messages
-- @string command  for the shell
function M.start(name, command)
  count = (count or 0) + 1
  local fifo, log = ('%s/%d.in'):format(M.folder(), count), ('%s/%d.log'):format(M.folder(), count)
  os.execute('mkfifo ' .. M.quote(fifo))
  local self = setmetatable({ name = name, log = log }, Worker)
  self.out = assert(io.popen(('%s <%s 2>%s'):format(command, M.quote(fifo), M.quote(log))))
  self.input = assert(io.open(fifo, 'w'))
  return self
end

--- Waits until it is ready; returns itself. What it says of itself is in `about`.
function Worker:ready()
  self.about = answer(self)
  return self
end

--- Sends a line; returns the answer.
function Worker:ask(line)
  self.input:write(line, '\n')
  self.input:flush()
  return answer(self)
end

--- Ends it; returns its last words.
function Worker:stop()
  if self.dead then return nil end
  local last = self:ask 'end'
  self.input:close()
  self.out:close()
  self.dead = true
  return last
end

--- Runs a program to its end; returns the JSON lines of its output.
function M.lines(name, command)
  count = (count or 0) + 1
  local log, out = ('%s/%d.log'):format(M.folder(), count), {}
  local pipe = assert(io.popen(('%s </dev/null 2>%s; echo "rc $?"'):format(command, M.quote(log))))
  local rc
  for line in pipe:lines() do
    if line:sub(1, 1) == '{' then out[#out + 1] = json.decode(line) end
    rc = line:match '^rc (%d+)$' or rc
  end
  pipe:close()
  if rc ~= '0' then error(('%s: exit code %s:\n%s'):format(name, tostring(rc), tail(log)), 0) end
  return out
end

return M
