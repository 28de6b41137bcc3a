--- handle.lua -- who frees a tensor: the Lua object that owns one reference, its scope, and the garbage collector.
-- A Tensor is a small C struct with a metatype rather than a Lua table, because LuaJIT (unless built with 5.2
-- compatibility, which distributions don't do) ignores __len of tables, and #t is the size of dim 0. As a struct it is
-- also one allocation instead of three. `t.h` is the handle that C knows.
--
-- The collector sees 40 bytes where a tensor may hold 400 MB, so it is driven by native bytes: `live` counts what
-- unreleased Lua objects hold (garbage included), and when it passes `mark` a collection runs. A dead loss of four
-- bytes may hold the history of a whole forward, so what is in use on the device counts too, against `device_mark`.
local ffi = require 'ffi'
local err = require 'z3.error'
local opts = require 'z3.opts'
local C   = require('z3.ffi').C

local M = {}

local OWNED, FREED, SCOPE_ENDED, KEPT = 0, 1, 2, 3
local STEP_BYTES = 64 * 2 ^ 20                  -- garbage that may pile up before a collection, at least
local STEP_SHARE = 0.25                         -- ... or this share of what was really alive
local DEVICE_SHARE = 1.5                        -- bytes in use on a device before a collection, times those alive
local MAX_TABLES = 1e5                          -- tables searched for tensors among a scope's results
local FIRST_ITEMS = 4096                        -- tensors in a scope before it looks for dead ones

-- The comment makes the text unique: test runners memoize ffi.typeof and ffi.metatype by it, and a reloaded module
-- must get a type of its own with its own functions.
-- _dtype, _ndim, _d0 ...: what a freed one was.
local ctype = ffi.typeof([[struct { z3_tensor *h; double _counted; int16_t _state; int8_t _dtype, _ndim;
  int32_t _d0, _d1, _d2, _d3; } /* ]] .. tostring(M) .. ' */')
local WEAK = { __mode = 'v' }

--- The metatable of tensors; tensor.lua fills it before the first tensor is made.
M.meta = {}

local live, mark, device_mark = 0, STEP_BYTES, STEP_BYTES
local scope                                     -- innermost: { n =, limit =, items = sequence, parent = }
local reasons = setmetatable({}, { __mode = 'k' })

local function release(t, state)
  local h = t.h
  if h == nil then return end
  t.h = nil
  t._state = state
  live = live - t._counted
  t._counted = 0
  C.z3_tensor_release(h)
end

function M.meta.__gc(t) release(t, FREED) end

--- Releases and remembers what it was, for the message of a later use. Straight-line code: it must not break traces.
local function retire(t, state)
  local h = t.h
  if h == nil then return end
  local n = C.z3_tensor_ndim(h)
  t._dtype, t._ndim = C.z3_tensor_dtype(h), n
  t._d0, t._d1 = C.z3_tensor_dim(h, 0), C.z3_tensor_dim(h, 1)
  if n > 2 then t._d2, t._d3 = C.z3_tensor_dim(h, 2), C.z3_tensor_dim(h, 3) end
  release(t, state)
end

--- 'f32 (2,3)' of a retired tensor.
local function description(t)
  local dims = table.concat({ t._d0, t._d1, t._d2, t._d3 }, ',', 1, math.min(t._ndim, 4))
  return ('%s (%s%s)'):format(ffi.string(C.z3_dtype_name(t._dtype)), dims, t._ndim > 4 and ',…' or '')
end

--- The class; M.is_tensor tests for it. Set by M.seal once the metatable is complete.
local Tensor

--- Freezes the metatable and makes the class (ffi.metatype copies nothing, but may be called once only).
function M.seal()
  Tensor = ffi.metatype(ctype, M.meta)
  return Tensor
end

--- Is x a tensor object (a parameter is not)?
function M.is_tensor(x) return ffi.istype(ctype, x) end

--- Takes the entries out of a scope's list that a collection has cleared.
local function compact(s)
  local items, k = {}, 0
  for i = 1, s.n do
    local t = s.items[i]
    if t ~= nil then k = k + 1; items[k] = t end
  end
  s.items, s.n, s.limit = items, k, math.max(FIRST_ITEMS, 2 * k)
end

--- Runs a full collection, which frees unreachable tensors, and sets the next marks. Scopes hold their tensors strongly
-- so that their end finds every one that still lives; for the time of a collection they let go of them.
-- @param[opt] h  a native tensor: what is in use on its device sets that mark. Half of what was really in use may pile
--   up: a training step whose activations come and go then collects once or twice in its life, not in every step.
function M.collect(h)
  local s = scope
  while s do setmetatable(s.items, WEAK); s = s.parent end
  collectgarbage()
  s = scope
  while s do compact(s); s = s.parent end
  mark = live + math.max(STEP_BYTES, STEP_SHARE * live)
  if h ~= nil then
    device_mark = math.max(device_mark, STEP_BYTES + DEVICE_SHARE * tonumber(C.z3_tensor_device_bytes(h)))
  end
end

--- Bytes that unreleased Lua objects hold, as far as counted.
function M.live_bytes() return live end

local function enlist(t, s)
  if s.n >= s.limit then
    M.collect()
    if s.n >= s.limit then s.limit = 2 * s.n end  -- s may be outside of the chain that was looked at
  end
  local n = s.n + 1
  s.n = n
  s.items[n] = t
end

--- Wraps a new reference: the object owns it from now on.
-- @param h       z3_tensor*, a new reference
-- @bool shared   its bytes belong to another tensor (a view): not counted
function M.own(h, shared)
  local t = Tensor(h)
  if not shared then
    local bytes = tonumber(C.z3_tensor_bytes(h))
    t._counted = bytes
    live = live + bytes
    if live > mark then M.collect() end
    if tonumber(C.z3_tensor_device_bytes(h)) > device_mark then M.collect(h) end
  end
  if scope then enlist(t, scope) end
  return t
end

--- Frees now; a second time does nothing.
function M.free(t) retire(t, FREED) end

--- Marks a tensor as dead for a reason of its own: later uses throw (code, message).
function M.kill(t, code, message)
  reasons[t] = { code = code, message = message }
  release(t, FREED)
end

--- Throws for a tensor whose handle is gone.
function M.dead(t, what)
  local reason = reasons[t]
  if reason then err.throw(reason.code, reason.message) end
  local prefix = what and what .. ': ' or ''
  if t._state == SCOPE_ENDED then
    err.throw('STALE', ('%sthe tensor %s was made in a z3.scope or layer that has ended: return it to keep it')
      :format(prefix, description(t)))
  end
  err.throw('STALE', ('%sthe tensor %s was freed: it cannot be used any more'):format(prefix, description(t)))
end

--- Takes a tensor out of all scopes: only t:free() or the collector frees it (caches, state that outlives a step).
function M.keep(t)
  t._state = KEPT
  return t
end

--- Runs fn outside of any scope: what it creates lives until freed or collected.
function M.outside(fn, ...)
  local saved = scope
  scope = nil
  return (function(ok, ...)
    scope = saved
    if not ok then error(..., 0) end
    return ...
  end)(pcall(fn, ...))
end

--- Notes the tensors reachable from a scope's results: seen[t] = true.
local function mark_returned(v, seen)
  if M.is_tensor(v) then
    seen[v] = true
  elseif type(v) == 'table' and not seen[v] and seen.n < MAX_TABLES then
    seen[v] = true
    seen.n = seen.n + 1
    for key, x in next, v do
      if type(x) == 'table' or type(x) == 'cdata' then mark_returned(x, seen) end
      if type(key) == 'table' or type(key) == 'cdata' then mark_returned(key, seen) end
    end
  end
end

--- Opens a scope by hand; the caller must close it on every path (z3.scope does that).
function M.enter()
  scope = { n = 0, limit = FIRST_ITEMS, items = {}, parent = scope }
  return scope
end

--- Closes `s` (and scopes inside that an error left open): frees what it owns but what the arguments reach.
function M.leave(s, ...)
  local seen = { n = 0 }
  for i = 1, select('#', ...) do mark_returned((select(i, ...)), seen) end
  while scope and scope ~= s do                 -- left open: they belong to s now
    local inner = scope
    scope = inner.parent
    for i = 1, inner.n do
      local t = inner.items[i]
      if t ~= nil and scope then enlist(t, scope) end
    end
  end
  scope = s.parent
  for i = 1, s.n do
    local t = s.items[i]
    if t ~= nil and t._state == OWNED then
      if not seen[t] then retire(t, SCOPE_ENDED) elseif scope then enlist(t, scope) end
    end
  end
end

--- The innermost open scope, or nil.
function M.current() return scope end

--- Makes an open scope (nil: none) the innermost one until it is switched back; returns the one that was. A user's
-- module called inside a built-in one uses this: what it makes isn't the built-in scope's to free.
function M.switch(s)
  local was = scope
  scope = s
  return was
end

local function finish(s, ok, ...)
  if ok then
    M.leave(s, ...)
    return ...
  end
  M.leave(s)
  error(..., 0)
end

--- Runs fn(...) and returns its results; every tensor made inside and not reachable from the results is freed at the
-- end, also when fn throws. What backward still needs lives on in the library.
function M.scope(fn, ...)
  opts.want_callable(fn, 'scope')
  local s = M.enter()
  return finish(s, pcall(fn, ...))
end

return M
