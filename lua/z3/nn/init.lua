-- init.lua -- z3.nn: classes, parameters, layers. The files, in reading order: class, walk, call, module, parameter,
-- initializers, state, show, checkpoint; then the layers.
local class      = require 'z3.nn.class'
local parameter  = require 'z3.nn.parameter'
local linear     = require 'z3.nn.linear'
local norm       = require 'z3.nn.norm'
local activation = require 'z3.nn.activation'
local mlp        = require 'z3.nn.mlp'
local container  = require 'z3.nn.container'

return {
  class               = class.class,
  Module              = require 'z3.nn.module',
  Parameter           = parameter.new,
  checkpoint          = require('z3.nn.checkpoint').run,
  functional          = require 'z3.functional',

  Linear              = linear.Linear,
  Conv1D              = linear.Conv1D,
  Embedding           = require 'z3.nn.embedding',
  LayerNorm           = norm.LayerNorm,
  RMSNorm             = norm.RMSNorm,
  Dropout             = require 'z3.nn.dropout',
  GELU                = activation.GELU,
  SiLU                = activation.SiLU,
  ReLU                = activation.ReLU,
  MLP                 = mlp.MLP,
  SwiGLU              = mlp.SwiGLU,
  CausalSelfAttention = require 'z3.nn.attention',
  ModuleList          = container.ModuleList,
  Sequential          = container.Sequential,
}
