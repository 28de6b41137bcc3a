--- autograd.lua -- gradients: requires_grad_, backward, no_grad, and operations written in Lua (z3.op).
-- The library walks the tape. At an operation of a script's own it stops with Z3E_SCRIPT; the gradients are computed
-- here and backward is resumed. The library never calls Lua.
local ffi    = require 'ffi'
local err    = require 'z3.error'
local check  = require 'z3.check'
local handle = require 'z3.handle'
local opts   = require 'z3.opts'
local C      = require('z3.ffi').C
local T      = require 'z3.tensor_core'

local M = {}
local methods, fields, setters = T.methods, T.fields, T.setters
local SCRIPT = C.Z3E_SCRIPT
local CROWDED = 0.25                            -- share of the memory limit that may be garbage when backward starts

local FOUND = ffi.new 'z3_tensor *[1]'

-- ---- fields and small methods --------------------------------------------------------------------

function fields.requires_grad(t) return C.z3_requires_grad(T.handle(t)) end
function fields.is_leaf(t) return C.z3_is_leaf(T.handle(t)) end

--- The gradient of a leaf, accumulated over backward calls; nil when there is none.
function fields.grad(t)
  check(C.z3_grad_get(T.handle(t), FOUND))
  if FOUND[0] == nil then return nil end
  return T.wrap(FOUND[0], true)
end

function setters.grad(t, g)
  local h = T.handle(t)
  check(C.z3_grad_set(h, g ~= nil and T.handle(g) or nil))
end

function setters.requires_grad(t, on) methods.requires_grad_(t, on) end

--- Says whether gradients are wanted (true unless given). Leaves only.
-- @raise ARG for the result of a recorded operation, DTYPE for integers
function methods.requires_grad_(t, on)
  if on == nil then on = true end
  err.require_arg(type(on) == 'boolean', 'requires_grad_: %s, wants true or false', opts.show(on))
  check(C.z3_requires_grad_set(T.handle(t), on), 'requires_grad_')
  return t
end

--- Drops the gradient.
function methods.zero_grad(t)
  check(C.z3_grad_set(T.handle(t), nil))
  return t
end

--- The same values without history; shares the bytes.
function methods.detach(t)
  check(C.z3_detach(T.handle(t), FOUND))
  return T.wrap(FOUND[0], true)
end

-- ---- recording on and off ------------------------------------------------------------------------

local function restore(before, ok, ...)
  C.z3_grad_enable(before)
  if not ok then error(..., 0) end
  return ...
end

--- Runs fn(...) without recording and returns its results.
function M.no_grad(fn, ...)
  opts.want_callable(fn, 'no_grad')
  return restore(C.z3_grad_enable(false), pcall(fn, ...))
end

--- Runs fn(...) with recording, inside no_grad too.
function M.enable_grad(fn, ...)
  opts.want_callable(fn, 'enable_grad')
  return restore(C.z3_grad_enable(true), pcall(fn, ...))
end

--- Is recording on?
function M.is_grad_enabled() return C.z3_grad_enabled() end

-- ---- operations in Lua ---------------------------------------------------------------------------

local nodes, last_tag = {}, 0                   -- tag -> ctx, until backward has used it or its node is gone

local Context = {}
Context.__index = Context

--- 'file:line' of a script's function, for messages.
local function place(fn)
  local info = debug.getinfo(fn, 'S')
  return ('%s:%d'):format(info.short_src, info.linedefined)
end

--- Keeps values for backward: tensors (by reference to their values, without history) and anything else.
function Context:save(...)
  local list = { n = select('#', ...), ... }
  for i = 1, list.n do
    local v = list[i]
    if T.is_like(v) then
      -- A reference of our own: the caller's handle may end with a scope before backward comes.
      list[i] = handle.outside(methods.detach, v)
    end
  end
  self._saved = list
end

