--- sched/init.lua -- z3.sched: learning-rate schedules, pure functions from a step (1, 2, ...) to a factor on the rate.
-- curves.lua: the library's own; transformers.lua: Hugging Face's; deepspeed.lua: those that a config names.
local curves = require 'z3.sched.curves'

local M = {}
for _, name in ipairs { 'constant', 'linear', 'cosine', 'cosine_with_restarts', 'polynomial', 'inverse_sqrt', 'wsd',
  'one_cycle' } do
  M[name] = curves[name]
end

--- Hugging Face's get_scheduler: z3.sched.transformers('cosine', { num_warmup_steps=, num_training_steps=, ... }).
M.transformers = require('z3.sched.transformers').new

--- DeepSpeed's schedules as a config's "scheduler" section gives them: (type, params, optimizer's rate).
M.deepspeed = require('z3.sched.deepspeed').new

return M
