--- gradcheck_spec.lua -- gradients of every operation against finite differences, twice, and from strided inputs.
-- Z3_CPU: all
local z3 = require 'z3'

local F = z3.nn.functional
local STEP, TOLERANCE = 1e-2, 6e-3              -- f32: rounding over the step and the step's square both stay below it

local function same(expected, t) assert.same(expected, t:totable()) end

-- ---- finite differences --------------------------------------------------------------------------

--- A scalar that weighs every element of the result differently.
local function weighed(y)
  if type(y) == 'table' then y = y[1] end
  local w = z3.arange(y:numel()):view(y.shape) * 0.37
  return (y * (w:sin() + 1.5)):sum()
end

local function evaluate(fn, leaves)
  return z3.no_grad(function() return weighed(fn(unpack(leaves))):item() end)
end

--- Compares the gradient of each element of each leaf with a central difference.
local function check_differences(name, fn, leaves)
  weighed(fn(unpack(leaves))):backward()
  for k, leaf in ipairs(leaves) do
    local grad = assert(leaf.grad, name .. ': no gradient of input ' .. k)
    assert.same(leaf.shape, grad.shape)
    local g, p = grad:contiguous():data 'r', leaf:data()
    for i = 0, leaf:numel() - 1 do
      local x = p[i]
      p[i] = x + STEP
      local up = evaluate(fn, leaves)
      p[i] = x - STEP
      local down = evaluate(fn, leaves)
      p[i] = x
      local slope = (up - down) / (2 * STEP)
      assert.is_true(math.abs(slope - g[i]) <= TOLERANCE * (1 + math.abs(slope)),
        ('%s: input %d, element %d: gradient %g, difference %g'):format(name, k, i, g[i], slope))
    end
  end
end

--- Two passes of forward and backward give exactly twice the gradient. (Each leaf is used once: the parts of several
-- uses are added one by one, which rounds.)
local function check_twice(name, fn, leaves)
  local first = {}
  local function pass()
    local once = {}
    for k, leaf in ipairs(leaves) do once[k] = leaf * 1 end
    weighed(fn(unpack(once))):backward()
  end
  for _, leaf in ipairs(leaves) do leaf:zero_grad() end
  pass()
  for k, leaf in ipairs(leaves) do
    first[k] = leaf.grad:clone()
    leaf:zero_grad()
  end
  pass()
  pass()
  for k, leaf in ipairs(leaves) do
    assert.equal(0, (leaf.grad - first[k] * 2):abs():max():item(), name)
  end
end

local ID = { dtype = 'i64' }