--- Notes how often each saved tensor was changed so far: a later change would make backward's values wrong.
local function note_versions(ctx)
  ctx._versions = {}
  for i = 1, ctx._saved and ctx._saved.n or 0 do
    local v = ctx._saved[i]
    if T.is_tensor(v) then ctx._versions[i] = C.z3_tensor_version(v.h) end
  end
end

--- What save kept, in the same order.
-- @raise STALE when a saved tensor was changed in place since
function Context:saved()
  local list = self._saved
  if not list then
    err.throw('SCRIPT', ('%s: nothing was saved for backward, or it was used already'):format(self.name))
  end
  for i, version in pairs(self._versions or {}) do
    if C.z3_tensor_version(list[i].h) ~= version then
      err.throw('STALE', ('%s: saved tensor %d was changed in place after forward: clone it before changing it'):format(
        self.name, i))
    end
  end
  return unpack(list, 1, list.n)
end

local function drop(ctx)
  for i = 1, ctx._saved and ctx._saved.n or 0 do
    local v = ctx._saved[i]
    if T.is_tensor(v) then v:free() end
  end
  ctx._saved = nil
end

--- Forgets the contexts of nodes that the library freed without backward.
local function sweep()
  local tags = ffi.new('int64_t[64]')
  repeat
    local n = C.z3_script_dropped(tags, 64)
    for i = 0, n - 1 do
      local tag = tonumber(tags[i])
      local ctx = nodes[tag]
      if ctx then nodes[tag] = nil; drop(ctx) end
    end
  until n < 64
end

--- How many operations wait for a backward (tests look at it).
function M.pending()
  sweep()
  local n = 0
  for _ in pairs(nodes) do n = n + 1 end
  return n
end

--- Results without history: one that forward merely passed on would bring its own.
local function plain_outputs(spec, outs, n)
  if n == 0 then err.throw('SCRIPT', ('%s: forward (%s) returned nothing'):format(spec.name, place(spec.forward))) end
  for i = 1, n do
    if not T.is_like(outs[i]) then
      err.throw('SCRIPT', ('%s: forward (%s) returned %s as result %d, wants tensors'):format(spec.name,
        place(spec.forward), type(outs[i]), i))
    end
    outs[i] = methods.detach(outs[i])
  end
end

local function record(ctx, inputs, outs, n_out)
  sweep()
  note_versions(ctx)
  last_tag = last_tag + 1
  local n_in = #inputs
  local h_in, h_out = ffi.new('z3_tensor *[?]', n_in), ffi.new('z3_tensor *[?]', n_out)
  for i, x in ipairs(inputs) do h_in[i - 1] = T.handle(x) end
  ctx.out = {}
  for j = 1, n_out do
    h_out[j - 1] = outs[j].h
    ctx.out[j] = { shape = outs[j].shape, dtype = outs[j].dtype, device = outs[j].device }
  end
  nodes[last_tag], ctx.inputs = ctx, inputs       -- kept from the collector while their handles are in use
  local rc = C.z3_script_record(h_in, n_in, h_out, n_out, last_tag)
  ctx.inputs = nil
  if rc ~= 0 then nodes[last_tag] = nil end
  check(rc, ctx.name)
end

