--- batch.lua -- micro-batches: where they come from, how many samples they hold, when their memory goes.
local err    = require 'z3.error'
local handle = require 'z3.handle'
local T      = require 'z3.tensor'

local M = {}

--- Is x an iterator: a table with a function `next`?
function M.is_iterator(x)
  return type(x) == 'table' and type(x.next) == 'function'
end

-- One micro-batch as an iterator.
local Single = {}
Single.__index = Single
function Single:next()
  local batch = self.batch
  self.batch = nil
  return batch
end

--- The iterator of a call: `given` (an iterator, or one micro-batch), else the engine's own data.
-- @raise ARG when there is neither
function M.source(given, data, who)
  if given == nil then
    if data == nil then
      err.throw('ARG', who .. ': no data: give an iterator or a micro-batch, or data= to z3.initialize')
    end
    return data
  end
  if M.is_iterator(given) then return given end
  return setmetatable({ batch = given }, Single)
end

local function dim0(x) return T.is_tensor(x) and x.ndim > 0 and x.shape[1] or nil end

--- Samples in a micro-batch: dim 0 of its tokens, or of the first tensor in it (by name, then position).
-- @return a number, or nil when there is no tensor
function M.samples(batch)
  if T.is_tensor(batch) then return dim0(batch) end
  if type(batch) ~= 'table' then return nil end
  local n = dim0(batch.tokens)
  if n then return n end
  local best
  for key, x in pairs(batch) do
    if dim0(x) and (best == nil or tostring(key) < tostring(best)) then best = key end
  end
  return best ~= nil and dim0(batch[best]) or nil
end

--- The modules that may keep tensors: those of a script's own classes (a class with `frees` keeps none; see
-- nn/call.lua).
function M.keepers(modules)
  local list = {}
  for _, m in ipairs(modules) do
    if rawget(getmetatable(m).__index, 'frees') == nil then list[#list + 1] = m end
  end
  return list
end

--- Tensors that modules keep in their fields, or in lists in their fields: the scope of a micro-batch must not free
-- them.
-- @tab modules  sequence of modules
function M.kept_by(modules)
  local kept
  for i = 1, #modules do
    for _, v in next, modules[i] do
      if T.is_tensor(v) then
        kept = kept or {}
        kept[#kept + 1] = v
      elseif type(v) == 'table' and getmetatable(v) == nil then
        for _, w in next, v do
          if T.is_tensor(w) then
            kept = kept or {}
            kept[#kept + 1] = w
          end
        end
      end
    end
  end
  return kept
end

local function finish(s, engine, ok, ...)
  local kept = M.kept_by(engine.keepers)
  if ok then
    handle.leave(s, kept, ...)
    return ...
  end
  handle.leave(s, kept)
  error(..., 0)
end

--- Runs fn(...) in a scope of handles: what it made is freed at once, but for its results and what modules keep.
function M.scoped(engine, fn, ...)
  local s = handle.enter()
  return finish(s, engine, pcall(fn, ...))
end

--- Gives a micro-batch back to the iterator that made it, when that wants it and no module keeps a part of it.
function M.recycle(engine, iter, batch)
  if type(iter.recycle) ~= 'function' then return end
  for _, t in ipairs(M.kept_by(engine.keepers) or {}) do
    for _, x in pairs(batch) do
      if x == t then return end
    end
  end
  iter:recycle(batch)
end

return M
