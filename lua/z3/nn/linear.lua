-- linear.lua -- Linear (weight (out, in), as PyTorch) and Conv1D (weight (in, out), as GPT-2's files).
local F         = require 'z3.functional'
local class     = require('z3.nn.class').class
local parameter = require 'z3.nn.parameter'
local opts      = require 'z3.opts'
local sizes     = require 'z3.nn.sizes'

local M = {}

local OPTIONS = { bias = true, init = opts.any, bias_init = opts.any, dtype = 'f32' }

--- Linear(n_in, n_out [, { bias = true, init =, bias_init =, dtype = }]): y = x W^T + b.
-- First values are PyTorch's: uniform in +-1/sqrt(n_in).
local Linear = class 'Linear'
Linear.frees = false

function Linear:init(n_in, n_out, o)
  sizes.check('Linear', 'in', n_in, 'out', n_out)
  o = opts.read(o, OPTIONS, 'nn.Linear')
  local bound = n_in > 0 and 1 / math.sqrt(n_in) or 0
  local init = o.init or { 'kaiming_uniform', a = math.sqrt(5), fan_in = math.max(1, n_in) }
  self.n_in, self.n_out = n_in, n_out
  self.weight = parameter.new({ n_out, n_in }, { init = init, dtype = o.dtype })
  local bias_init = o.bias_init or { 'uniform', low = -bound, high = bound }
  if o.bias then self.bias = parameter.new({ n_out }, { init = bias_init, dtype = o.dtype }) end
end

function Linear:forward(x) return F.linear(x, self.weight, self.bias) end

function Linear:describe() return ('(%d,%d)'):format(self.n_in, self.n_out) end

--- Conv1D(n_in, n_out [, { bias = true, init =, bias_init =, dtype = }]): y = x W + b.
-- First values are GPT-2's: normal with std 0.02, bias 0.
local Conv1D = class 'Conv1D'
Conv1D.frees = false

function Conv1D:init(n_in, n_out, o)
  sizes.check('Conv1D', 'in', n_in, 'out', n_out)
  o = opts.read(o, OPTIONS, 'nn.Conv1D')
  self.n_in, self.n_out = n_in, n_out
  self.weight = parameter.new({ n_in, n_out }, { init = o.init or { 'normal', std = 0.02 }, dtype = o.dtype })
  if o.bias then self.bias = parameter.new({ n_out }, { init = o.bias_init or 'zeros', dtype = o.dtype }) end
end

function Conv1D:forward(x) return F.conv1d(x, self.weight, self.bias) end

function Conv1D:describe() return ('(%d,%d)'):format(self.n_in, self.n_out) end

M.Linear, M.Conv1D = Linear, Conv1D

return M
