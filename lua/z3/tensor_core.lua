--- tensor_core.lua -- the Tensor: how operations are run, and what its fields say.
-- A tensor is a native handle `t.h` with methods; anything else with an `.h` (a parameter) works in its place.
-- The methods come from tensor_*.lua, each of which adds to M.methods; functions in z3 are the same functions.
--
-- Operations run through one scratch z3_attr and one pair of arrays. Nothing may run between filling them and the
-- call: resolve inputs first (M.ready), then M.attr(), then M.apply1/2/3.
local ffi    = require 'ffi'
local err    = require 'z3.error'
local check  = require 'z3.check'
local handle = require 'z3.handle'
local nearest = require 'z3.nearest'
local C      = require('z3.ffi').C

local M = {}

local IN    = ffi.new('z3_tensor *[8]')
local OUT   = ffi.new('z3_tensor *[2]')
local ATTR  = ffi.new('z3_attr')
local ATTR_BYTES = ffi.sizeof(ATTR)
local filled = false                            -- ATTR holds attributes for the next call
local SHAPE = ffi.new('int64_t[?]', C.Z3_MAX_DIMS)
local FOUND = ffi.new('z3_tensor *[1]')
local OOM   = C.Z3E_OOM
local is_tensor = handle.is_tensor

--- Methods of tensors: name -> function(t, ...). Filled by the files below.
M.methods = {}
--- Functions of z3 that are no methods: name -> function. (Every method is a function of z3 too.)
M.functions = {}
--- Operator metamethods (__add, ...), for classes that act as tensors.
M.operators = {}

M.is_tensor = is_tensor

-- ---- types and devices ---------------------------------------------------------------------------

local DTYPE = {}                                -- name -> number
local DTYPE_NAME = {}                           -- number -> name
for n = 0, C.Z3T_COUNT - 1 do
  local name = ffi.string(C.z3_dtype_name(n))
  DTYPE[name], DTYPE_NAME[n] = n, name
end
M.dtypes = DTYPE

local DEVICE_NAME = {}
for n = 0, C.Z3D_COUNT - 1 do DEVICE_NAME[n] = ffi.string(C.z3_device_name(n)) end

--- The number of a dtype's name. Throws ARG with the nearest name.
function M.dtype_number(name, what)
  local n = DTYPE[name]
  if n == nil then
    local names = nearest.keys(DTYPE)
    err.throw('ARG', ('%s: dtype is %s%s'):format(what, tostring(name), nearest.hint(tostring(name), names)))
  end
  return n
end

--- The name of a dtype's number.
function M.dtype_name(n) return DTYPE_NAME[n] end

--- The number of a device's name. Throws ARG.
function M.device_number(name, what)
  for n = 0, C.Z3D_COUNT - 1 do if DEVICE_NAME[n] == name then return n end end
  local known = {}
  for n = 0, C.Z3D_COUNT - 1 do known[n + 1] = DEVICE_NAME[n] end
  err.throw('ARG', ('%s: device is %s%s'):format(what, tostring(name), nearest.hint(tostring(name), known)))
end

local host = package.loaded['z3.host']
local wanted = type(host) == 'table' and host.device
local default_device = wanted and M.device_number(wanted, 'z3lua --device') or C.Z3D_CPU

--- The device (a number) on which tensors are made when none is named.
function M.default_device() return default_device end

--- Chooses it by name.
function M.set_default_device(name) default_device = M.device_number(name, 'device') end

-- ---- handles -------------------------------------------------------------------------------------

--- Is x a table that acts as a tensor? Modules have fields of all names, so they are told apart first.
local function acts_as_tensor(x)
  if type(x) ~= 'table' then return false end
  local meta = getmetatable(x)
  if type(meta) == 'table' and meta.z3_module then return false end
  return x.h ~= nil or x.materialise ~= nil
end

local function foreign_handle(x, what)
  if acts_as_tensor(x) then
    if x.h == nil then x:materialise() end
    local h = x.h
    if h ~= nil then return is_tensor(h) and h.h or h end
  end
  local meta = type(x) == 'table' and getmetatable(x)
  local shown = type(meta) == 'table' and meta.z3_module and 'a module' or type(x)
  err.throw('ARG', ('%swants a tensor, got %s'):format(what and what .. ': ' or '', shown))
end

--- The native handle of a tensor or of anything with an `.h` (which gets values first when it has none).
-- @raise STALE when it was freed, ARG when x is no tensor
local function handle_of(x, what)
  if is_tensor(x) then
    local h = x.h
    if h == nil then handle.dead(x, what) end
    return h
  end
  return foreign_handle(x, what)
