-- models_spec.lua -- GPT-2, Llama, Qwen2 against Hugging Face transformers (tests/parity/data/models), and the manners
-- of models: batches, options, initial values, errors, from_pretrained.
local z3     = require 'z3'
local auto   = require 'models.auto'
local json   = require 'z3.json'
local helper = require 'tests.lua.helper'

local DATA = helper.root .. '/tests/parity/data/models/'

after_each(function() require('z3.rope_table').clear() end)

local function read(path)
  local f = assert(io.open(path, 'rb'))
  local text = f:read '*a'
  f:close()
  return text
end

local function write(path, text)
  local f = assert(io.open(path, 'wb'))
  f:write(text)
  f:close()
end

local function fails(code, pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, 'expected an error')
  assert.is_true(z3.is_error(e), tostring(e))
  assert.equal(code, e.code, tostring(e))
  assert.matches(pattern, e.message)
end

-- A fresh folder with links to a model's files; fn gets its path.
local function in_folder(name, fn)
  local dir = os.tmpname()
  os.remove(dir)
  local from = DATA .. name
  assert(os.execute(('mkdir %s && ln -s %s/model.safetensors %s/ && cp %s/config.json %s/ && chmod u+w %s/*.json')
    :format(dir, from, dir, from, dir, dir)) == 0)
  local ok, e = pcall(fn, dir)
  os.execute('rm -r ' .. dir)
  if not ok then error(e, 0) end
end

-- Largest violation of |got - want| <= atol + rtol |want|, as a text, or nil.
local function violation(got, want, tolerance, name)
  assert.same(want.shape, got.shape, name)
  local a, b, n = got:contiguous(), want:contiguous(), got:numel()
  local p, q = a:data 'r', b:data 'r'
  local worst, at = 0, nil
  for i = 0, n - 1 do
    local over = math.abs(p[i] - q[i]) - (tolerance.atol + tolerance.rtol * math.abs(q[i]))
    if over > worst or over ~= over then worst, at = over, i end
  end
  if at then return ('%s[%d] is %.9g, wants %.9g +- %g'):format(name, at, p[at], q[at], tolerance.atol) end
end

