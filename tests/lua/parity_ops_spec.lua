--- parity_ops_spec.lua -- every operation against PyTorch's values and gradients in float64 (tests/parity/data/ops).
-- A value passes when |got - expected| <= atol + rtol |expected|, with the tolerances of the manifest.
-- Z3_CPU: all
local z3     = require 'z3'
local data   = require 'tests.lua.parity_data'
local rope_table = require 'z3.rope_table'

local F = z3.nn.functional

-- A tolerance of 1e-30 says that the true value is 0: rounding of the largest intermediate is allowed there.
local EXACT, ROUNDING = 1e-30, 1e-5

--- op -> function(inputs, params) -> result or { name = result }.
local RUN = {
  linear = function(i) return F.linear(i.x, i.weight, i.bias) end,
  conv1d = function(i) return F.conv1d(i.x, i.weight, i.bias) end,
  layernorm = function(i, p) return F.layer_norm(i.x, i.weight, i.bias, p.eps) end,
  rmsnorm = function(i, p) return F.rms_norm(i.x, i.weight, p.eps) end,
  gelu_tanh = function(i) return F.gelu(i.x, 'tanh') end,
  gelu_erf = function(i) return F.gelu(i.x, 'erf') end,
  silu = function(i) return F.silu(i.x) end,
  swiglu = function(i) return F.swiglu(i.gate, i.up) end,
  softmax = function(i) return F.softmax(i.x, -1) end,
  embedding = function(i) return F.embedding(i.ids, i.weight) end,
  attention = function(i, p)
    return F.scaled_dot_product_attention(i.q, i.k, i.v, { causal = p.causal, scale = p.scale })
  end,
  attention_padding = function(i, p)
    -- Masked queries see nothing, as the stored values want it.
    local m = i.mask:ne(0)
    local mask = m:unsqueeze(1):unsqueeze(2) * m:unsqueeze(1):unsqueeze(3)
    return F.scaled_dot_product_attention(i.q, i.k, i.v, { causal = p.causal, scale = p.scale, mask = mask })
  end,
  rope = function(i, p)
    return F.rope(i.x, { theta = p.theta, positions = i.positions, scaling = p.rope_scaling })
  end,
  cross_entropy = function(i, p)
    if p.grad_of == 'mean' then return F.cross_entropy(i.logits, i.labels) end
    return (F.cross_entropy(i.logits, i.labels, { reduction = 'sum' }))
  end,
}

local function largest(t) return t:numel() > 0 and t:detach():to('f32'):abs():max():item() or 0 end

local function inputs_of(tensors, variant)
  local inputs, most = {}, 1
  for name, t in pairs(tensors) do
    local key = name:match '^([^/]+/in/.+)$' and name:match '^([^/]+)/' == variant and name:match '/in/(.+)$'
    if key then
      inputs[key] = t.dtype:match 'f' and t:clone():requires_grad_() or t
      if t.dtype:match 'f' then most = math.max(most, largest(t)) end
    end
  end
  return inputs, most
end

local function check(name, got, tensors, entry, most)
  local tolerance = entry.tolerance
  local floor = tolerance.atol <= EXACT and ROUNDING * most or 0
  local over = data.excess(got, tensors[name], tolerance, floor)
  assert.is_true(over <= 0, ('%s is %g beyond its tolerance (atol %g)'):format(name, over, tolerance.atol))
end

--- The sums and counts that cross_entropy reports beside the value whose gradient is stored.
local function check_losses(v, inputs, tensors, entries, most)
  local rows = F.cross_entropy(inputs.logits, inputs.labels, { reduction = 'none' })
  local sum, count = F.cross_entropy(inputs.logits, inputs.labels, { reduction = 'sum' })
  assert.equal(tensors[v.name .. '/out/count']:item(), count)
  check(v.name .. '/out/sum', sum, tensors, entries[v.name .. '/out/sum'], most)
  check(v.name .. '/out/row_sum', rows:sum(-1), tensors, entries[v.name .. '/out/row_sum'], most)
end

local function run_variant(op, v, entries)
  local prefix = v.name .. '/'
  local _, tensors = data.case('ops/' .. op, function(n) return n:sub(1, #prefix) == prefix end)
  local inputs, most = inputs_of(tensors, v.name)
  local y = RUN[op](inputs, v.params)
  local grad_out = tensors[prefix .. 'grad_out']
  if grad_out then most = most * math.max(1, largest(grad_out)) end
  local result = prefix .. 'out/' .. v.params.grad_of
  if tensors[result] then check(result, y, tensors, entries[result], most) end
  if op == 'cross_entropy' then check_losses(v, inputs, tensors, entries, most) end
  y:backward(grad_out)
  local compared = 0
  for name in pairs(tensors) do
    local key = name:match '/grad/(.+)$'
    if key then
      local got = assert(inputs[key].grad, 'no gradient of ' .. key)
      assert.same(tensors[name].shape, got.shape)
      check(name, got, tensors, entries[name], most)
      compared = compared + 1
    end
  end
  assert.is_true(compared > 0, 'no gradient is stored')
end

for _, op in ipairs { 'linear', 'conv1d', 'layernorm', 'rmsnorm', 'gelu_tanh', 'gelu_erf', 'silu', 'swiglu', 'softmax',
                      'attention', 'attention_padding', 'rope', 'embedding', 'cross_entropy' } do
  local manifest = data.json(data.read('tests/parity/data/ops/' .. op .. '/manifest.json'))
  local entries = manifest.tensors['tensors.safetensors']
  describe(op, function()
    after_each(rope_table.clear)
    for _, v in ipairs(manifest.variants) do
      it('equals PyTorch: ' .. v.name, function() run_variant(op, v, entries) end)
    end
  end)
end

describe('rope frequencies', function()
  local manifest, tensors = data.case('ops/rope', function(n) return n:match '/inv_freq$' end)
  require('tests.lua.helper').keep()
  for _, v in ipairs(manifest.variants) do
    it('equal those of ' .. v.name, function()
      local f = rope_table.frequencies(v.params.theta, v.params.rope_scaling, v.params.head_dim)
      local expected = tensors[v.name .. '/inv_freq']:totable()
      assert.equal(#expected, #f)
      for i, e in ipairs(expected) do assert.is_true(math.abs(f[i] - e) <= 1e-6 * e, ('frequency %d'):format(i)) end
    end)
  end
end)
