--- tensor_torch_spec.lua -- where a PyTorch user would notice a difference: promotion, powers of integers, tensors
-- without dims, ties, argument forms, and sizes that no memory holds. Values are PyTorch's (2.x, CPU).
local z3 = require 'z3'
local F  = z3.nn.functional

local function same(want, t) assert.same(want, t:totable()) end

local function fails(code, text, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, 'no error')
  assert.is_true(z3.is_error(e), tostring(e))
  assert.equal(code, e.code, tostring(e))
  assert.truthy(e.message:find(text, 1, true), tostring(e))
end

local function leaf(data) return z3.tensor(data, { requires_grad = true }) end

describe('promotion', function()
  local function typed(dtype, shape) return z3.ones(shape or { 2 }, { dtype = dtype }) end

  it('of two tensors with dims', function()
    for _, c in ipairs { { 'bf16', 'f32', 'f32' }, { 'f16', 'bf16', 'f32' }, { 'bf16', 'i64', 'bf16' },
                         { 'u8', 'i32', 'i32' }, { 'i32', 'i64', 'i64' }, { 'u8', 'f16', 'f16' } } do
      local a, b = typed(c[1]), typed(c[2])
      for _, t in ipairs { a + b, b * a, z3.maximum(a, b), z3.cat { a, b }, z3.stack { b, a },
                           z3.where(a:gt(0), a, b) } do
        assert.equal(c[3], t.dtype, c[1] .. ' and ' .. c[2])
      end
    end
  end)

  it('of a tensor without dims: only from integer to float', function()
    for _, c in ipairs { { 'bf16', 'f32', 'bf16' }, { 'f16', 'f32', 'f16' }, { 'f32', 'bf16', 'f32' },
                         { 'i32', 'i64', 'i32' }, { 'i64', 'f16', 'f16' }, { 'u8', 'f32', 'f32' } } do
      local a, b = typed(c[1]), typed(c[2], {})
      for _, t in ipairs { a + b, b + a, a * b, b - a, z3.minimum(b, a), z3.where(a:gt(0), b, a) } do
        assert.equal(c[3], t.dtype, c[1] .. ' and ' .. c[2] .. ' without dims')
      end
    end
    assert.equal('f32', (typed('bf16', {}) + typed('f32', {})).dtype)
    local x, scale = z3.tensor({ 1, 2 }, { dtype = 'bf16', requires_grad = true }), leaf(3);
    (x * scale):sum():backward()
    assert.equal('bf16', x.grad.dtype)
    same({ 3, 3 }, x.grad)
    assert.equal('f32', scale.grad.dtype)
    assert.equal(3, scale.grad:item())
  end)
end)

describe('integers', function()
  it('stay integers under whole powers', function()
    local t = z3.tensor({ -3, 0, 2 ^ 31 + 1 }, { dtype = 'i64' })
    for _, dtype in ipairs { 'i32', 'i64', 'u8' } do
      assert.equal(dtype, (z3.ones({ 2 }, { dtype = dtype }) ^ 3).dtype)
    end
    same({ 9, 0, 4611686022722355201 }, t ^ 2)
    same({ 1, 1, 1 }, t:pow(0))
    same({ -27, 0 }, t:narrow(0, 0, 2):pow(3))
    same({ 1, 2, 8 }, 2 ^ z3.tensor({ 0, 1, 3 }, { dtype = 'i32' }))
    same({ 1, -1, 1 }, (-1) ^ z3.tensor({ 0, 1, 2 }, { dtype = 'u8' }))
    local base, power = z3.tensor({ 2, 5, 3, -1 }, { dtype = 'i32' }), z3.tensor({ 3, 0, -1, -3 }, { dtype = 'i32' })
    same({ 8, 1, 0, -1 }, base:pow(power))
    assert.equal('f32', t:pow(0.5).dtype)
    same({ 0.5, 0.25 }, z3.tensor({ 2, 4 }, { dtype = 'i32' }) ^ -1)
  end)

  it('multiply as matrices, exactly', function()
    local big = 2 ^ 40
    local a = z3.tensor({ { big, 1 }, { 2, 3 } }, { dtype = 'i64' })
    local b = z3.tensor({ { 1, 3 }, { 5, -7 } }, { dtype = 'i64' })
    same({ { big + 5, 3 * big - 7 }, { 17, -15 } }, a:matmul(b))
    assert.equal('i32', a:to('i32'):matmul(b:to('i32')).dtype)
    same({ 6, -4 }, z3.ones({ 2 }, { dtype = 'i64' }):matmul(b))
    local none = z3.zeros({ 3, 2, 4 }, { dtype = 'i32' }):matmul(z3.zeros({ 4, 0 }, { dtype = 'i32' }))
    assert.same({ 3, 2, 0 }, none.shape)
    local wide = z3.arange(400 * 300, { dtype = 'i64' }):view(400, 300)
    z3.memory.reset_peak()
    local product = wide:matmul(wide:t())
    assert.is_true(z3.memory.stats().peak < 100 * 2 ^ 20)
    assert.equal(8955050, product[0][0]:item())
    assert.equal(119700 * 44850 + 8955050, product[399][0]:item())
    fails('DTYPE', 'matmul', z3.matmul, a, b:to('i32'))
    assert.is_false(pcall(z3.matmul, a, z3.zeros({ 3, 2 }, { dtype = 'i64' })))
  end)

  it('become f32 at a bound with a fraction', function()
    local t = z3.tensor({ -2, 0, 2 }, { dtype = 'i32' })
    same({ -1.5, 0, 1.5 }, t:clamp(-1.5, 1.5))
    same({ 0.5, 0.5, 2 }, z3.maximum(t, 0.5))
    assert.equal('i32', t:clamp(-1, math.huge).dtype)
  end)
end)

