--- autograd_spec.lua -- gradients: every operation against finite differences, accumulation, errors, script operations.
local z3 = require 'z3'
local C  = require('z3.ffi').C
local nodes_left = require('z3.autograd').pending

local F = z3.nn.functional
local STEP, TOLERANCE = 1e-2, 6e-3              -- f32: rounding over the step and the step's square both stay below it

local function fails(code, pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, 'expected an error')
  assert.is_true(z3.is_error(e, code), tostring(e))
  assert.matches(pattern, e.message)
  return e
end

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

describe('autograd', function()
  it('accumulates over backward calls until zero_grad', function()
    local x = z3.tensor({ 3 }):requires_grad_()
    assert.is_nil(x.grad)
    for _ = 1, 2 do z3.sum(x * x):backward() end
    same({ 12 }, x.grad)
    x:zero_grad()
    assert.is_nil(x.grad)
    x.grad = z3.tensor { 1 }
    z3.sum(x * 2):backward()
    same({ 3 }, x.grad)
    x.grad = nil
    assert.is_nil(x.grad)
  end)

  it('sums over all uses of a tensor', function()
    local x = z3.tensor({ 2 }):requires_grad_()
    local y = x * x
    z3.sum(y * x + y):backward()
    same({ 16 }, x.grad)
  end)

  it('takes the gradient of a result that has more than one element', function()
    local x = z3.ones({ 2 }):requires_grad_()
    local y = x * 3
    fails('SHAPE', 'one element', y.backward, y)
    y:backward(z3.tensor { 1, 10 })
    same({ 3, 30 }, x.grad)
    y = x * 3
    fails('SHAPE', '', y.backward, y, z3.ones { 3 })
  end)

  it('records nothing in no_grad, and restores the state when it throws', function()
    local x = z3.ones({ 2 }):requires_grad_()
    assert.is_false(z3.no_grad(function() return (x * 2).requires_grad end))
    fails('ARG', 'stop', z3.no_grad, function() require('z3.error').throw('ARG', 'stop') end)
    assert.is_true((x * 2).requires_grad)
    assert.is_true(z3.no_grad(z3.enable_grad, function() return (x * 2).requires_grad end))
    assert.same({ 1, 2, nil, 4 }, { z3.no_grad(function(...) return ... end, 1, 2, nil, 4) })
  end)

  it('knows leaves, detached tensors and what cannot require a gradient', function()
    local x = z3.ones({ 2 }, { requires_grad = true })
    assert.is_true(x.requires_grad and x.is_leaf)
    local y = x + 1
    assert.is_false(y.is_leaf)
    assert.is_false(y:detach().requires_grad)
    y:detach():fill_(5)
    same({ 5, 5 }, y)
    fails('ARG', 'not a leaf', y.requires_grad_, y)
    fails('DTYPE', 'i64', function() z3.arange(2, ID):requires_grad_() end)
    assert.is_false(x:requires_grad_(false).requires_grad)
    fails('ARG', '', function() (x + 1):sum():backward() end)
  end)

  it('refuses a second backward and saved tensors that changed in place', function()
    local x = z3.ones({ 2 }):requires_grad_()
    local y = (x * x):sum()
    y:backward()
    fails('STALE', 'run forward again', y.backward, y)
    local w = z3.ones { 2 }
    local z = (x * w):sum()
    w:fill_(2)
    fails('STALE', 'changed in place', z.backward, z)
    z = (x * w):sum()
    w:data()[0] = 5
    fails('STALE', 'changed in place', z.backward, z)
    z = (x * w):sum()
    assert.equal(5, w:data('r')[0])
    z:backward()
  end)

  it('goes on when the script frees its handles', function()
    local x = z3.ones({ 2 }):requires_grad_()
    local y = x * 2
    local z = y * y
    local s = z:sum()
    y:free()
    z:free()
    s:backward()
    same({ 8, 8 }, x.grad)
  end)

  it('handles a long chain', function()
    local x = z3.ones({ 1 }):requires_grad_()
    local y = x
    for _ = 1, 20000 do y = y + 1 end
    y:backward()
    same({ 1 }, x.grad)
    y = x
    for _ = 1, 20000 do y = y + 1 end           -- freed without backward
    assert.equal(20001, y:item())
  end)
end)

