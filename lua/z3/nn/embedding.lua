-- embedding.lua -- Embedding: rows of a table by their numbers.
local F         = require 'z3.functional'
local class     = require('z3.nn.class').class
local parameter = require 'z3.nn.parameter'
local opts      = require 'z3.opts'
local sizes     = require 'z3.nn.sizes'

--- Embedding(count, width [, { init =, dtype = }]): ids (...) i32 or i64 -> (..., width). Ids count from 0.
-- First values are PyTorch's: normal with std 1.
local Embedding = class 'Embedding'
Embedding.frees = false

function Embedding:init(count, width, o)
  sizes.check('Embedding', 'count', count, 'width', width)
  o = opts.read(o, { init = opts.any, dtype = 'f32' }, 'nn.Embedding')
  self.count, self.width = count, width
  self.weight = parameter.new({ count, width }, { init = o.init or 'normal', dtype = o.dtype })
end

function Embedding:forward(ids) return F.embedding(ids, self.weight) end

function Embedding:describe() return ('(%d,%d)'):format(self.count, self.width) end

return Embedding
