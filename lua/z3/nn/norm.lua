-- norm.lua -- LayerNorm and RMSNorm over the last dim.
-- Sources: Ba et al. 2016; Zhang & Sennrich 2019.
local F         = require 'z3.functional'
local class     = require('z3.nn.class').class
local parameter = require 'z3.nn.parameter'
local opts      = require 'z3.opts'
local sizes     = require 'z3.nn.sizes'

local M = {}

--- LayerNorm(width [, { eps = 1e-5, bias = true, dtype = }]): (x - mean) / sqrt(var + eps) * weight + bias.
local LayerNorm = class 'LayerNorm'
LayerNorm.frees = false

function LayerNorm:init(width, o)
  sizes.check('LayerNorm', 'width', width)
  o = opts.read(o, { eps = 1e-5, bias = true, dtype = 'f32' }, 'nn.LayerNorm')
  self.width, self.eps = width, o.eps
  self.weight = parameter.new({ width }, { init = 'ones', dtype = o.dtype })
  if o.bias then self.bias = parameter.new({ width }, { init = 'zeros', dtype = o.dtype }) end
end

function LayerNorm:forward(x) return F.layer_norm(x, self.weight, self.bias, self.eps) end

function LayerNorm:describe() return ('(%d)'):format(self.width) end

--- RMSNorm(width [, { eps = 1e-6, dtype = }]): x / sqrt(mean(x^2) + eps) * weight.
local RMSNorm = class 'RMSNorm'
RMSNorm.frees = false

function RMSNorm:init(width, o)
  sizes.check('RMSNorm', 'width', width)
  o = opts.read(o, { eps = 1e-6, dtype = 'f32' }, 'nn.RMSNorm')
  self.width, self.eps = width, o.eps
  self.weight = parameter.new({ width }, { init = 'ones', dtype = o.dtype })
end

function RMSNorm:forward(x) return F.rms_norm(x, self.weight, self.eps) end

function RMSNorm:describe() return ('(%d)'):format(self.width) end

M.LayerNorm, M.RMSNorm = LayerNorm, RMSNorm

return M