describe('tensors without dims', function()
  it('have one place along dim 0 and -1', function()
    local t = leaf(3)
    for _, dim in ipairs { 0, -1 } do
      assert.equal(1, t:softmax(dim):item())
      assert.equal(0, t:log_softmax(dim):item())
      assert.equal(3, t:cumsum(dim):item())
      local v, p = t:sort(dim)
      assert.equal(3, v:item())
      assert.equal(0, p:item())
      assert.same({}, v.shape)
      v, p = t:topk(1, dim)
      assert.equal(3, v:item())
      assert.same({}, p.shape)
      assert.equal(0, t:argsort(dim):item())
    end
    (t:sort() * 2):backward()
    assert.equal(2, t.grad:item())
    fails('ARG', 'topk', t.topk, t, 2)
    fails('ARG', 'dim is 1', t.sort, t, 1)
  end)
end)

describe('gradients at ties', function()
  it('are shared by max and min of a whole tensor, and go to the first along a dim', function()
    local x = leaf { { 1, 3 }, { 3, 2 } }
    x:max():backward()
    same({ { 0, 0.5 }, { 0.5, 0 } }, x.grad)
    x.grad = nil;
    (z3.min(x) * 4):backward()
    same({ { 4, 0 }, { 0, 0 } }, x.grad)
    x = leaf { { 3, 3 }, { 1, 2 } };
    (x:max(1)):sum():backward()
    same({ { 1, 0 }, { 0, 1 } }, x.grad)
    x = z3.tensor({ 2, 2, 1 }, { dtype = 'bf16', requires_grad = true })
    x:max():backward()
    same({ 0.5, 0.5, 0 }, x.grad)
    x = leaf { 1, 0 / 0, 2 }
    x:max():backward()
    same({ 0, 1, 0 }, x.grad)
    assert.equal(2, z3.no_grad(function() return leaf({ 1, 2 }):max() end):item())
  end)

  it('of a standard deviation of 0 are 0', function()
    local x = leaf { { 2, 2 }, { 1, 3 } }
    x:std(1):sum():backward()
    local g = x.grad:totable()
    assert.same({ 0, 0 }, g[1])
    assert.near(-0.70710678, g[2][1], 1e-6)
    assert.near(0.70710678, g[2][2], 1e-6)
  end)
end)

describe('argument forms', function()
  it('of cat and stack', function()
    local a, b = z3.tensor { { 1 }, { 2 } }, z3.tensor { { 3 }, { 4 } }
    local want = { { 1, 3 }, { 2, 4 } }
    same(want, z3.cat({ a, b }, 1))
    same(want, a:cat({ b }, 1))
    same(want, a:cat(b, -1))
    same({ { { 1 }, { 2 } }, { { 3 }, { 4 } } }, a:stack(b))
    same({ { { 1, 3 } }, { { 2, 4 } } }, z3.stack({ a, b }, -1))
    same({ { 1 }, { 2 } }, z3.cat { z3.zeros { 0 }, a })
    same({}, z3.cat { z3.zeros { 0 }, z3.zeros { 0 } })
    fails('ARG', 'at least one', z3.cat, {})
    fails('ARG', 'at least one', z3.cat)
    fails('ARG', 'wants a tensor', z3.cat, { a, 5 })
  end)

  it('of keepdim: true or false, so that dims one by one are not taken for it', function()
    local t = z3.ones { 2, 3 }
    assert.same({ 1, 3 }, t:sum(0, true).shape)
    assert.same({ 3 }, t:sum(0, false).shape)
    for _, name in ipairs { 'sum', 'mean', 'max', 'argmax', 'var', 'std' } do
      fails('ARG', 'keepdim is 1', t[name], t, 0, 1)
    end
  end)

  it('of very many tensors', function()
    local many = {}
    for i = 1, 2500 do many[i] = z3.full({ 1 }, i) end
    local all = z3.cat(many)
    assert.same({ 2500 }, all.shape)
    assert.equal(2500 * 2501 / 2, all:sum():item())
    assert.same({ 2500, 1 }, z3.stack(many).shape)
    assert.equal(2500, (select('#', all:split(1))))
    fails('ARG', 'too many results', z3.split, z3.zeros { 5000 }, 1)
  end)

  it('of einsum, with an index twice in one operand', function()
    local a = z3.arange(9):view(3, 3)
    same({ 0, 4, 8 }, z3.einsum('ii->i', a))
    assert.equal(12, z3.einsum('ii', a):item())
    same({ { 0, 3, 6 }, { 1, 4, 7 }, { 2, 5, 8 } }, a:einsum('ij->ji'))
    same({ 0, 40, 160 }, a:einsum('ii,i->i', z3.tensor { 1, 10, 20 }))
    local x = leaf { { 1, 2 }, { 3, 4 } }
    z3.einsum('ii->', x):backward()
    same({ { 1, 0 }, { 0, 1 } }, x.grad)
    fails('SHAPE', 'sizes 2 and 3', z3.einsum, 'ii->i', z3.zeros { 2, 3 })
  end)
end)

