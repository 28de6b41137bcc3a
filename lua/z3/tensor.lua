--- tensor.lua -- the Tensor with all its methods. The parts: tensor_core (running operations, fields), tensor_math
-- (elementwise), tensor_shape (views), tensor_reduce (sums, products), tensor_index (picking, writing), tensor_create,
-- tensor_host (values as Lua data, printing), autograd; tensor_search and einsum come when first used.
local handle = require 'z3.handle'
local T      = require 'z3.tensor_core'

for _, part in ipairs { 'z3.tensor_math', 'z3.tensor_shape', 'z3.tensor_reduce', 'z3.tensor_index', 'z3.tensor_create',
                        'z3.tensor_host', 'z3.autograd' } do
  require(part)
end

--- Methods whose files are rarely needed: the first call loads them and puts the real one in place.
for name, file in pairs { sort = 'z3.tensor_search', argsort = 'z3.tensor_search', topk = 'z3.tensor_search',
                          multinomial = 'z3.tensor_search', einsum = 'z3.einsum' } do
  T.methods[name] = function(...)
    require(file)
    return T.methods[name](...)
  end
end

for name, fn in pairs(T.operators) do handle.meta[name] = fn end
T.Tensor = handle.seal()

return T
