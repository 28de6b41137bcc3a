-- activation.lua -- GELU, SiLU and ReLU as modules, and activations by the names that configurations use.
local F     = require 'z3.functional'
local err   = require 'z3.error'
local class = require('z3.nn.class').class
local hint  = require('z3.nearest').hint

local M = {}

--- GELU([kind]): 'tanh' (GPT-2's approximation) or 'erf' (exact, the default as in PyTorch).
local GELU = class 'GELU'
GELU.frees = false

function GELU:init(kind)
  kind = kind or 'erf'
  err.require_arg(kind == 'tanh' or kind == 'erf', "nn.GELU: kind is %s, wants 'tanh' or 'erf'", tostring(kind))
  self.kind = kind
end

function GELU:forward(x) return F.gelu(x, self.kind) end

function GELU:describe() return '(' .. self.kind .. ')' end

--- SiLU(): x * sigmoid(x).
local SiLU = class 'SiLU'
SiLU.frees = false

function SiLU:forward(x) return F.silu(x) end -- luacheck: ignore self

--- ReLU(): max(x, 0).
local ReLU = class 'ReLU'
ReLU.frees = false

function ReLU:forward(x) return F.relu(x) end -- luacheck: ignore self

local BY_NAME = {
  gelu_tanh = function() return GELU 'tanh' end, gelu_new = function() return GELU 'tanh' end,
  gelu_pytorch_tanh = function() return GELU 'tanh' end,
  gelu = function() return GELU 'erf' end, gelu_erf = function() return GELU 'erf' end,
  silu = function() return SiLU() end, swish = function() return SiLU() end,
  relu = function() return ReLU() end,
}

--- The module of a name as configurations write it: 'gelu_new', 'gelu', 'silu', 'relu', ...
-- @raise ARG with the nearest name
function M.by_name(name, what)
  local make = BY_NAME[name]
  if not make then
    err.throw('ARG', ('%s: no activation "%s"%s'):format(what, tostring(name),
      hint(tostring(name), require('z3.nearest').keys(BY_NAME))))
  end
  return make()
end

M.GELU, M.SiLU, M.ReLU = GELU, SiLU, ReLU

return M
