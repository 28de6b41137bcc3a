-- parameter.lua -- a parameter: a declaration (shape, init, dtype) until an engine or first use gives it values.
-- It acts as a tensor in every operation and method.
--
-- For whoever builds an engine:
--   p:materialise([dtype])   makes its own storage, with initial values (in f32, then rounded to dtype)
--   p:fill_initial(h, first) writes initial values first, first + 1, ... into a flat f32 native tensor: a shard's
--   p:attach{...}            takes storage that the engine made and hooks that answer for it (see there)
--   p:detach_engine([true])  gives up what attach brought (true: the values too, for good)
-- Values depend on (seed, number of root modules that got values since the seed was set, name, element) only.
local ffi   = require 'ffi'
local err   = require 'z3.error'
local check = require 'z3.check'
local handle = require 'z3.handle'
local opts  = require 'z3.opts'
local C     = require('z3.ffi').C
local T     = require 'z3.tensor'
local rng   = require 'z3.random'
local call  = require 'z3.nn.call'
local walk  = require 'z3.nn.walk'
local init  = require 'z3.nn.initializers'

local FLOATS = { 'f32', 'bf16', 'f16' }
local INIT_PURPOSE = 0x696e6974                         -- separates this stream from dropout's and sampling's

local M = {}
local P = {}                                            -- methods

--- Number of elements of the whole parameter, never of a shard.
function P:numel() return self._numel end

--- Number of dims.
function P:dim() return self.ndim end

-- Seed and ordinal of the root module that p belongs to: fixed when the first of its parameters gets values.
local root_key = setmetatable({}, { __mode = 'k' })

local function key_of(p)
  local root = walk.root_of(p)
  if root == p then
    -- A part put in place after its holder was walked (a new head, say): walk the model that is running.
    local running = call.running_root()
    if running then
      walk.name(running)
      root = walk.root_of(p)
    end
  end
  local rk = root_key[root]
  if not rk then
    rk = { seed = rng.seed(), ordinal = rng.next_root() }
    root_key[root] = rk
  end
  return rng.key(rk.seed, INIT_PURPOSE, rk.ordinal, C.z3_key_name(p.name))
end

-- The parameter owns t from now on; no scope frees it. Operations read p.h.
local function take(p, t)
  rawset(p, '_storage', handle.keep(t))
  rawset(p, 'h', t.h)
  check(C.z3_requires_grad_set(t.h, p.requires_grad), p.name)
end

local function new_storage(p, dtype)
  return T.new(T.dtypes[dtype], T.default_device(), p.shape, C.Z3M_PARAM_SHARD, p.name)
end

--- Writes initial values: elements first, first + 1, ... of the row-major parameter.
-- @param h       native f32 tensor of as many elements as wanted
-- @number first  0-based
function P:fill_initial(h, first)
  local key = key_of(self)
  if self._init.kind ~= 'call' then
    init.fill(h, self._init, self.shape, key, first, self.name)
    return
  end
  -- A function makes the whole parameter; the run asked for is copied out of it.
  local whole = T.functions.zeros(self.shape)
  self._init.fn(whole)
  local n = tonumber(C.z3_tensor_numel(h))
  local part = whole:view(self._numel):narrow(0, first, n):view(T.shape_of(h))
  check(C.z3_tensor_copy(h, part.h), self.name)
  part:free()
  whole:free()
end

--- Gives the parameter storage and initial values, unless it has them.
-- @string[opt] dtype  of the working values; its declared dtype unless given
-- @return itself
-- @raise RELEASED after its engine was closed; OOM
function P:materialise(dtype)
  if rawget(self, 'h') ~= nil then return self end
  if self._dead then
    err.throw('RELEASED', ('%s was released with its engine: build the model again'):format(self.name))
  end
  dtype = dtype or self._dtype
  local t = new_storage(self, 'f32')
  self:fill_initial(t.h, 0)
  if dtype ~= 'f32' then
    local rounded = new_storage(self, dtype)
    check(C.z3_tensor_copy(rounded.h, t.h), self.name)
    t:free()
    t = rounded
  end
  take(self, t)
  return self
end

--- Takes storage that an engine made. Fields of `how`:
--   values   { h = native tensor }: what operations use from now on (in the compute dtype); nil: it has no values
--   full     function(p) -> independent f32 tensor of the whole parameter (from the master)
--   grad     function(p) -> independent f32 tensor of the whole gradient, or nil
--   load     function(p, tensor): the whole parameter gets new values, masters included
--   status   function(p) -> 'released', 'inflight' or 'available'
--   describe function(p) -> what tostring adds after the status, or nil
--   defer    true: requires_grad_ changes the flag only, the engine acts on it at its next step
-- Hooks that are absent fall back to the values themselves.
function P:attach(how)
  local values, own = how.values, rawget(self, '_storage')
  rawset(self, '_hooks', how)
  rawset(self, 'h', nil)
  rawset(self, '_storage', nil)
  if values then
    C.z3_tensor_retain(values.h)
    take(self, handle.own(values.h, true))
  end
  if own then own:free() end                            -- at once: it may be as large as what replaces it
  return self
end

--- Ends what attach began. The parameter keeps its values; release=true gives them up for good.
function P:detach_engine(release_values)
  self._hooks = nil
  if release_values then
    if rawget(self, '_storage') then self._storage:free() end
    rawset(self, 'h', nil)
    self._dead = true
  end
end

--- An independent full copy in f32 (integers keep their type), from the master where there is one. [all ranks]
function P:full()
  local hooks = self._hooks
  if hooks and hooks.full then return hooks.full(self) end
  self:materialise()
  return T.copy_of(self, 'f32')
