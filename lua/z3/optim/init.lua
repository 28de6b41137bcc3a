--- optim/init.lua -- z3.optim: option objects that z3.initialize takes.
-- rules.lua: the built-in ones as data; builtin.lua: their fused update; custom.lua: one's own in Lua; section.lua:
-- from a DeepSpeed config.
local builtin = require 'z3.optim.builtin'

local M = {}

--- AdamW: decay apart from the gradient. z3.optim.adamw{ lr=1e-3, betas={0.9,0.999}, eps=1e-8, weight_decay=0.01 }
function M.adamw(o) return builtin.new('adamw', o) end

--- Adam: weight_decay is L2, added to the gradient. z3.optim.adam{ lr=1e-3, betas=, eps=1e-8, weight_decay=0 }
function M.adam(o) return builtin.new('adam', o) end

--- SGD. z3.optim.sgd{ lr=1e-3, momentum=0, nesterov=false, weight_decay=0 }
function M.sgd(o) return builtin.new('sgd', o) end

--- Lion. z3.optim.lion{ lr=1e-4, betas={0.9,0.999}, weight_decay=0 }
function M.lion(o) return builtin.new('lion', o) end

--- One's own in Lua: z3.optim.custom{ name=, state=, defaults=, update=function(p, g, s, o) end, whole= }
M.custom = require('z3.optim.custom').new

return M