-- Labels are shifted in the reference: targets[t] = labels[t + 1].
local function targets_of(labels)
  local rows = labels:totable()
  for _, row in ipairs(rows) do
    table.remove(row, 1)
    row[#row + 1] = -100
  end
  return z3.tensor(rows, { dtype = 'i32' })
end

local function our_name(name) return (name:gsub('^transformer%.', ''):gsub('^model%.', '')) end

for _, name in ipairs { 'gpt2', 'llama', 'qwen2', 'llama3_rope_tied' } do
  describe('model ' .. name, function()
    local manifest = json.decode(read(DATA .. name .. '/manifest.json'))
    local info = manifest.tensors['expected.safetensors']

    it('gives the logits, the loss and every gradient of the reference', function()
      local expected = z3.safetensors.load(DATA .. name .. '/expected.safetensors')
      local model = auto.from_pretrained(DATA .. name)
      local tokens = expected.input_ids
      local logits = z3.no_grad(model, { tokens = tokens })
      assert.is_nil(violation(logits, expected.logits, info.logits.tolerance, 'logits'))
      local sum, count = model { tokens = tokens, targets = targets_of(expected.labels) }
      assert.equal(manifest.counted_labels, count)
      local loss = sum / count
      assert.is_true(math.abs(loss:item() - manifest.loss) <= manifest.loss_tolerance,
        ('loss is %.9g, wants %.9g'):format(loss:item(), manifest.loss))
      loss:backward()
      local seen = 0
      local params = {}
      for n, p in model:parameters() do params[n] = p end
      for key, what in pairs(info) do
        local file_name = key:match '^grad%.(.*)'
        if file_name then
          local p = assert(params[our_name(file_name)], file_name)
          assert.is_nil(violation(p:grad(), expected[key], what.tolerance, key))
          seen = seen + 1
        end
      end
      local total = 0
      for _ in model:parameters() do total = total + 1 end
      assert.equal(total, seen)
    end)

    it('is the same from the older spelling of config.json', function()
      in_folder(name, function(dir)
        write(dir .. '/config.json', read(DATA .. name .. '/config_v4.json'))
        local a, b = auto.from_pretrained(dir), auto.from_pretrained(DATA .. name)
        assert.same(b.options, a.options)
        local tokens = z3.tensor({ { 1, 2, 3, 4, 200 } }, { dtype = 'i32' })
        local d = z3.no_grad(function() return a { tokens = tokens } - b { tokens = tokens } end)
        assert.equal(0, d:abs():max():item())
      end)
    end)

    it('in bf16 stays as near to the reference as Hugging Face does', function()
      local expected = z3.safetensors.load(DATA .. name .. '/expected.safetensors')
      local model = auto.from_pretrained(DATA .. name, { dtype = 'bf16' })
      for _, p in model:parameters() do assert.equal('bf16', p.dtype) end
      local logits = z3.no_grad(model, { tokens = expected.input_ids }):to 'f32'
      local d = (logits - expected['bf16.logits']):abs()
      local tolerance = info['bf16.logits'].tolerance
      assert.is_true(d:max():item() <= tolerance.atol, ('largest %g'):format(d:max():item()))
      assert.is_true(d:mean():item() <= tolerance.mean_abs_tolerance, ('mean %g'):format(d:mean():item()))
      local sum, count = model { tokens = expected.input_ids, targets = targets_of(expected.labels) }
      assert.is_true(math.abs(sum:item() / count - manifest.bf16.loss) <= manifest.bf16.loss_tolerance)
    end)

    it('has the parameter names of the file', function()
      local model = auto.from_pretrained(DATA .. name)
      local want, got = {}, {}
      for n, shape in pairs(manifest.parameters) do want[our_name(n)] = shape end
      for n, p in model:parameters() do got[n] = p.shape end
      assert.same(want, got)
      for n in model:parameters() do
        assert.not_nil(manifest.parameters[require('models.' .. model.architecture).weights.file_name(n)], n)
      end
    end)

    it('recomputed gives the same bits', function()
      local expected = z3.safetensors.load(DATA .. name .. '/expected.safetensors')
      local batch = { tokens = expected.input_ids, targets = targets_of(expected.labels) }
      local plain, again = auto.from_pretrained(DATA .. name), auto.from_pretrained(DATA .. name)
      assert.equal(again, again:checkpoint())
      local a, b = plain(batch), again(batch)
      assert.equal(a:item(), b:item())
      a:backward()
      b:backward()
      local grads = {}
      for n, p in plain:parameters() do grads[n] = p:grad() end
      for n, p in again:parameters() do assert.equal(0, (p:grad() - grads[n]):abs():max():item(), n) end
    end)

    it('with a cache: whole, token by token, or in pieces, the logits agree', function()
      local model = auto.from_pretrained(DATA .. name)
      model:eval()
      local rows = z3.safetensors.load(DATA .. name .. '/expected.safetensors').input_ids:narrow(1, 0, 12)
      z3.no_grad(function()
        local want = model { tokens = rows }
        for _, pieces in ipairs { { 12 }, { 5, 1, 1, 1, 4 }, { 1, 1, 10 } } do
          local cache, at = model:new_cache(3, 16), 0
          for _, n in ipairs(pieces) do
            local got = model({ tokens = rows:narrow(1, at, n) }, cache)
            local d = (got - want:narrow(1, at, n)):abs():max():item()
            assert.is_true(d < 1e-5, ('piece at %d differs by %g'):format(at, d))
            at = at + n
            assert.equal(at, cache.length)
          end
        end
        local last = model { tokens = rows, last = true }
        assert.same({ 3, 1, 257 }, last.shape)
        assert.is_true((last - want:narrow(1, 11, 1)):abs():max():item() < 1e-6)
      end)
    end)
  end)
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

describe('from_pretrained', function()
  local function edit(dir, change)
    local c = json.decode(read(dir .. '/config.json'))
    change(c)
    write(dir .. '/config.json', json.encode(c))
  end

  it('names what is wrong with a folder', function()
    fails('IO', '/no/such/config.json', auto.from_pretrained, '/no/such/')
    fails('ARG', 'wants the path', auto.from_pretrained, nil)
    in_folder('gpt2', function(dir)
      edit(dir, function(c) c.model_type = 'gpt3' end)
      fails('UNSUPPORTED', 'model_type "gpt3".*gpt2', auto.from_pretrained, dir)
      edit(dir, function(c) c.model_type = nil end)
      fails('CONFIG', 'no model_type', auto.from_pretrained, dir)
      write(dir .. '/config.json', '{ "model_type": ')
      fails('CORRUPT', 'config.json', auto.from_pretrained, dir)
    end)
    in_folder('gpt2', function(dir)
      edit(dir, function(c) c.scale_attn_by_inverse_layer_idx = true end)
      fails('UNSUPPORTED', 'scale_attn_by_inverse_layer_idx', auto.from_pretrained, dir)
    end)
    in_folder('gpt2', function(dir)
      edit(dir, function(c) c.n_layer = 3 end)
      fails('CORRUPT', 'no transformer.h.2.ln_1.weight', auto.from_pretrained, dir)
      edit(dir, function(c) c.n_layer = 1 end)
      fails('ARG', 'has transformer.h.1.*strict = false', auto.from_pretrained, dir)
      assert.equal(1, #auto.from_pretrained(dir, { strict = false }).h)
      edit(dir, function(c) c.n_layer, c.vocab_size = 2, 300 end)
      fails('SHAPE', 'wte.weight is %(257,64%), config.json makes it %(300,64%)', auto.from_pretrained, dir)
      fails('ARG', 'unknown option "drop"', auto.from_pretrained, dir, { drop = 1 })
      os.remove(dir .. '/model.safetensors')
      fails('IO', 'neither model.safetensors nor', auto.from_pretrained, dir)
    end)
    in_folder('llama3_rope_tied', function(dir)
      edit(dir, function(c) c.rope_parameters.rope_type = 'yarn' end)
      fails('UNSUPPORTED', 'yarn', function()
        return auto.from_pretrained(dir) { tokens = z3.zeros({ 1, 1 }, { dtype = 'i32' }) }
      end)
    end)
  end)

  it('reads several files by their index', function()
    in_folder('llama', function(dir)
      local all = z3.safetensors.load(dir .. '/model.safetensors')
      os.remove(dir .. '/model.safetensors')
      local parts, map, n = { {}, {} }, {}, 0
      for name, t in pairs(all) do
        n = n + 1
        parts[n % 2 + 1][name] = t
        map[name] = ('part-%d.safetensors'):format(n % 2 + 1)
      end
      for i, part in ipairs(parts) do z3.safetensors.save(('%s/part-%d.safetensors'):format(dir, i), part) end
      write(dir .. '/model.safetensors.index.json', json.encode { weight_map = map })
      local a, b = auto.from_pretrained(dir), auto.from_pretrained(DATA .. 'llama')
      local state = b:state_dict()
      for name, p in a:parameters() do assert.equal(0, (p:full() - state[name]):abs():max():item(), name) end
      map['lm_head.weight'] = '../part-1.safetensors'
      write(dir .. '/model.safetensors.index.json', json.encode { weight_map = map })
      fails('CORRUPT', 'the file of lm_head.weight is "../part', auto.from_pretrained, dir)
    end)
  end)

  it('writes back a configuration that it reads', function()
    for _, name in ipairs { 'gpt2', 'llama', 'qwen2', 'llama3_rope_tied' } do
      local model = auto.from_pretrained(DATA .. name)
      local weights = require('models.' .. model.architecture).weights
      local c = json.decode(json.encode(weights.config(model, 'float32')))
      local again = weights.options(c)
      for k, v in pairs(again) do assert.same(model.options[k] or v, v, name .. ' ' .. k) end
      assert.equal(model.options.n_layer, again.n_layer)
      assert.equal(model.options.tie, again.tie)
    end
  end)
end)
