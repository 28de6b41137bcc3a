--- engine_kit.lua -- small models and helpers for the engine's specs.
local z3 = require 'z3'
local nn, F = z3.nn, z3.nn.functional

local M = {}

M.VOCAB = 11

--- A tiny language model: embedding, one hidden layer with dropout, logits; called with {tokens=, targets=}.
local Lm = nn.class 'Lm'
function Lm:init(o)
  o = o or {}
  self.wte = nn.Embedding(M.VOCAB, 8)
  self.up = nn.Linear(8, 16)
  self.drop = nn.Dropout(o.dropout or 0)
  self.head = nn.Linear(16, M.VOCAB)
  self.spare = o.spare and nn.Parameter({ 3 }, { init = 'ones' }) or nil
end
function Lm:forward(batch)
  local x = self.drop(F.gelu(self.up(self.wte(batch.tokens)), 'tanh'))
  local logits = self.head(x)
  return F.cross_entropy(logits:view(-1, M.VOCAB), batch.targets:reshape(-1), { reduction = 'sum' })
end
M.Lm = Lm

--- Gradient of w is the batch: loss = sum(w * g).
local Given = nn.class 'Given'
function Given:init(n, init) self.w = nn.Parameter({ n }, { init = init or 'ones' }) end
function Given:forward(g) return (self.w * g):sum() end
M.Given = Given

--- A batch of B rows of T random tokens; rows of `masked` (a list) end early, at as many targets as it says.
function M.batch(B, T, seed, masked)
  local x, y = z3.data.random_tokens(B, T, M.VOCAB, seed), z3.data.random_tokens(B, T, M.VOCAB, seed + 1000)
  local p = y:data()
  for b, keep in pairs(masked or {}) do
    for t = keep, T - 1 do p[(b - 1) * T + t] = -100 end
  end
  return { tokens = x, targets = y }
end

--- Rows first .. first+n-1 (from 0) of a batch, as one of its own.
function M.rows(batch, first, n)
  return { tokens = batch.tokens:narrow(0, first, n), targets = batch.targets:narrow(0, first, n) }
end

--- An iterator over a Lua list of micro-batches.
function M.iter(list)
  local i = 0
  return { next = function()
    i = i + 1
    return list[i]
  end }
end

--- Plain numbers of all parameters: name -> list.
function M.values(model)
  local out = {}
  for name, p in model:parameters() do
    local full = p:full()
    out[name] = full:reshape(-1):totable()
    full:free()
  end
  return out
end

--- Largest difference between two such tables.
function M.distance(a, b)
  local worst = 0
  for name, list in pairs(a) do
    for i, v in ipairs(list) do worst = math.max(worst, math.abs(v - b[name][i])) end
  end
  return worst
end

--- An engine over a fresh model: same seed, same first weights.
function M.engine(model_of, o, config)
  z3.manual_seed(5)
  local model = model_of()
  local cfg = { train_micro_batch_size_per_gpu = 1, gradient_clipping = 0 }
  for k, v in pairs(config or {}) do cfg[k] = v end
  local all = { model = model, optimizer = z3.optim.sgd { lr = 0.1 }, config = cfg }
  for k, v in pairs(o or {}) do all[k] = v or nil end
  return z3.initialize(all), model
end

--- Error code and text of a call that must fail; nil when it doesn't.
function M.code_of(fn, ...)
  local ok, e = pcall(fn, ...)
  if ok then return nil, '' end
  return type(e) == 'table' and e.code or 'no error object', tostring(e), e
end

return M
