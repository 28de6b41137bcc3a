--- window.lua -- one accumulation window: what its micro-batches added up to. The only division of the step's loss and
-- gradient happens here.
-- Legend: a forward gives `loss` (the step's loss is the mean over micro-batches) or `loss_sum, count` (it is the total
-- sum over the total count).
local err = require 'z3.error'
local T   = require 'z3.tensor'
local C   = require('z3.ffi').C

local M = {}

local Window = {}
Window.__index = Window

--- A fresh window.
function M.new()
  return setmetatable({ micro = 0, sum = 0, count = 0, tokens = 0, samples = 0, kind = nil, state = 'ready' }, Window)
end

local function one_element(t) return T.is_tensor(t) and t:numel() == 1 end

local function describe(x)
  if T.is_tensor(x) then return ('a tensor of shape %s'):format(T.shape_text(x.shape)) end
  return x == nil and 'nil' or 'a ' .. type(x)
end

--- Checks what a forward (or the script) gave as loss and count.
-- @return loss tensor, count (a number, or nil for a mean)
-- @raise ARG, SHAPE, DTYPE naming what came
function M.read(who, loss, count)
  if not T.is_tensor(loss) then
    err.throw('ARG', ('%s: the loss is %s; a training forward returns loss, or loss_sum and count'):format(who,
      describe(loss)))
  end
  if loss:numel() ~= 1 then
    err.throw('SHAPE', ('%s: the loss has shape %s, wants one element; was the model called without targets?')
      :format(who, T.shape_text(loss.shape)))
  end
  if C.z3_tensor_dtype(loss.h) >= C.Z3T_I32 then
    err.throw('DTYPE', ('%s: the loss is %s, wants a floating type'):format(who, loss.dtype))
  end
  if count == nil then return loss, nil end
  local n = count
  if one_element(count) then
    -- Without data there is nothing to count: one target stands for them.
    n = C.z3_tensor_device(T.handle(count)) == C.Z3D_NULL and 1 or count:item()
  end
  if type(n) ~= 'number' or not (n >= 0 and n < 2 ^ 53) then
    err.throw('ARG', ('%s: count is %s, wants a number >= 0 or a tensor of one element'):format(who,
      type(n) == 'number' and tostring(n) or describe(n)))
  end
  return loss, n
end

--- The number in a loss; 0 on the device that computes nothing.
function M.value(loss)
  if C.z3_tensor_device(loss.h) == C.Z3D_NULL then return 0 end
  return loss:item()
end

--- Adds one micro-batch.
-- @number value  its loss or loss sum
-- @param count   number, or nil for a mean
-- @raise ARG when it isn't of the kind that the window began with
function Window:add(value, count)
  local kind = count and 'sum' or 'mean'
  if self.kind and self.kind ~= kind then
    err.throw('ARG', 'a window mixes two kinds of loss: one scalar, and a sum with its count; a model returns one kind')
  end
  self.kind = kind
  self.micro = self.micro + 1
  -- A count of 0 says that nothing counted: whatever stands in its sum is no loss.
  if count ~= 0 then self.sum = self.sum + value end
  self.count = self.count + (count or 0)
end

--- What the sums are divided by: the count of targets, or the number of micro-batches.
function Window:denominator() return self.kind == 'mean' and self.micro or self.count end

--- The window's loss; 0 when nothing counted.
function Window:loss()
  local n = self:denominator()
  return n == 0 and 0 or self.sum / n
end

--- What multiplies the accumulated gradient to make it the gradient of loss(); 0 when nothing counted.
function Window:scale()
  local n = self:denominator()
  return n == 0 and 0 or 1 / n
end

return M
