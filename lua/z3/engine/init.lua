--- engine/init.lua -- z3.initialize: model, config, optimizer, schedule and data become an engine that trains.
-- Reading order: weights.lua (what is kept per parameter), batch.lua and window.lua (micro-batches and their sums),
-- accumulate.lua (forward, backward), step.lua (norm, clip, update), rates.lua, report.lua, evaluate.lua,
-- nonfinite.lua.
-- With one process all ZeRO stages are this; shards come in weights.lua and step.lua.
local err        = require 'z3.error'
local opts       = require 'z3.opts'
local config     = require 'z3.config'
local walk       = require 'z3.nn.walk'
local T          = require 'z3.tensor'
local section    = require 'z3.optim.section'
local accumulate = require 'z3.engine.accumulate'
local batch      = require 'z3.engine.batch'
local evaluate   = require 'z3.engine.evaluate'
local rates      = require 'z3.engine.rates'
local report     = require 'z3.engine.report'
local step       = require 'z3.engine.step'
local weights    = require 'z3.engine.weights'
local windows    = require 'z3.engine.window'

local M = {}

local Engine = {}
Engine.__index = Engine

-- ---- training ------------------------------------------------------------------------------------

--- One optimizer step over gradient_accumulation_steps micro-batches, each `model(batch)`. [all ranks]
-- What the model makes is freed after each micro-batch, but for tensors that its modules keep in a field or in a list
-- in a field; a tensor kept anywhere else is dead afterwards.
-- @param[opt] iter  a table with next(), or one micro-batch; the engine's data unless given
-- @treturn table    the report, or nil when there was no micro-batch; a short last window divides by what it had
-- @raise OVERFLOW, OOM, and what the model throws: nothing is applied then, the window is dropped
function Engine:train_batch(iter) return accumulate.train_batch(self, iter) end

--- The model's forward; returns what it returned. [all ranks]
function Engine:forward(...) return accumulate.forward(self, ...) end

--- Backward of one micro-batch. [all ranks]
-- @param loss        one scalar, or the sum of losses
-- @param[opt] count  with a sum: how many targets it counts; a number or a tensor of one element
function Engine:backward(loss, count) accumulate.backward(self, loss, count) end

--- After every backward: nil inside an accumulation window, the report at its end. [all ranks]
-- @bool[opt] last  true ends the window now (the data ran out); it divides by what it had
function Engine:step(last) return accumulate.step(self, last) end

--- Ends a window; see step.lua.
function Engine:apply_window(w) return step.apply_window(self, w) end

--- A parameter's gradient for p:grad().
function Engine:parameter_gradient(slot) return accumulate.gradient(self, slot) end

-- ---- evaluation ----------------------------------------------------------------------------------

--- Loss (a number) of one micro-batch without tape, in eval mode; modes are restored. [all ranks]
-- @raise OVERFLOW for a loss that isn't finite
function Engine:eval_batch(b) return evaluate.eval_batch(self, b) end

--- Mean loss over an iterator, weighted by targets. [all ranks]
-- @param iter                a table with next(); a loader without end goes round once
-- @int[opt] max_batches
function Engine:evaluate(iter, max_batches) return evaluate.evaluate(self, iter, max_batches) end

-- ---- state ---------------------------------------------------------------------------------------

--- Rate of the next update (nil without an optimizer).
function Engine:lr()
  return self.optimizer and self.rates:at(self.step_count + 1) or nil
end

--- Loss scale of the next step: 1 unless training in fp16.
function Engine.loss_scale() return 1 end

--- The knobs in force, under DeepSpeed's names without stage3_.
function Engine:knobs()
  local z = self.config.zero_optimization or {}
  local knobs = {}
  for _, name in ipairs { 'max_live_parameters', 'max_reuse_distance', 'prefetch_bucket_size',
    'param_persistence_threshold', 'model_persistence_threshold' } do
    knobs[name] = z['stage3_' .. name]
  end
  knobs.reduce_bucket_size, knobs.overlap_comm = z.reduce_bucket_size, z.overlap_comm
  return knobs
end

--- Totals since the engine was built.
function Engine:stats()
  return { steps = self.step_count, micro_batches = self.micro_count, skipped = self.skipped, tokens = self.tokens,
    samples = self.samples, step_s = self.totals.step_s, gathers = 0, gathered_bytes = 0, prefetched_bytes = 0,
    moved_bytes = 0, reduced_bytes = 0, wait_s = 0 }
end

for _, name in ipairs { 'save', 'load', 'save_weights', 'set_policy', 'set_knobs', 'trace', 'plan' } do
  Engine[name] = function()
    err.throw('UNSUPPORTED', ('not supported yet: engine:%s'):format(name))
  end
