--- rules.lua -- the built-in optimizers as data: their options, defaults, state and ranges.
-- Defaults are PyTorch's. Sources: Kingma & Ba 2015 (Adam), Loshchilov & Hutter 2019 (AdamW), Chen et al. 2023 (Lion),
-- Sutskever et al. 2013 (SGD with momentum as PyTorch writes it). The arithmetic is core's z3_update.
local C = require('z3.ffi').C

local function rate(v) return type(v) == 'number' and v >= 0 and v < math.huge, 'a number >= 0' end
local function beta(v) return type(v) == 'number' and v >= 0 and v < 1, 'a number from 0 to below 1' end
local function pair(v)
  return type(v) == 'table' and #v == 2 and beta(v[1]) and beta(v[2]), 'two numbers from 0 to below 1'
end
local function flag(v) return type(v) == 'boolean', 'true or false' end

local M = {}

--- How each option is checked: value -> ok, what it wants.
M.checks = { lr = rate, weight_decay = rate, eps = rate, momentum = rate, betas = pair, nesterov = flag }

local function both() return { 'm', 'v' } end
local function first() return { 'm' } end

--- name -> { kind, defaults, state(options) -> names of the state tensors }
M.rules = {
  adamw = { kind = C.Z3_ADAMW, state = both,
    defaults = { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0.01 } },
  adam = { kind = C.Z3_ADAM, state = both,
    defaults = { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0 } },
  sgd = { kind = C.Z3_SGD, state = function(o) return o.momentum ~= 0 and { 'm' } or {} end,
    defaults = { lr = 1e-3, momentum = 0, nesterov = false, weight_decay = 0 } },
  lion = { kind = C.Z3_LION, state = first,
    defaults = { lr = 1e-4, betas = { 0.9, 0.999 }, weight_decay = 0 } },
}

return M