describe('z3.op', function()
  local square = z3.op {
    name = 'square',
    forward  = function(ctx, x) ctx:save(x); return x * x end,
    backward = function(ctx, grad) local x = ctx:saved(); return grad * x * 2 end,
  }

  it('is usable like any other operation', function()
    local x = z3.tensor({ 1, 2, 3 }):requires_grad_()
    local y = square(square(x) + x):sum()
    y:backward()
    same({ 12, 60, 168 }, x.grad)
    assert.equal(0, nodes_left())
    check_differences('square', function(a) return square(a * 2) end, { z3.tensor({ 0.3, -0.7 }):requires_grad_() })
  end)

  it('records nothing where no gradient is wanted', function()
    local x = z3.ones { 2 }
    assert.is_false(square(x).requires_grad)
    x:requires_grad_()
    assert.is_false(z3.no_grad(square, x).requires_grad)
    assert.equal(0, nodes_left())
  end)

  it('takes several tensors and other arguments, and gives several results', function()
    local both = z3.op {
      name = 'both',
      forward = function(ctx, a, k, b)
        assert.same({ true, false, false }, ctx.needs_grad)
        ctx:save(a, k, b)
        return a * k * b, a + b
      end,
      backward = function(ctx, g1, g2)
        local _, k, b = ctx:saved()
        return g1 * k * b + g2, nil, nil
      end,
    }
    local a, b = z3.tensor({ 1, 2 }):requires_grad_(), z3.tensor { 5, 7 }
    local y, z = both(a, 3, b)
    assert.is_true(y.requires_grad and z.requires_grad)
    y:sum():backward()                          -- z gave nothing: its gradient comes as zeros
    same({ 15, 21 }, a.grad)
  end)

  it('keeps what it saved when a scope ends, and lets go of it without a backward', function()
    local x = z3.tensor({ 2 }):requires_grad_()
    local y = z3.scope(function() return square(x * 3) end)
    y:backward()
    same({ 36 }, x.grad)
    for _ = 1, 100 do square(x) end
    collectgarbage()
    collectgarbage()
    local last = square(x)                      -- recording asks which nodes are gone
    assert.equal(1, nodes_left())
    last:free()
    assert.equal(0, nodes_left())
  end)

  it('works inside a recomputed region', function()
    local x = z3.tensor({ 1, 2 }):requires_grad_()
    local function run(a) return square(a * 2):sigmoid() * a end
    run(x):sum():backward()
    local plain = x.grad:clone()
    x:zero_grad()
    z3.nn.checkpoint(run, x):sum():backward()
    same(plain:totable(), x.grad)
  end)

  it('names itself in errors and leaves nothing half done', function()
    local x = z3.ones({ 2 }):requires_grad_()
    local function bad(backward)
      return z3.op { name = 'bad', forward = function(_, a) return a * 2 end, backward = backward }
    end
    local y = bad(function() return z3.ones { 3 } end)(x):sum()
    fails('SHAPE', 'bad: backward returned a gradient of shape %(3,%) for argument 1', y.backward, y)
    y = bad(function() return 1 end)(x):sum()
    fails('SCRIPT', 'bad: backward returned number', y.backward, y)
    y = bad(function() error('oops', 0) end)(x):sum()
    local ok, e = pcall(y.backward, y)
    assert.is_false(ok)
    assert.equal('oops', e)
    assert.is_true(C.z3_grad_enabled())
    square(x):sum():backward()
    same({ 2, 2 }, x.grad)
    fails('SCRIPT', 'returned nothing', z3.op { name = 'n', forward = function() end, backward = function() end }, x)
    fails('SCRIPT', 'wants tensors', z3.op { name = 'n', forward = function() return 1 end, backward = print }, x)
    fails('ARG', 'did you mean "backward"', z3.op, { forward = print, bakcward = print })
    fails('ARG', 'wants forward and backward', z3.op, { forward = print })
  end)

  it('may run a backward inside its own backward', function()
    local inner = z3.op {
      name = 'inner',
      forward = function(ctx, x) ctx:save(x); return x * x * x end,
      backward = function(ctx, g)
        local x = ctx:saved():clone():requires_grad_()
        z3.enable_grad(function() (x * x * x):sum():backward() end)
        return x.grad * g
      end,
    }
    local x = z3.tensor({ 2 }):requires_grad_()
    z3.sum(inner(x) * 2):backward()
    same({ 24 }, x.grad)
  end)
end)
