-- models_spec.lua -- the manners of models: presets, options, batches, initial values, heads, errors.
local z3 = require 'z3'

after_each(function() require('z3.rope_table').clear() end)

local function fails(code, pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, 'expected an error')
  assert.is_true(z3.is_error(e), tostring(e))
  assert.equal(code, e.code, tostring(e))
  assert.matches(pattern, e.message)
end

describe('a model', function()
  local gpt2, llama, qwen2 = require 'models.gpt2', require 'models.llama', require 'models.qwen2'
  local small = { n_layer = 2, n_head = 2, n_embd = 16, vocab_size = 20, n_ctx = 8 }
  local function tokens(B, n) return z3.full({ B, n }, 3, { dtype = 'i32' }) end

  it('is made from a preset, a table, or a preset with overrides', function()
    assert.equal(4, #gpt2.new('nano').h)
    local m = gpt2.new('nano', { vocab_size = 300, n_ctx = 64 })
    assert.same({ 300, 128 }, m.wte.weight.shape)
    assert.same({ 64, 128 }, m.wpe.weight.shape)
    assert.equal(20, gpt2.new(small).options.vocab_size)
    assert.equal(124439808, gpt2.new('124M'):numel())    -- nothing has values yet
    assert.equal(354823168, gpt2.new('355M'):numel())
    assert.equal(774030080, gpt2.new('774M'):numel())
    assert.equal(1557611200, gpt2.new('1.5B'):numel())
    assert.equal(8030261248, llama.new('8B'):numel())
    assert.equal(1235814400, llama.new('1B'):numel())
    assert.equal(162417408, llama.new('160M'):numel())
    assert.equal(494032768, qwen2.new('0.5B'):numel())
    assert.equal(7615616512, qwen2.new('7B'):numel())
    assert.is_true(llama.new('nano'):numel() > 5e5)
  end)

  it('names unknown presets and options, and sizes that cannot be', function()
    fails('ARG', 'no preset "nanno".*nano', gpt2.new, 'nanno')
    fails('ARG', 'models.gpt2: unknown option "n_layers".*n_layer', gpt2.new, 'nano', { n_layers = 3 })
    fails('ARG', 'models.llama: n_layer is 0', llama.new, 'nano', { n_layer = 0 })
    fails('ARG', 'n_head', gpt2.new, 'nano', { n_head = 5 })
    fails('ARG', 'embd_dropout is 1', gpt2.new, 'nano', { dropout = 1 })
    fails('ARG', '"n_ctx" is "x"', gpt2.new, 'nano', { n_ctx = 'x' })
  end)

  it('takes empty batches, targets of -100 only, and views', function()
    for _, m in ipairs { gpt2.new(small), llama.new('nano', { n_ctx = 8, n_layer = 1 }) } do
      local sum, count = m { tokens = tokens(0, 8), targets = tokens(0, 8) }
      assert.equal(0, sum:item())
      assert.equal(0, count)
      sum:backward()
      for _, p in m:parameters() do
        local g = p:grad()
        assert.is_true(g == nil or g:abs():max():item() == 0)
      end
      sum, count = m { tokens = tokens(2, 4), targets = tokens(2, 4):fill_(-100) }
      assert.equal(0, sum:item())
      assert.equal(0, count)
      local wide = tokens(2, 9)
      sum, count = m { tokens = wide:narrow(1, 0, 8), targets = wide:narrow(1, 1, 8) }
      assert.equal(16, count)
      assert.is_true(sum:item() > 0)
      assert.same({ 2, 3, m.options.vocab_size }, (m { tokens = tokens(2, 3) }).shape)
    end
  end)

  it('names sequences that are too long, ids out of range and wrong batches', function()
    local m = gpt2.new(small)
    fails('ARG', 'GPT2: the sequence has 9 tokens, n_ctx is 8', m, { tokens = tokens(1, 9) })
    fails('ARG', '20', m, { tokens = tokens(1, 4):fill_(20) })
    fails('ARG', '20', m, { tokens = tokens(1, 4), targets = tokens(1, 4):fill_(20) })
    fails('ARG', 'wants a batch', m, 3)
    fails('ARG', 'without tokens', m, { token = 1 })
    fails('ARG', 'tokens are a table', m, { tokens = { { 1, 2 } } })
    fails('ARG', 'targets are a number', m, { tokens = tokens(1, 4), targets = 5 })
    fails('SHAPE', 'tokens are %(4%), wants %(B,T%)', m, { tokens = z3.full({ 4 }, 1, { dtype = 'i32' }) })
    fails('SHAPE', 'targets are %(1,3%), tokens are %(1,4%)', m, { tokens = tokens(1, 4), targets = tokens(1, 3) })
    m:eval()
    local cache = m:new_cache(1, 4)
    fails('ARG', 'z3.no_grad', m, { tokens = tokens(1, 3) }, cache)
    z3.no_grad(m, { tokens = tokens(1, 3) }, cache)
    fails('ARG', '5 tokens, the cache has room for 4', z3.no_grad, m, { tokens = tokens(1, 2), cache = cache })
  end)

  it('starts as GPT-2 does: std 0.02, the last weights of branches smaller', function()
    z3.manual_seed(4)
    local m = gpt2.new('nano')
    local function std(p) return p:full():std():item() end
    local function near(want, got) assert.is_true(math.abs(got / want - 1) < 0.05, ('%g %g'):format(want, got)) end
    near(0.02, std(m.wte.weight))
    near(0.02, std(m.h[1].attn.c_attn.weight))
    near(0.02 / math.sqrt(8), std(m.h[1].attn.c_proj.weight))
    near(0.02 / math.sqrt(8), std(m.h[4].mlp.c_proj.weight))
    assert.equal(0, m.h[1].mlp.c_fc.bias:full():abs():max():item())
    local sum, count = m { tokens = tokens(2, 16), targets = tokens(2, 16):fill_(7) }
    assert.is_true(math.abs(sum:item() / count - math.log(256)) < 0.5)
  end)

  it('drops out in training only, in all its places', function()
    z3.manual_seed(1)
    local m = gpt2.new(small)
    local d = gpt2.new(small, { dropout = 0.2 })
    d:load_state_dict(m:state_dict())
    local batch = { tokens = tokens(1, 8) }
    z3.no_grad(function()
      local want = m(batch)
      assert.is_true((d(batch) - want):abs():max():item() > 1e-3)
      d:eval()
      assert.equal(0, (d(batch) - want):abs():max():item())
    end)
    local all = gpt2.new(small, { dropout = 0.2, attn_dropout = 0 }).options
    assert.same({ 0.2, 0, 0.2 }, { all.embd_dropout, all.attn_dropout, all.resid_dropout })
  end)

  it('uses what was put in place of its head', function()
    local m = gpt2.new(small)
    local Scaled = z3.nn.class 'Scaled'
    function Scaled:init(inner) self.inner, self.gain = inner, z3.nn.Parameter({ 1 }, { init = 'ones' }) end
    function Scaled:forward(x) return self.inner(x) * self.gain end
    local batch = { tokens = tokens(1, 4), targets = tokens(1, 4) }
    local before = m(batch):item()
    m.lm_head = Scaled(m.lm_head)
    local sum = m(batch)
    assert.is_true(math.abs(sum:item() - before) < 1e-4)
    sum:backward()
    assert.not_nil(m.lm_head.gain:grad())
  end)

  it('frees what its forward made', function()
    local m = gpt2.new(small):materialise()
    local batch = { tokens = tokens(2, 8), targets = tokens(2, 8) }
    local C = require('z3.ffi').C
    z3.no_grad(m, batch):free()
    local before = tonumber(C.z3_tensor_live())
    local sum = z3.no_grad(m, batch)
    assert.equal(before + 1, tonumber(C.z3_tensor_live()))
    sum:free()
    sum = m(batch)
    assert.is_true(tonumber(C.z3_tensor_live()) > before + 1)   -- what backward needs
    sum:backward()
    sum:free()
    m:zero_grad()
    assert.equal(before, tonumber(C.z3_tensor_live()))
  end)

  it('runs on the null device: shapes without values', function()
    local T = require 'z3.tensor'
    T.set_default_device 'null'
    local ok, e = pcall(function()
      for _, m in ipairs { gpt2.new(small), llama.new('nano', { n_ctx = 8 }), qwen2.new('nano', { n_ctx = 8 }) } do
        local batch = { tokens = tokens(2, 8), targets = tokens(2, 8) }
        assert.same({ 2, 8, m.options.vocab_size }, m({ tokens = batch.tokens }).shape)
        local sum = m:checkpoint()(batch)
        sum:backward()
        for name, p in m:parameters() do
          assert.equal('null', p.device)
          assert.same(p.shape, p:grad().shape, name)
        end
      end
    end)
    T.set_default_device 'cpu'
    if not ok then error(e, 0) end
  end)

  it('takes a state with the names of a file', function()
    local m = gpt2.new(small)
    local state = {}
    for n, t in pairs(m:state_dict()) do state['transformer.' .. n] = t end
    state['lm_head.weight'] = state['transformer.wte.weight']
    state['transformer.h.0.attn.bias'] = z3.ones { 1 }   -- the mask that older files carry
    assert.same({}, m:load_state_dict(state).unexpected)
    state['transformer.h.9.ln_1.weight'] = z3.ones { 16 }
    fails('ARG', 'no h.9.ln_1.weight', m.load_state_dict, m, state)
  end)
end)
