-- mlp.lua -- the two feed-forward blocks: MLP (GPT-2's names) and SwiGLU (Llama's names).
-- Source of SwiGLU: Shazeer 2020 (arXiv:2002.05202).
local F          = require 'z3.functional'
local err        = require 'z3.error'
local opts       = require 'z3.opts'
local class      = require('z3.nn.class').class
local linear     = require 'z3.nn.linear'
local activation = require 'z3.nn.activation'
local Dropout    = require 'z3.nn.dropout'
local sizes      = require 'z3.nn.sizes'

local M = {}

-- MLP(n, hidden [, o]) and MLP{ n_embd =, n_inner =, ... } are the same.
local function read(name, spec, n, hidden, o)
  if type(n) == 'table' then o = n
  else
    local given = { n_embd = n, n_inner = hidden }
    if o ~= nil and type(o) ~= 'table' then
      err.throw('ARG', ('nn.%s: options are %s, wants a table'):format(name, opts.show(o)))
    end
    for k, v in pairs(o or {}) do given[k] = v end
    o = given
  end
  return opts.read(o, spec, 'nn.' .. name)
end

local MLP_OPTIONS = { n_embd = opts.integer, n_inner = opts.integer, activation = 'gelu_tanh', bias = true, dropout = 0,
                      init = opts.any, out_init = opts.any, dtype = 'f32' }

--- MLP(n_embd [, n_inner = 4 n_embd [, { activation = 'gelu_tanh', bias =, dropout =, init =, out_init = }]]), or one
-- table: c_proj(activation(c_fc(x))), both Conv1D.
local MLP = class 'MLP'
MLP.frees = true

function MLP:init(n, hidden, options)
  local o = read('MLP', MLP_OPTIONS, n, hidden, options)
  sizes.check('MLP', 'n_embd', o.n_embd)
  local inner = o.n_inner or 4 * o.n_embd
  self.n_embd, self.n_inner = o.n_embd, inner
  self.c_fc = linear.Conv1D(o.n_embd, inner, { bias = o.bias, init = o.init, dtype = o.dtype })
  self.act = activation.by_name(o.activation, 'nn.MLP')
  self.c_proj = linear.Conv1D(inner, o.n_embd, { bias = o.bias, init = o.out_init or o.init, dtype = o.dtype })
  if o.dropout > 0 then self.drop = Dropout(o.dropout) end
end

function MLP:forward(x)
  local y = self.c_proj(self.act(self.c_fc(x)))
  return self.drop and self.drop(y) or y
end

function MLP:describe() return ('(%d,%d)'):format(self.n_embd, self.n_inner) end

local SWIGLU_OPTIONS = { n_embd = opts.integer, n_inner = opts.integer, bias = false, init = opts.any,
                         out_init = opts.any, dtype = 'f32' }

--- SwiGLU(n_embd, n_inner [, { bias = false, init =, out_init = }]), or one table:
-- down_proj(silu(gate_proj(x)) * up_proj(x)), all Linear.
local SwiGLU = class 'SwiGLU'
SwiGLU.frees = true

function SwiGLU:init(n, hidden, options)
  local o = read('SwiGLU', SWIGLU_OPTIONS, n, hidden, options)
  sizes.check('SwiGLU', 'n_embd', o.n_embd, 'n_inner', o.n_inner)
  self.n_embd, self.n_inner = o.n_embd, o.n_inner
  local into = { bias = o.bias, init = o.init, dtype = o.dtype }
  self.gate_proj = linear.Linear(o.n_embd, o.n_inner, into)
  self.up_proj = linear.Linear(o.n_embd, o.n_inner, into)
  self.down_proj = linear.Linear(o.n_inner, o.n_embd, { bias = o.bias, init = o.out_init or o.init, dtype = o.dtype })
end

function SwiGLU:forward(x) return self.down_proj(F.swiglu(self.gate_proj(x), self.up_proj(x))) end

function SwiGLU:describe() return ('(%d,%d)'):format(self.n_embd, self.n_inner) end

M.MLP, M.SwiGLU = MLP, SwiGLU

return M