-- { name, fn, shapes..., low =, high = }: leaves are uniform in low .. high, away from kinks.
local CASES = {
  { 'add', function(a, b) return a + b end, { 2, 3 }, { 3 } },
  { 'sub', function(a, b) return a - b end, { 2, 1 }, { 2, 3 } },
  { 'mul', function(a, b) return a * b end, { 2, 3 }, { 2, 1 } },
  { 'div', function(a, b) return a / b end, { 2, 3 }, { 3 }, low = 0.5, high = 2 },
  { 'pow', function(a, b) return a ^ b end, { 2, 3 }, { 2, 3 }, low = 0.5, high = 2 },
  { 'neg', function(a) return -a end, { 4 } },
  { 'numbers', function(a) return (2 - (a + 1) * 3) / 4 - 1 / a end, { 4 }, low = 0.5, high = 2 },
  { 'pow_scalar', function(a) return a ^ 3 + a ^ 0.5 end, { 4 }, low = 0.5, high = 2 },
  { 'rpow', function(a) return 2 ^ a end, { 4 } },
  { 'abs', function(a) return a:abs() end, { 4 }, low = 0.1, high = 2 },
  { 'exp', function(a) return a:exp() end, { 4 } },
  { 'log', function(a) return a:log() end, { 4 }, low = 0.5, high = 2 },
  { 'sqrt', function(a) return a:sqrt() end, { 4 }, low = 0.5, high = 2 },
  { 'rsqrt', function(a) return a:rsqrt() end, { 4 }, low = 0.5, high = 2 },
  { 'sin', function(a) return a:sin() end, { 4 } },
  { 'cos', function(a) return a:cos() end, { 4 } },
  { 'tanh', function(a) return a:tanh() end, { 4 } },
  { 'sigmoid', function(a) return a:sigmoid() end, { 4 } },
  { 'relu', function(a) return (a - 1):relu() end, { 6 }, low = 1.1, high = 2 },
  { 'silu', function(a) return a:silu() end, { 4 } },
  { 'gelu', function(a) return a:gelu() + a:gelu('tanh') end, { 4 } },
  { 'clamp', function(a) return a:clamp(-10, 0.5) end, { 6 }, low = -1, high = 0.4 },
  { 'maximum', function(a, b) return z3.maximum(a, b) + z3.minimum(a, b + 1) end, { 2, 3 }, { 3 }, low = 0, high = 1 },
  { 'where', function(a, b) return z3.where(z3.tensor({ 1, 0, 1 }, { dtype = 'u8' }), a, b) end, { 2, 3 }, { 3 } },
  { 'masked_fill', function(a) return a:masked_fill(z3.tensor({ 1, 0, 1 }, { dtype = 'u8' }), 5) end, { 2, 3 } },
  { 'swiglu', F.swiglu, { 2, 3 }, { 2, 3 } },
  { 'sum', function(a) return a:sum(1) * a:sum() end, { 2, 3 } },
  { 'mean', function(a) return a:mean({ 0, 2 }, true) end, { 2, 2, 2 } },
  { 'var', function(a) return a:var(1) end, { 2, 3 } },
  { 'std', function(a) return a:std() end, { 5 }, low = 0.5, high = 3 },
  { 'max', function(a) return (a:max(1)) end, { 2, 3 } },
  { 'min', function(a) return (a:min()) end, { 5 } },
  { 'cumsum', function(a) return a:cumsum(0) * a end, { 3, 2 } },
  { 'view', function(a) return a:reshape(3, 2):transpose(0, 1):reshape(6) end, { 2, 3 } },
  { 'permute', function(a) return a:permute(2, 0, 1):contiguous() end, { 2, 1, 3 } },
  { 'narrow', function(a) return a:narrow(1, 1, 2) * a:select(1, 0):unsqueeze(1) end, { 2, 3 } },
  { 'split', function(a) local x, y = a:split(2, 1); return x * y * x end, { 2, 4 } },
  { 'expand', function(a) return a:expand(3, 2, 2) end, { 2, 1 } },
  { 'squeeze', function(a) return a:squeeze():unsqueeze(0):flatten() end, { 2, 1, 2 } },
  { 'cat', function(a, b) return z3.cat({ a, b, a }, 1) end, { 2, 2 }, { 2, 1 } },
  { 'stack', function(a, b) return z3.stack({ a, b }, 1) end, { 2, 2 }, { 2, 2 } },
  { 'tril', function(a) return a:tril(-1) end, { 3, 3 } },
  { 'index_select', function(a) return a:index_select(0, { 2, 0, 2 }) end, { 3, 2 } },
  { 'gather', function(a) return a:gather(1, z3.tensor({ { 1, 1, 0 }, { 2, 0, 2 } }, ID)) end, { 2, 3 } },
  { 'sort', function(a) return (a:sort(1, true)) end, { 2, 3 } },
  { 'topk', function(a) return (a:topk(2)) end, { 2, 4 } },
  { 'matmul', function(a, b) return a:matmul(b) end, { 2, 2, 3 }, { 3, 2 } },
  { 'matmul of vectors', function(a, b) return a:matmul(b) * b:matmul(a:t()):sum() end, { 2, 3 }, { 3 } },
  { 'einsum', function(a, b) return z3.einsum('bij,jk->kb', a, b) end, { 2, 2, 3 }, { 3, 2 } },
  { 'linear', F.linear, { 2, 2, 3 }, { 4, 3 }, { 4 } },
  { 'conv1d', F.conv1d, { 2, 3 }, { 3, 4 }, { 4 } },
  { 'embedding', function(w) return F.embedding(z3.tensor({ { 0, 2 }, { 2, 2 } }, ID), w) end, { 3, 2 } },
  { 'softmax', function(a) return a:softmax(-1) + a:softmax(0) end, { 2, 3 } },
  { 'log_softmax', function(a) return a:log_softmax() end, { 2, 3 } },
  { 'layer_norm', F.layer_norm, { 2, 4 }, { 4 }, { 4 } },
  { 'layer_norm without bias', function(x, w) return F.layer_norm(x, w, nil, 1e-3) end, { 2, 4 }, { 4 } },
  { 'layer_norm without weight', function(x) return F.layer_norm(x) end, { 2, 4 } },
  { 'rms_norm', F.rms_norm, { 2, 4 }, { 4 } },
  { 'rms_norm without weight', function(x) return F.rms_norm(x) end, { 2, 4 } },
  { 'rope', function(x) return F.rope(x, { start = 2 }) end, { 1, 2, 3, 4 } },
  { 'dropout', function(x) z3.manual_seed(1); return F.dropout(x, 0.4) end, { 3, 4 } },
  { 'attention', function(q, k, v) return F.scaled_dot_product_attention(q, k, v, { causal = true }) end,
    { 1, 2, 3, 4 }, { 1, 1, 3, 4 }, { 1, 1, 3, 4 } },
  { 'attention with mask', function(q, k, v)
    local mask = z3.tensor({ { 1, 0, 1 }, { 0, 0, 0 }, { 1, 1, 0 } }, { dtype = 'u8' })
    return F.scaled_dot_product_attention(q, k, v, { mask = mask, scale = 0.7 })
  end, { 1, 2, 3, 4 }, { 1, 2, 3, 4 }, { 1, 2, 3, 4 } },
  { 'cross_entropy', function(x) return F.cross_entropy(x, z3.tensor({ 2, -100, 0 }, ID)) end, { 3, 4 } },
  { 'cross_entropy sum', function(x)
    return (F.cross_entropy(x, z3.tensor({ { 2, -100, 0 } }, ID), { reduction = 'sum' }))
  end, { 1, 3, 4 } },
  { 'cross_entropy none', function(x)
    return F.cross_entropy(x, z3.tensor({ 2, 7, 0 }, ID), { reduction = 'none', ignore_index = 7 })
  end, { 3, 4 } },
  { 'linear_cross_entropy', function(x, w) return F.linear_cross_entropy(x, w, z3.tensor({ 2, -100, 0 }, ID)) end,
    { 3, 2 }, { 4, 2 } },
  { 'mse_loss', F.mse_loss, { 2, 3 }, { 2, 3 } },
  { 'an operation in Lua', z3.op {
    name = 'square_plus',
    forward = function(ctx, a, b) ctx:save(a); return a * a + b end,
    backward = function(ctx, g) return g * ctx:saved() * 2, g end,
  }, { 2, 3 }, { 2, 3 } },
}