end
M.handle = handle_of

--- Is x usable as a tensor: a tensor, or a table with `.h` or materialise()?
function M.is_like(x) return is_tensor(x) or acts_as_tensor(x) end

--- Throws unless x can be an input now; gives a parameter its values. Returns x.
function M.ready(x, what)
  if not is_tensor(x) or x.h == nil then handle_of(x, what) end
  return x
end

--- A tensor object that owns the new reference h. shared: a view, whose bytes count elsewhere.
M.wrap = handle.own

-- ---- running operations --------------------------------------------------------------------------

--- Out of memory may only mean that dead tensors weren't collected yet: collect, then try once more. The inputs come
-- along as Lua objects, because the collector must not take them for dead.
local function again(rc, op, array, n, attr, ...)
  if rc == OOM then
    handle.collect()
    rc = C.z3_apply(op, array, n, attr, OUT)
  end
  check(rc)
  return ...
end

--- The scratch attributes, all zero; the next operation takes them.
function M.attr()
  ffi.fill(ATTR, ATTR_BYTES)
  filled = true
  return ATTR
end

--- The attributes for a call that begins: none unless M.attr was called for it.
local function take_attr()
  if not filled then return nil end
  filled = false
  return ATTR
end

-- A handle says nothing to the collector, so none is held over code that may collect: each function resolves its
-- inputs (which may give a parameter its values), and only then fills IN, where nothing runs until the call.

--- Runs an operation with one input and the scratch attributes. view: the result shares its input's bytes.
function M.apply1(op, a, view)
  local attr = take_attr()
  IN[0] = handle_of(a)
  local rc = C.z3_apply(op, IN, 1, attr, OUT)
  if rc ~= 0 then again(rc, op, IN, 1, attr, a) end
  return handle.own(OUT[0], view)
end

--- The same with two inputs.
function M.apply2(op, a, b)
  local attr = take_attr()
  if not (is_tensor(a) and is_tensor(b)) then handle_of(a); handle_of(b) end
  IN[0], IN[1] = handle_of(a), handle_of(b)
  local rc = C.z3_apply(op, IN, 2, attr, OUT)
  if rc ~= 0 then again(rc, op, IN, 2, attr, a, b) end
  return handle.own(OUT[0])
end

--- The same with three inputs; b and c may be nil where the operation allows it.
function M.apply3(op, a, b, c)
  local attr = take_attr()
  handle_of(a)
  if b ~= nil then handle_of(b) end
  if c ~= nil then handle_of(c) end
  if b ~= nil then IN[1] = handle_of(b) else IN[1] = nil end
  if c ~= nil then IN[2] = handle_of(c) else IN[2] = nil end
  IN[0] = handle_of(a)
  local rc = C.z3_apply(op, IN, 3, attr, OUT)
  if rc ~= 0 then again(rc, op, IN, 3, attr, a, b, c) end
  return handle.own(OUT[0])
end

--- The general form: any number of inputs, any attributes, all results.
-- @int op       Z3OP_...
-- @tab inputs   sequence of tensors; false where an optional one is missing
-- @func[opt] fill  function(attr) sets attributes
-- @int[opt] n_out  results that the operation has (1)
-- @return the results
function M.apply(op, inputs, fill, n_out)
  local n = #inputs
  for i = 1, n do if inputs[i] then M.ready(inputs[i]) end end
  local attr = M.attr()
  if fill then fill(attr) end
  filled = false
  local array = n <= 8 and IN or ffi.new('z3_tensor *[?]', n)
  for i = 1, n do
    if inputs[i] then array[i - 1] = handle_of(inputs[i]) else array[i - 1] = nil end
  end
  local rc = C.z3_apply(op, array, n, attr, OUT)
  if rc ~= 0 then again(rc, op, array, n, attr, inputs) end
  local first = OUT[0]
  if n_out ~= 2 then return handle.own(first) end
  local second = OUT[1]
  return handle.own(first), handle.own(second)
end

-- ---- shapes --------------------------------------------------------------------------------------

--- Sizes of a native handle as a table of numbers.
function M.shape_of(h)
  local shape = {}
  for i = 0, C.z3_tensor_ndim(h) - 1 do shape[i + 1] = tonumber(C.z3_tensor_dim(h, i)) end
  return shape
end