describe('products of repeated matrices', function()
  it('equal those of copies', function()
    for _, c in ipairs { { { 2, 1, 3, 4 }, { 1, 4, 2 }, { 5, 4, 2 } }, { { 1, 2, 3 }, { 1, 3, 2 }, { 4, 3, 2 } } } do
      local a, b = z3.randn(c[1]), z3.randn(c[2])
      local wide = b:expand(c[3])
      same(a:matmul(wide:clone()):totable(), a:matmul(wide))
    end
  end)
end)

describe('copy_', function()
  it('between views of the same values reads them as they were', function()
    local t = z3.arange(4):view(2, 2)
    t:copy_(t:t())
    same({ { 0, 2 }, { 1, 3 } }, t)
    local n = 100000
    for _, shift in ipairs { 1, -1, 7 } do
      local x = z3.arange(n)
      local to, from = math.max(shift, 0), math.max(-shift, 0)
      x:narrow(0, to, n - math.abs(shift)):copy_(x:narrow(0, from, n - math.abs(shift)))
      local want = z3.arange(n)
      want:narrow(0, to, n - math.abs(shift)):copy_(z3.arange(n):narrow(0, from, n - math.abs(shift)):clone())
      assert.equal(0, (x - want):abs():max():item(), 'shift ' .. shift)
    end
    local row = z3.arange(3)
    local square = z3.cat { row, row, row }:view(3, 3)
    square:copy_(square[1])
    same({ { 0, 1, 2 }, { 0, 1, 2 }, { 0, 1, 2 } }, square)
    same({ 1, 2 }, (function(v) return v:copy_(v) end)(z3.tensor { 1, 2 }))
  end)
end)

describe('causal attention', function()
  it('lets query t see keys 0 to t, however many there are', function()
    for _, size in ipairs { { 3, 5 }, { 5, 3 }, { 1, 4 }, { 40, 90 } } do
      local n, s = size[1], size[2]
      local q, k, v = z3.randn { 1, 2, n, 8 }, z3.randn { 1, 2, s, 8 }, z3.randn { 1, 2, s, 8 }
      local mask = z3.arange(s):view(1, s):le(z3.arange(n):view(n, 1))
      local d = F.scaled_dot_product_attention(q, k, v, { causal = true })
        - F.scaled_dot_product_attention(q, k, v, { mask = mask })
      assert.is_true(d:abs():max():item() < 1e-6)
    end
  end)
end)

describe('what no tensor can be', function()
  it('is refused, and the process lives', function()
    fails('OOM', '2^62', z3.zeros, { 2 ^ 62 })
    fails('ARG', 'below 2^63', z3.zeros, { 2 ^ 63 })
    fails('ARG', 'whole number', z3.zeros, { 0 / 0 })
    fails('ARG', 'stop is inf', z3.arange, math.huge)
    fails('OOM', '2^62', function() return z3.zeros({ 1 }):expand(2 ^ 40, 2 ^ 40) end)
    fails('OOM', 'out of memory', function() return z3.zeros({ 1 }):expand(2 ^ 60):clone() end)
    fails('ARG', 'holes', z3.tensor, { 1, nil, 3 })
    fails('ARG', 'holes', z3.tensor, { { 1, 2 }, { 1, x = 2 } })
    fails('ARG', 'holes', z3.tensor, { a = 1 })
    fails('IO', 'directory', z3.from_file, '/tmp', { 1 }, 'u8')
    fails('IO', '(4611686018427387904,)', z3.from_file, 'README.md', { 2 ^ 62 }, 'f32')
    assert.equal(6, z3.arange(4):sum():item())
  end)
end)
