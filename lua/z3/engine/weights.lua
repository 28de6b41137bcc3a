--- weights.lua -- what the engine keeps for each parameter: f32 master, working values, gradient, optimizer state.
-- Legend: S = elements of the span updated; with one process the whole parameter, later this rank's shard.
-- An f32 parameter is its own master. A 16-bit one has an f32 master beside it, and the update writes both.
local err    = require 'z3.error'
local check  = require 'z3.check'
local handle = require 'z3.handle'
local walk   = require 'z3.nn.walk'
local T      = require 'z3.tensor'
local C      = require('z3.ffi').C

local M = {}

local F32 = C.Z3T_F32

local function borrowed(h) return { h = h } end

-- A tensor of the parameter's shape that belongs to the engine: no scope frees it.
local function make(slot, dtype, category)
  return handle.outside(T.new, dtype, slot.device, slot.p.shape, category, slot.name)
end

-- The working values of a parameter that computes in 16 bits, rounded from its master.
local function split_master(slot, dtype)
  local p = slot.p
  slot.master = make(slot, F32, C.Z3M_OPTIMIZER)
  if rawget(p, 'h') ~= nil then check(C.z3_tensor_copy(slot.master.h, p.h), slot.name)
  else p:fill_initial(slot.master.h, 0) end
  slot.weight16 = make(slot, T.dtypes[dtype], C.Z3M_PARAM_SHARD)
  check(C.z3_tensor_copy(slot.weight16.h, slot.master.h), slot.name)
  return slot.weight16
end

-- An f32 parameter: its own storage, as a tensor object that shares it.
local function whole_f32(slot)
  slot.p:materialise 'f32'
  C.z3_tensor_retain(slot.p.h)
  slot.master = handle.outside(T.wrap, slot.p.h, true)
  return slot.master
end

--- Gives every parameter of engine.model values and hooks, and engine.slots one entry each, in the model's order.
-- @tab engine         hooks ask it for gradients
-- @string[opt] dtype  'bf16': the dtype that parameters compute in; nil: each in its own
function M.build(engine, dtype)
  local slots = engine.slots
  for _, e in ipairs(walk.collect(engine.model).parameters) do
    local p = e.parameter
    if p._hooks then
      err.throw('ARG', ('%s belongs to another engine: close that one first'):format(e.path))
    end
    local slot = { p = p, name = e.path, device = T.default_device(), trainable = false, state = {} }
    local compute = dtype or p.dtype
    local values = compute == 'f32' and whole_f32(slot) or split_master(slot, compute)
    p:attach {
      values = borrowed(values.h), defer = true,
      full = function() return T.copy_of(slot.master) end,
      load = function(_, t) M.load(slot, t) end,
      grad = function() return engine:parameter_gradient(slot) end,
    }
    slot.h = p.h
    slots[#slots + 1] = slot
  end
end

--- New values for the whole parameter: master and working values agree afterwards.
function M.load(slot, t)
  check(C.z3_tensor_copy(slot.master.h, T.handle(t)), slot.name)
  if slot.weight16 then check(C.z3_tensor_copy(slot.weight16.h, slot.master.h), slot.name) end
end

local function start_training(slot, optimizer)
  slot.grad = make(slot, F32, C.Z3M_GRAD)
  for _, name in ipairs(optimizer:state_names(slot.options)) do
    if not slot.state[name] then
      slot.state[name] = make(slot, F32, C.Z3M_OPTIMIZER)
      slot.state[name]:fill_(0)
    end
  end
  check(C.z3_requires_grad_set(slot.h, true), slot.name)
  check(C.z3_grad_buffer(slot.h, slot.grad.h), slot.name)
  C.z3_grad_clear(slot.h)
  local native = { master = slot.master.h, grad = slot.grad.h, state = {}, tensors = slot }
  native.weight16 = slot.weight16 and slot.weight16.h
  for name, t in pairs(slot.state) do native.state[name] = t.h end
  slot.native, slot.trainable = native, true
end

-- Its state stays: training may go on later.
local function stop_training(slot)
  check(C.z3_grad_set(slot.h, nil), slot.name)
  check(C.z3_requires_grad_set(slot.h, false), slot.name)
  slot.grad:free()
  slot.grad, slot.native, slot.trainable = nil, nil, false
end

--- Lets changes of requires_grad act: a parameter that trains has a gradient buffer and optimizer state, others none.
-- @param optimizer  nil: nothing trains
function M.sync(slots, optimizer)
  for _, slot in ipairs(slots) do
    local wanted = optimizer ~= nil and slot.p.requires_grad
    if wanted and not slot.trainable then start_training(slot, optimizer)
    elseif slot.trainable and not wanted then stop_training(slot)
    elseif not wanted and not slot.settled then check(C.z3_requires_grad_set(slot.h, false), slot.name) end
    slot.settled = true
  end
end

--- Forgets the gradients of a window.
function M.clear(slots)
  for _, slot in ipairs(slots) do
    if slot.trainable then C.z3_grad_clear(slot.h) end
  end
end

local function give_back(slots, release)
  for _, slot in ipairs(slots) do
    if slot.trainable then stop_training(slot) end
    for _, t in pairs(slot.state) do t:free() end
    slot.state = {}
    slot.p:detach_engine(release)
    if slot.weight16 then slot.weight16:free() end
    slot.master:free()
    slot.h = nil
  end
end

--- Gives everything back; the parameters are released for good.
function M.free(slots) give_back(slots, true) end

--- Gives back what an initialize that failed had taken; the parameters keep their values.
function M.undo(slots) give_back(slots, false) end

return M