local function make_leaves(case)
  z3.manual_seed(17)
  local leaves, low, high = {}, case.low or -1.5, case.high or 1.5
  for i = 3, #case do leaves[i - 2] = (z3.rand(case[i]) * (high - low) + low):requires_grad_() end
  return leaves
end

describe('gradients equal finite differences', function()
  after_each(function() require('z3.rope_table').clear() end)
  for _, case in ipairs(CASES) do
    it('of ' .. case[1] .. ', and two passes give twice as much', function()
      local leaves = make_leaves(case)
      check_differences(case[1], case[2], leaves)
      check_twice(case[1], case[2], leaves)
    end)

    it('of ' .. case[1] .. ' from inputs that are not contiguous', function()
      local leaves = make_leaves(case)
      local plain, strided, turned = {}, {}, {}
      for k, leaf in ipairs(leaves) do
        plain[k] = leaf
        local turn = leaf.ndim > 1 and leaf:detach():transpose(0, -1):contiguous() or leaf:detach():clone()
        strided[k] = turn:requires_grad_()
        turned[k] = leaf.ndim > 1 and strided[k]:transpose(0, -1) or strided[k]
      end
      weighed(case[2](unpack(plain))):backward()
      weighed(case[2](unpack(turned))):backward()
      for k in ipairs(leaves) do
        local g = strided[k].grad
        if leaves[k].ndim > 1 then g = g:transpose(0, -1) end
        assert.is_true((g - plain[k].grad):abs():max():item() <= 1e-5 * (1 + plain[k].grad:abs():max():item()))
      end
    end)
  end

  it('of empty tensors are empty', function()
    for _, fn in ipairs {
      function(x) return x * 2 + x end, function(x) return x:softmax(-1) end, function(x) return F.layer_norm(x) end,
      function(x) return x:sum(0) end, function(x) return F.linear(x, z3.ones { 2, 3 }) end,
      function(x) return x:matmul(z3.ones { 3, 2 }) end, function(x) return x:t():reshape(0) end,
      function(x) return (F.cross_entropy(x, z3.zeros({ 0 }, ID), { reduction = 'sum' })) end,
    } do
      local x = z3.zeros({ 0, 3 }):requires_grad_()
      fn(x):sum():backward()
      assert.same({ 0, 3 }, x.grad.shape)
    end
  end)

  it('of 16-bit tensors have their dtype', function()
    local x = z3.tensor({ 1, 2 }, { dtype = 'bf16' }):requires_grad_()
    z3.sum(x * x):backward()
    assert.equal('bf16', x.grad.dtype)
    same({ 2, 4 }, x.grad)
  end)
end)

