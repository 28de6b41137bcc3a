--- error.lua -- what every failure looks like: a table {code=, message=, rank=, where=}, thrown with error().
-- code is one of 'OOM', 'ARG', 'SHAPE', ... (core/base/err.def); where is the script's file:line.
local M = {}

local Error = {}
Error.__index = Error

--- One readable line: 'train.lua:12: linear: x is (2,3), w is (4,5) [SHAPE]'.
function Error.__tostring(e)
  local rank = (e.rank or 0) > 0 and ('[rank %d] '):format(e.rank) or ''
  local where = e.where and e.where .. ': ' or ''
  return ('%s%s%s [%s]'):format(rank, where, (tostring(e.message):gsub('%s*\n%s*', '; ')), tostring(e.code))
end

function Error.__concat(a, b) return tostring(a) .. tostring(b) end

--- This process's rank; the launcher sets it.
M.rank = 0

--- Text to put before a message (the module that is running); check.lua installs it. Returns '' or 'h.0.attn: '.
M.context = function() return '' end

--- Our own files don't count as the script's place. Folder of this file, as debug.getinfo shows it.
local own_dir = debug.getinfo(1, 'S').source:match '^@(.*[/\\])' or '@@'

--- The models that come with the library, in the folder beside lua/.
local models_dir = own_dir:gsub('lua[/\\]z3[/\\]$', 'models/')

local function is_own(source)
  return source:sub(2, 1 + #own_dir) == own_dir or source:sub(2, 1 + #models_dir) == models_dir
end

--- First line on the stack that isn't the library's own: 'file:line', or nil (C, or only library code).
local function script_line(level)
  for l = level, math.huge do
    local info = debug.getinfo(l, 'Sl')
    if not info then return nil end
    if info.currentline > 0 and not is_own(info.source) then
      return info.short_src .. ':' .. info.currentline
    end
  end
end

--- Builds an error object without throwing it.
-- @string code     'ARG', ...
-- @string message  what was wrong, with the value, the range and what to do
-- @tab[opt] extra  more fields (OOM's)
function M.new(code, message, extra)
  local e = { code = code, message = M.context() .. message, rank = M.rank, where = script_line(3) }
  for k, v in pairs(extra or {}) do e[k] = v end
  return setmetatable(e, Error)
end

--- Throws an error object.
function M.throw(code, message, extra)
  local e = M.new(code, message, extra)
  M.unwind()
  error(e, 0)
end

--- Called before throwing: leaves the modules that the error cuts short; check.lua installs it.
M.unwind = function() end

--- Throws when `ok` is false or nil: the formatted message with code ARG.
function M.require_arg(ok, fmt, ...)
  if not ok then M.throw('ARG', fmt:format(...)) end
  return ok
end

--- Is `e` an error object (with that code, when one is given)?
function M.is_error(e, code)
  return type(e) == 'table' and getmetatable(e) == Error and (code == nil or e.code == code)
end

return M