end

--- Throws when the engine was closed or its last update was left half done.
function Engine:check_open(who)
  if self.closed then err.throw('STALE', ('%s: the engine is closed'):format(who)) end
  step.check_whole(self, who)
end

--- Frees everything; the model's parameters are released for good. Twice is harmless.
function Engine:close()
  if self.closed then return end
  self.closed = true
  weights.free(self.slots)
  if self.log then self.log:close() end
end

function Engine:__tostring()
  return ('engine: step %d, %s, %s'):format(self.step_count, tostring(self.optimizer or 'no optimizer'),
    self.closed and 'closed' or 'open')
end

-- ---- building ------------------------------------------------------------------------------------

local OPTIONS = { model = opts.any, config = opts.any, data = opts.any, optimizer = opts.any, schedule = opts.any,
  groups = opts.func, log = opts.string, nonfinite = 'error', policy = opts.any }

local function check_options(o)
  if not walk.is_module(o.model) then
    err.throw('ARG', ('initialize: model is %s, wants a module (an instance of nn.class)'):format(opts.show(o.model)))
  end
  if o.data ~= nil and not batch.is_iterator(o.data) then
    err.throw('ARG', ('initialize: data is %s, wants an iterator (a table with next), as z3.data.loader'):format(
      opts.show(o.data)))
  end
  opts.choice(o.nonfinite, { 'error', 'skip' }, 'initialize', 'nonfinite')
  if o.policy ~= nil then err.throw('UNSUPPORTED', 'not supported yet: policy') end
  local x = o.optimizer
  if x ~= nil and (type(x) ~= 'table' or type(x.update) ~= 'function' or type(x.group) ~= 'function') then
    err.throw('ARG', ('initialize: optimizer is %s, wants one of z3.optim, as z3.optim.adamw{ lr = 3e-4 }'):format(
      opts.show(x)))
  end
end

-- Options of every parameter: the optimizer's, with what `groups` says over them.
local function read_groups(slots, optimizer, groups)
  for _, slot in ipairs(slots) do
    local given = groups and groups(slot.name, slot.p)
    slot.options = optimizer:group(given, ('groups("%s")'):format(slot.name))
  end
end

local function modules_of(model)
  local list = {}
  for _, m in model:modules() do list[#list + 1] = m end
  return list
end

local function read_config(o)
  local micro = type(o.data) == 'table' and type(o.data.batch) == 'number' and o.data.batch or nil
  return config.load(o.config, { world = 1, micro_batch = micro, own_optimizer = o.optimizer ~= nil,
    own_schedule = o.schedule ~= nil })
end

local function prepare(engine, groups, dtype)
  weights.build(engine, dtype)
  if engine.optimizer then read_groups(engine.slots, engine.optimizer, groups) end
  weights.sync(engine.slots, engine.optimizer)
end

--- Builds an engine. [all ranks]
-- @tab o  model; config (DeepSpeed JSON file, table, or nil); data; optimizer; schedule; groups = function(name, p) ->
--         options; log = file; nonfinite = 'error' | 'skip'
-- @raise CONFIG, ARG, OOM, UNSUPPORTED
function M.initialize(o)
  o = opts.read(o, OPTIONS, 'initialize')
  check_options(o)
  local cfg = read_config(o)
  local optimizer = o.optimizer
  if optimizer == nil and cfg.optimizer and cfg.optimizer.type ~= nil then optimizer = section.new(cfg.optimizer) end
  walk.declare_root(o.model)
  local engine = setmetatable({
    model = o.model, modules = modules_of(o.model), config = cfg, data = o.data, optimizer = optimizer,
    rates = rates.new(o.schedule, cfg.scheduler, optimizer), nonfinite = o.nonfinite,
    accumulation = cfg.gradient_accumulation_steps, micro_batch = cfg.train_micro_batch_size_per_gpu,
    clip = cfg.gradient_clipping, device = T.default_device(), rank = err.rank, world = 1,
    step_count = 0, micro_count = 0, skipped = 0, tokens = 0, samples = 0, totals = { step_s = 0 },
    scoped = batch.scoped, log = o.log and report.log(o.log),
  }, Engine)
  engine.keepers, engine.window = batch.keepers(engine.modules), windows.new()
  engine.slots = {}
  local ok, problem = pcall(prepare, engine, o.groups, cfg.bf16 and cfg.bf16.enabled and 'bf16' or nil)
  if not ok then
    weights.undo(engine.slots)
    error(problem, 0)
  end
  return engine
end

M.Engine = Engine

return M
