-- sizes.lua -- the check that layers make of the sizes they are given.
local err = require 'z3.error'

local M = {}

--- check('Linear', 'in', 8, 'out', 32): whole numbers >= 0, else ARG naming layer, argument and value.
function M.check(layer, ...)
  for i = 1, select('#', ...), 2 do
    local name, n = select(i, ...)
    if type(n) ~= 'number' or n < 0 or n % 1 ~= 0 then
      err.throw('ARG', ('nn.%s: %s is %s, wants a whole number >= 0'):format(layer, name, tostring(n)))
    end
  end
end

return M