--- Are two shape tables equal?
function M.same_shape(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do if a[i] ~= b[i] then return false end end
  return true
end

--- '(2,3)'.
function M.shape_text(shape)
  local sizes = {}
  for i, n in ipairs(shape) do sizes[i] = ('%.0f'):format(n) end
  return '(' .. table.concat(sizes, ',') .. (#shape == 1 and ',)' or ')')
end

--- The dtype (a number) of what two dtypes are put together in: as operators promote.
function M.promoted(a, b)
  if a == b then return a end
  local float_a, float_b = a < C.Z3T_I32, b < C.Z3T_I32
  if float_a and float_b then return C.Z3T_F32 end
  if float_a ~= float_b then return float_a and a or b end
  if a == C.Z3T_U8 or b == C.Z3T_U8 then return a == C.Z3T_U8 and b or a end
  return C.Z3T_I64
end

--- A dim as 0-based number from one that may count from the end. Throws ARG.
function M.dim(d, ndim, what)
  if type(d) ~= 'number' or d % 1 ~= 0 or d < -ndim or d >= ndim then
    if not (ndim == 0 and (d == 0 or d == -1)) then
      err.throw('ARG', ('%s: dim is %s, wants %d to %d for a tensor of %d dims'):format(what, tostring(d), -ndim,
        ndim - 1, ndim))
    end
  end
  return d < 0 and d + math.max(ndim, 1) or d
end

--- A new tensor with undefined contents, outside of any tape.
-- @int dtype     number
-- @int device    number
-- @tab shape     sizes
-- @int[opt] category  Z3M_...
function M.new(dtype, device, shape, category, what)
  local n = #shape
  if n > C.Z3_MAX_DIMS then
    err.throw('ARG', ('%s: %d dims, at most %d are possible'):format(what or 'tensor', n, C.Z3_MAX_DIMS))
  end
  for i = 1, n do SHAPE[i - 1] = shape[i] end
  category = category or C.Z3M_OTHER
  local rc = C.z3_tensor_new(device, dtype, n, SHAPE, category, FOUND)
  if rc == OOM then
    handle.collect()
    rc = C.z3_tensor_new(device, dtype, n, SHAPE, category, FOUND)
  end
  check(rc, what)
  return handle.own(FOUND[0])
end

--- An independent copy without history, in another dtype when one is named.
function M.copy_of(x, dtype)
  local h = handle_of(x)
  local number = dtype and DTYPE[dtype] or C.z3_tensor_dtype(h)
  if C.z3_tensor_dtype(h) >= C.Z3T_I32 then number = C.z3_tensor_dtype(h) end
  local out = M.new(number, C.z3_tensor_device(h), M.shape_of(h))
  check(C.z3_tensor_copy(out.h, handle_of(x)))
  return out
end

-- ---- fields --------------------------------------------------------------------------------------

local fields = {}
M.fields = fields

function fields.shape(t) return M.shape_of(handle_of(t)) end
function fields.ndim(t) return C.z3_tensor_ndim(handle_of(t)) end
function fields.dtype(t) return DTYPE_NAME[C.z3_tensor_dtype(handle_of(t))] end
function fields.device(t) return DEVICE_NAME[C.z3_tensor_device(handle_of(t))] end

local methods = M.methods

--- t.key: a method, a field, or t[i] = t:select(0, i). Classes that act as tensors use it for what they lack.
function M.index(t, key)
  local m = methods[key]
  if m ~= nil then return m end
  if type(key) == 'number' then return methods.select(t, 0, key) end
  local field = fields[key]
  if field then return field(t) end
  return nil
end

local setters = {}
M.setters = setters

--- t[i] = number or tensor writes in place; t.requires_grad and t.grad can be set. Anything else is an error.
function M.newindex(t, key, value)
  if type(key) == 'number' then
    local row = methods.select(t, 0, key)
    if type(value) == 'number' then methods.fill_(row, value) else methods.copy_(row, value) end
    methods.free(row)
    return
  end
  local set = setters[key]
  if not set then err.throw('ARG', ('a tensor has no field "%s" to set'):format(tostring(key))) end
  set(t, value)
end

-- ---- the methods that everything needs -----------------------------------------------------------

--- Number of elements.
function methods.numel(t) return tonumber(C.z3_tensor_numel(handle_of(t))) end

--- Frees the tensor now instead of some time after it became unreachable; twice is harmless. What backward needs and
-- views of it live on.
function methods.free(t)
  if is_tensor(t) then handle.free(t) else err.throw('ARG', 'free: a parameter belongs to its module') end
end

local meta = handle.meta
meta.__index = M.index
meta.__newindex = M.newindex
function meta.__len(t)
  local h = handle_of(t)
  if C.z3_tensor_ndim(h) == 0 then err.throw('SHAPE', '#t: the tensor has no dims') end
  return tonumber(C.z3_tensor_dim(h, 0))
end

return M