end

--- The full gradient as an independent f32 tensor, or nil when there is none. [all ranks]
function P:grad()
  local hooks = self._hooks
  if hooks and hooks.grad then return hooks.grad(self) end
  if rawget(self, 'h') == nil then return nil end
  local out = ffi.new('z3_tensor *[1]')
  check(C.z3_grad_get(self.h, out), self.name)
  if out[0] == nil then return nil end
  local g = T.wrap(out[0], true)
  local copy = T.copy_of(g, 'f32')
  g:free()
  return copy
end

--- Drops the gradient, so that the next backward starts from nothing. Without an engine that is the script's job.
function P:zero_grad()
  if rawget(self, 'h') ~= nil then C.z3_grad_clear(self.h) end
  return self
end

--- New values for the whole parameter, converted to its dtype.
-- @raise SHAPE naming the parameter and both shapes
function P:load(t)
  T.ready(t, self.name)
  if not T.same_shape(t.shape, self.shape) then
    err.throw('SHAPE', ('%s is (%s), the tensor to load is (%s)'):format(self.name, table.concat(self.shape, ','),
      table.concat(t.shape, ',')))
  end
  local hooks = self._hooks
  if hooks and hooks.load then hooks.load(self, t); return self end
  local from = T.handle(t, self.name)
  if rawget(self, 'h') == nil then take(self, new_storage(self, self._dtype)) end
  check(C.z3_tensor_copy(self.h, from), self.name)
  return self
end

--- Whether the next step trains it. Under an engine it acts from the next step.
function P:requires_grad_(on)
  if on == nil then on = true end
  rawset(self, 'requires_grad', on and true or false)
  local deferred = self._hooks and self._hooks.defer
  if rawget(self, 'h') ~= nil and not deferred then
    check(C.z3_requires_grad_set(self.h, self.requires_grad), self.name)
  end
  return self
end

--- Declares another dtype for its values; before it has any.
function P:set_dtype(dtype)
  if rawget(self, 'h') ~= nil then
    err.throw('ARG', ('%s has values in %s already: choose the dtype before first use'):format(self.name, self.dtype))
  end
  self._dtype = opts.choice(dtype, FLOATS, self.name, 'dtype')
  return self
end

-- Values that are asked for as fields. Anything else is the tensor's own affair, and needs it to have values.
local FIELDS = {}

function FIELDS.name(p) return walk.name_of(p) or p._given or 'parameter' end

function FIELDS.status(p)
  local hooks = p._hooks
  if hooks and hooks.status then return hooks.status(p) end
  return rawget(p, 'h') ~= nil and 'available' or 'released'
end

function FIELDS.dtype(p)
  local h = rawget(p, 'h')
  return h ~= nil and ffi.string(C.z3_dtype_name(C.z3_tensor_dtype(h))) or p._dtype
end

local PRIVATE = { h = true, _storage = true, _name = true, _given = true, _hooks = true, _dead = true }

local meta = { z3_parameter = true }

function meta.__index(p, key)
  local method = P[key]
  if method ~= nil then return method end
  if PRIVATE[key] then return nil end
  local field = FIELDS[key]
  if field then return field(p) end
  return T.index(p, key)
end

--- 'available', 'released, 24,576 of 49,152 elements on this rank', 'available, frozen'.
function P:status_text()
  local extra = self._hooks and self._hooks.describe and self._hooks.describe(self)
  return self.status .. (extra and ', ' .. extra or '') .. (self.requires_grad and '' or ', frozen')
end

--- 'h.0.attn.c_attn.weight  parameter (128,384) f32  available'.
function meta.__tostring(p)
  return ('%s  parameter (%s) %s  %s'):format(p.name, table.concat(p.shape, ','), p.dtype, p:status_text())
end

for name, fn in pairs(T.operators) do meta[name] = fn end

local OPTIONS = { init = opts.any, dtype = 'f32', name = opts.string, requires_grad = true }
local function read_shape(shape)
  local out, n = {}, 1
  err.require_arg(#shape <= 8, 'nn.Parameter: %d dims, at most 8 are possible', #shape)
  for i, d in ipairs(shape) do
    local ok = type(d) == 'number' and d >= 0 and d % 1 == 0
    err.require_arg(ok, 'nn.Parameter: dim %d of the shape is %s, wants a whole number >= 0', i - 1, tostring(d))
    out[i], n = d, n * d
  end
  return out, n
end

--- Declares a parameter.
-- @tab shape    sizes, or a tensor whose values it starts from
-- @tab[opt] o   init (see initializers.lua; 'zeros' unless given), dtype ('f32'), name (used outside of any module),
--               requires_grad (true)
-- @raise ARG: a bad shape, dtype or init
function M.new(shape, o)
  local from = T.is_tensor(shape) and shape or nil
  o = opts.read(o, OPTIONS, 'nn.Parameter')
  err.require_arg(type(shape) == 'table' or from, 'nn.Parameter: the shape is %s, wants a table of sizes or a tensor',
    tostring(shape))
  local dims, numel = read_shape(from and from.shape or shape)
  opts.choice(o.dtype, FLOATS, 'nn.Parameter', 'dtype')
  local p = setmetatable({
    shape = dims, ndim = #dims, _numel = numel, _dtype = from and from.dtype or o.dtype, _given = o.name,
    _serial = walk.serial(),
    _init = init.read(o.init, o.name or 'nn.Parameter'), requires_grad = o.requires_grad,
  }, meta)
  if from then p:load(from) end
  return p
end

M.is = walk.is_parameter
M.methods = P

return M
