-- models_parity_spec.lua -- GPT-2, Llama, Qwen2 against Hugging Face transformers (tests/parity/data/models): logits,
-- losses, gradients, bf16, names, recomputation, caches.
-- Z3_CPU: all
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
