-- dropout.lua -- Dropout: in training, zeroes each element with probability p and scales the rest by 1 / (1 - p).
local F     = require 'z3.functional'
local err   = require 'z3.error'
local class = require('z3.nn.class').class

--- Dropout([p = 0.5]).
local Dropout = class 'Dropout'
Dropout.frees = false

function Dropout:init(p)
  p = p or 0.5
  local ok = type(p) == 'number' and p >= 0 and p <= 1
  err.require_arg(ok, 'nn.Dropout: p is %s, wants a number from 0 to 1', tostring(p))
  self.p = p
end

function Dropout:forward(x)
  if not self.training or self.p == 0 then return x end
  return F.dropout(x, self.p)
end

function Dropout:describe() return ('(p %g)'):format(self.p) end

return Dropout
