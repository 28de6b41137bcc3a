-- generate_spec.lua -- z3.generate: greedy continuations of the reference models, sampling, stopping, long texts.
local z3     = require 'z3'
local auto   = require 'models.auto'
local json   = require 'z3.json'
local helper = require 'tests.lua.helper'

local DATA = helper.root .. '/tests/parity/data/models/'

after_each(function() require('z3.rope_table').clear() end)

local function fails(code, pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, 'expected an error')
  assert.is_true(z3.is_error(e), tostring(e))
  assert.equal(code, e.code, tostring(e))
  assert.matches(pattern, e.message)
end

local function manifest(name)
  local f = assert(io.open(DATA .. name .. '/manifest.json', 'rb'))
  local text = f:read '*a'
  f:close()
  return json.decode(text)
end

-- Greedy without a cache: the whole sequence (its newest n_ctx tokens) at every step.
local function uncached(model, ids, n)
  local all, new = { unpack(ids) }, {}
  model:eval()
  z3.no_grad(function()
    for i = 1, n do
      local window = { unpack(all, math.max(1, #all - model.options.n_ctx + 1)) }
      local logits = model { tokens = z3.tensor({ window }, { dtype = 'i32' }) }
      local id = logits:select(0, 0):select(0, #window - 1):argmax():item()
      new[i], all[#all + 1] = id, id
    end
  end)
  model:train()
  return new
end

for _, name in ipairs { 'gpt2', 'llama', 'qwen2', 'llama3_rope_tied' } do
  it('greedy continuations of ' .. name .. ' equal the reference\'s', function()
    local model = auto.from_pretrained(DATA .. name)
    for _, case in ipairs(manifest(name).greedy) do
      assert.same(case.continuation, z3.generate(model, case.prompt, { max_new_tokens = #case.continuation }))
      assert.same(case.continuation, uncached(model, case.prompt, #case.continuation))
    end
  end)
end

describe('z3.generate', function()
  local model

  before_each(function()
    z3.manual_seed(12)
    model = require 'models.gpt2'.new { n_layer = 2, n_head = 2, n_embd = 16, vocab_size = 11, n_ctx = 8,
                                        init_std = 0.3, tie = false }
    model:materialise()
  end)
  after_each(function() model = nil end)

  it('goes on beyond the context with its newest tokens', function()
    local want = uncached(model, { 1, 2, 3 }, 30)
    assert.same(want, z3.generate(model, { 1, 2, 3 }, { max_new_tokens = 30 }))
    assert.same(uncached(model, { 1, 2, 3, 4, 5, 6, 7, 8 }, 5),
      z3.generate(model, { 1, 2, 3, 4, 5, 6, 7, 8 }, { max_new_tokens = 5 }))
    fails('ARG', 'the prompt has 9 tokens, n_ctx is 8', z3.generate, model, { 1, 2, 3, 4, 5, 6, 7, 8, 9 })
  end)

  it('restores mode and recording, frees everything, also after an error', function()
    local C = require('z3.ffi').C
    model.h[1].mlp:eval()
    local before = tonumber(C.z3_tensor_live())
    z3.generate(model, { 1 }, { max_new_tokens = 4 })
    collectgarbage()
    collectgarbage()
    assert.equal(before, tonumber(C.z3_tensor_live()))
    assert.is_false(pcall(z3.generate, model, { 1 }, { on_token = function() error 'stop' end }))
    fails('ARG', '11', z3.generate, model, { 11 })
    assert.is_true(model.training)
    assert.is_true(model.h[2].mlp.training)
    assert.is_false(model.h[1].mlp.training)
    assert.is_true(C.z3_grad_enabled())
    collectgarbage()
    collectgarbage()
    assert.equal(before, tonumber(C.z3_tensor_live()))
  end)

  it('samples the same with the same seed, and from the stream of z3.manual_seed without one', function()
    local function run(o)
      o.max_new_tokens, o.temperature = 20, 1
      return z3.generate(model, { 1 }, o)
    end
    assert.same(run { seed = 5 }, run { seed = 5 })
    assert.not_same(run { seed = 5 }, run { seed = 6 })
    z3.manual_seed(1)
    local a, b = run {}, run {}
    assert.not_same(a, b)
    z3.manual_seed(1)
    assert.same(a, run {})
    assert.same(z3.generate(model, { 1 }, { max_new_tokens = 5 }), z3.generate(model, { 1 },
      { max_new_tokens = 5, temperature = 1, top_k = 1 }))
  end)

  it('draws by the probabilities, restricted by top_k and top_p', function()
    local logits = z3.tensor { 1, 3, 0, 3.5, -2 }
    local function shares(o)
      o.temperature, o.seed = o.temperature or 1, 3
      local choose, hits, n = require('z3.generate').sampler(o), { [0] = 0, 0, 0, 0, 0 }, 8000
      for _ = 1, n do
        local id = choose(logits)
        hits[id] = hits[id] + 1
      end
      for i = 0, 4 do hits[i] = hits[i] / n end
      return hits
    end
    local function expect(allowed, temperature, got)
      local sum, p = 0, {}
      for i, l in ipairs { 1, 3, 0, 3.5, -2 } do
        p[i - 1] = allowed[i - 1] and math.exp(l / temperature) or 0
        sum = sum + p[i - 1]
      end
      for i = 0, 4 do
        assert.is_true(math.abs(got[i] - p[i] / sum) < 0.02, ('id %d: %g, wants %g'):format(i, got[i], p[i] / sum))
        if p[i] == 0 then assert.equal(0, got[i]) end
      end
    end
    local all = { [0] = true, true, true, true, true }
    expect(all, 1, shares {})
    expect(all, 2, shares { temperature = 2 })
    expect({ [3] = true, [1] = true }, 1, shares { top_k = 2 })
    expect({ [3] = true, [1] = true, [0] = true }, 1, shares { top_k = 3, top_p = 1 })
    expect({ [3] = true }, 1, shares { top_p = 0.3 })
    expect({ [3] = true, [1] = true }, 1, shares { top_p = 0.9 })
    expect({ [3] = true, [1] = true }, 1, shares { top_k = 3, top_p = 0.95 })   -- shares of what top_k left
    expect(all, 1, shares { top_k = 100 })
  end)

  it('stops at ids, sequences, a function, or when on_token says so', function()
    local all = z3.generate(model, { 1 }, { max_new_tokens = 6 })
    local first = {}
    for i, id in ipairs(all) do
      first[i] = id
      if id == all[3] then break end
    end
    assert.same(first, z3.generate(model, { 1 }, { max_new_tokens = 6, stop = all[3] }))
    assert.same(first, z3.generate(model, { 1 }, { max_new_tokens = 6, stop = { 99, all[3] } }))
    assert.same({ all[1], all[2] }, z3.generate(model, { 1 }, { max_new_tokens = 6, stop = { { all[1], all[2] } } }))
    assert.same({ all[1], all[2] }, z3.generate(model, { 1 }, { max_new_tokens = 6,
      stop = function(ids) return #ids == 2 end }))
    local seen = {}
    z3.generate(model, { 1 }, { max_new_tokens = 6, on_token = function(id, n) seen[n] = id; return n < 4 end })
    assert.same({ unpack(all, 1, 4) }, seen)
    assert.same({}, z3.generate(model, { 1 }, { max_new_tokens = 0 }))
    assert.same(all, z3.generate(model, z3.tensor({ 1 }, { dtype = 'i32' }), { max_new_tokens = 6 }))
  end)

  it('runs any module that returns logits, without a cache', function()
    local Count = z3.nn.class 'Count'
    function Count:init() self.calls = {} end
    function Count:forward(batch)                        -- the next token is the last plus one
      self.calls[#self.calls + 1] = batch.tokens.shape[2]
      local ids = batch.tokens:totable()[1]
      local rows = {}
      for t, id in ipairs(ids) do
        rows[t] = {}
        for v = 0, 9 do rows[t][v + 1] = v == (id + 1) % 10 and 1 or 0 end
      end
      return z3.tensor { rows }
    end
    local m = Count()
    assert.same({ 8, 9, 0, 1 }, z3.generate(m, { 6, 7 }, { max_new_tokens = 4 }))
    assert.same({ 2, 3, 4, 5 }, m.calls)
  end)

  it('names bad arguments and logits that are not finite', function()
    fails('ARG', 'wants a model', z3.generate, 3, { 1 })
    fails('ARG', 'at least one id', z3.generate, model, {})
    fails('ARG', 'id 1 is 1.5', z3.generate, model, { 1, 1.5 })
    fails('ARG', 'temperature is %-1', z3.generate, model, { 1 }, { temperature = -1 })
    fails('ARG', 'top_p is 0', z3.generate, model, { 1 }, { top_p = 0 })
    fails('ARG', 'top_k is 0', z3.generate, model, { 1 }, { top_k = 0 })
    fails('ARG', 'unknown option "max_tokens"', z3.generate, model, { 1 }, { max_tokens = 1 })
    fails('ARG', 'stop has "\\n"', z3.generate, model, { 1 }, { stop = '\\n' })
    model.ln_f.weight:fill_(0 / 0)
    fails('OVERFLOW', 'not finite', z3.generate, model, { 1 })
    fails('OVERFLOW', 'not finite', z3.generate, model, { 1 }, { temperature = 1 })
  end)
end)