local function run_forward(spec, ...)
  local ctx = setmetatable({ name = spec.name, backward = spec.backward, needs_grad = {}, where = {}, shapes = {} },
                           Context)
  local inputs, wanted = {}, false
  for i = 1, select('#', ...) do
    local x = (select(i, ...))
    if T.is_like(x) then
      inputs[#inputs + 1] = x
      local h = T.handle(x)
      ctx.needs_grad[i] = C.z3_requires_grad(h)
      ctx.where[#inputs], ctx.shapes[#inputs] = i, T.shape_of(h)
      wanted = wanted or ctx.needs_grad[i]
    else
      ctx.needs_grad[i] = false
    end
  end
  local outs = { M.no_grad(spec.forward, ctx, ...) }
  local n = #outs
  plain_outputs(spec, outs, n)
  if wanted and C.z3_grad_enabled() then record(ctx, inputs, outs, n) else drop(ctx) end
  return unpack(outs, 1, n)
end

--- A differentiable operation written in Lua.
--   local square = z3.op { name = 'square',
--     forward  = function(ctx, x) ctx:save(x); return x * x end,
--     backward = function(ctx, grad) local x = ctx:saved(); return grad * x * 2 end }
-- forward gets ctx and the call's arguments (tensors and anything else) and returns tensors; backward gets ctx and the
-- gradient of each result and returns one gradient (or nil) for each argument, in order. Both run unrecorded.
-- ctx:save, ctx:saved, ctx.needs_grad[i].
function M.op(spec)
  local o = opts.read(spec, { name = opts.string, forward = opts.func, backward = opts.func }, 'z3.op')
  err.require_arg(o.forward and o.backward, 'z3.op: wants forward and backward')
  o.name = o.name or 'op'
  return function(...) return run_forward(o, ...) end
end

-- ---- backward ------------------------------------------------------------------------------------

--- Gradients of the results of the node that backward stopped at; zeros where none arrived.
local function incoming(ctx)
  local grads = {}
  for j, out in ipairs(ctx.out) do
    check(C.z3_backward_script_grad(j - 1, FOUND), ctx.name)
    grads[j] = FOUND[0] ~= nil and T.wrap(FOUND[0])
      or T.functions.zeros(out.shape, { dtype = out.dtype, device = out.device })
  end
  return grads
end

local function check_gradient(ctx, i, g)
  if g == nil then return end
  if not T.is_like(g) then
    err.throw('SCRIPT', ('%s: backward (%s) returned %s for argument %d, wants a tensor or nil'):format(ctx.name,
      place(ctx.backward), type(g), ctx.where[i]))
  end
  if not T.same_shape(g.shape, ctx.shapes[i]) then
    err.throw('SHAPE', ('%s: backward (%s) returned a gradient of shape %s for argument %d of shape %s'):format(
      ctx.name, place(ctx.backward), T.shape_text(g.shape), ctx.where[i], T.shape_text(ctx.shapes[i])))
  end
end

--- Computes one script node's gradients and resumes; returns the library's next status.
local function run_node()
  local tag_out = ffi.new 'int64_t[1]'
  check(C.z3_backward_script_tag(tag_out), 'backward')
  local tag = tonumber(tag_out[0])
  local ctx = nodes[tag]
  if not ctx then err.throw('BUG', ('backward: no script operation has the number %d'):format(tag)) end
  nodes[tag] = nil
  local results = { M.no_grad(ctx.backward, ctx, unpack(incoming(ctx))) }
  local n = #ctx.where
  local array = ffi.new('z3_tensor *[?]', math.max(1, n))
  for i = 1, n do
    local g = results[ctx.where[i]]
    check_gradient(ctx, i, g)
    if g ~= nil then array[i - 1] = T.handle(g) end
  end
  local rc = C.z3_backward_resume(array, n)
  drop(ctx)
  return rc
end

--- Dead tensors that wait for the collector count against the limit; the library can't call it in mid-backward.
local function make_room(h)
  local stats = ffi.new 'z3_memory_stats'
  if C.z3_memory_stats_get(C.z3_tensor_device(h), stats) ~= 0 then return end
  local limit = tonumber(stats.limit)
  if limit > 0 and handle.live_bytes() > CROWDED * limit then handle.collect() end
end

--- Computes the gradients of all leaves that t depends on; they accumulate in .grad.
-- @param[opt] grad  gradient of t itself; needed unless t has one element
-- @raise STALE: a second backward through the same operations, or a saved tensor that was changed in place;
--   ARG: t has no history
function methods.backward(t, grad)
  make_room(T.handle(t))
  local rc = C.z3_backward(T.handle(t), grad ~= nil and T.handle(grad, 'backward') or nil)
  while rc == SCRIPT do
    local ok, next_rc = pcall(handle.scope, run_node)
    if not ok then
      C.z3_backward_abort()
      error(next_rc, 0)
    end
    rc = next_rc
  end
  check(rc)
end

return M
