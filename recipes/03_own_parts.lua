-- 03: everything is a script: an operation, a layer, an optimizer, a schedule and a loop of one's own.
--   z3lua recipes/03_own_parts.lua
local z3 = require 'z3'
local nn, F = z3.nn, z3.nn.functional

local square = z3.op {
  name = 'square',
  forward  = function(ctx, x) ctx:save(x); return x * x end,
  backward = function(ctx, grad) local x = ctx:saved(); return grad * x * 2 end,
}

local SquaredMLP = nn.class 'SquaredMLP'
function SquaredMLP:init(n, hidden) self.up, self.down = nn.Linear(n, hidden), nn.Linear(hidden, n) end
function SquaredMLP:forward(x) return self.down(square(F.relu(self.up(x)))) end

-- Flat f32 tensors: the parameter, its gradient (averaged and clipped), the state named below; o.step and o.lr are
-- this step's.
local signum = z3.optim.custom {
  name = 'signum', state = { 'm' }, defaults = { lr = 1e-2, beta = 0.9 },
  update = function(p, g, s, o)
    s.m:copy_(s.m * o.beta + g * (1 - o.beta))
    p:copy_(p - (s.m:gt(0) - s.m:lt(0)) * o.lr)
  end,
}

z3.manual_seed(3)
local engine = z3.initialize {
  model = SquaredMLP(8, 32), optimizer = signum, schedule = function(step) return 0.99 ^ (step - 1) end,
}
for step = 1, 300 do
  local x = z3.randn { 16, 8 }
  local loss = F.mse_loss(engine:forward(x), x * 0.5)     -- a plain loss: the step's is the mean over micro-batches
  engine:backward(loss)
  local r = engine:step()
  if step % 50 == 0 then z3.print(('step %3d  loss %.5f  rate %.2e'):format(r.step, loss:item(), r.lr)) end
end
