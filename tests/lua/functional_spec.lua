--- functional_spec.lua -- z3.nn.functional beyond parity: options, shapes, dtypes, large values, null device, errors.
-- Values and gradients against PyTorch are in parity_ops_spec.lua, finite differences in autograd_spec.lua.
local z3         = require 'z3'
local rng        = require 'z3.random'
local rope_table = require 'z3.rope_table'

local F = z3.nn.functional
local ID = { dtype = 'i64' }

local function fails(code, pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, 'expected an error')
  assert.is_true(z3.is_error(e, code), tostring(e))
  assert.matches(pattern, e.message)
end

local function difference(a, b) return (a:to('f32') - b:to('f32')):abs():max():item() end

local function close(a, b, tolerance)
  assert.same(a.shape, b.shape)
  local d = difference(a, b)
  assert.is_true(d <= (tolerance or 1e-5), ('largest difference %g'):format(d))
end

describe('linear', function()
  it('takes any leading dims, with and without bias, and strided inputs', function()
    local x, w, b = z3.randn { 2, 3, 4 }, z3.randn { 5, 4 }, z3.randn { 5 }
    close(F.linear(x, w, b), x:matmul(w:t()) + b)
    close(F.linear(x[0][0], w, b), w:matmul(x[0][0]) + b)
    local turned = x:transpose(0, 1)
    close(F.linear(turned, w), F.linear(turned:contiguous(), w))
    local wt = w:t():contiguous()
    close(F.conv1d(x, wt, b), F.linear(x, w, b))
    close(F.linear(x, wt:t()), F.linear(x, w))
  end)

  it('names argument and shapes', function()
    fails('SHAPE', 'linear: x %(2,3%) does not fit weight %(5,4%)', F.linear, z3.ones { 2, 3 }, z3.ones { 5, 4 })
    fails('SHAPE', 'bias', F.linear, z3.ones { 2, 4 }, z3.ones { 5, 4 }, z3.ones { 4 })
    fails('DTYPE', 'x is f32 and weight is bf16', F.linear, z3.ones { 2, 4 }, z3.ones({ 5, 4 }, { dtype = 'bf16' }))
    fails('ARG', 'linear: wants a tensor, got nil', F.linear, z3.ones { 2, 4 })
  end)
end)

describe('embedding', function()
  it('takes ids of any shape and both types', function()
    local w = z3.arange(6):view(3, 2)
    assert.same({ { { 4, 5 }, { 0, 1 } } }, F.embedding(z3.tensor({ { 2, 0 } }, ID), w):totable())
    assert.same({ 4, 5 }, F.embedding(z3.tensor(2, { dtype = 'i32' }), w):totable())
    assert.same({ 0, 2 }, F.embedding(z3.zeros({ 0 }, ID), w).shape)
  end)

  it('refuses ids out of range, with value and range', function()
    local w = z3.zeros { 3, 2 }
    fails('ARG', 'embedding.*3', F.embedding, z3.tensor({ 0, 3 }, ID), w)
    fails('ARG', 'embedding.*%-1', F.embedding, z3.tensor({ -1 }, ID), w)
    fails('DTYPE', 'ids is f32', F.embedding, z3.ones { 2 }, w)
  end)
end)

describe('norms', function()
  it('stay right for large offsets and in 16 bits', function()
    local x = z3.randn { 4, 64 } + 1000
    local y = F.layer_norm(x)
    close(y:mean(-1), z3.zeros { 4 }, 1e-3)
    close(y:var(-1, false, 0), z3.ones { 4 }, 1e-3)
    local h = F.rms_norm(x:to('bf16'), z3.ones { 64 })
    assert.equal('bf16', h.dtype)
    close(h, F.rms_norm(x:to('bf16'):to('f32'), z3.ones { 64 }), 1e-2)
  end)

  it('refuse a weight of another width', function()
    fails('SHAPE', 'layer_norm: weight %(3,%)', F.layer_norm, z3.ones { 2, 4 }, z3.ones { 3 })
    fails('SHAPE', 'rms_norm', F.rms_norm, z3.ones { 2, 4 }, z3.ones { 3 })
  end)
end)

describe('softmax', function()
  it('works along any dim and for large values', function()
    local x = z3.tensor { { 1e4, 1e4 - 1 }, { -3e4, -3e4 + 2 } }
    close(x:softmax(0):sum(0), z3.ones { 2 })
    close(F.softmax(x, 1)[0], z3.tensor { 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1)) })
    close(F.softmax(x, 1), F.log_softmax(x, 1):exp())
    fails('ARG', 'softmax: dim is 2', F.softmax, x, 2)
    fails('DTYPE', 'softmax', F.softmax, z3.ones({ 2 }, ID))
  end)
end)

describe('dropout', function()
  it('zeroes a share p and scales the rest', function()
    z3.manual_seed(4)
    local y = F.dropout(z3.ones { 20000 }, 0.25)
    local zeros = y:eq(0):sum():item()
    assert.is_true(math.abs(zeros / 20000 - 0.25) < 0.02, zeros)
    assert.is_true(math.abs(y:max():item() - 1 / 0.75) < 1e-6)
    assert.equal(0, F.dropout(z3.ones { 10 }, 1):sum():item())
  end)

  it('is the identity when it is off', function()
    local x = z3.ones { 3 }
    assert.equal(x, F.dropout(x, 0))
    assert.equal(x, F.dropout(x, 0.5, false))
    fails('ARG', 'p is 1.5', F.dropout, x, 1.5)
    fails('ARG', 'p is nil', F.dropout, x)
  end)

  it('depends on seed, position and call, and a position can be taken up again', function()
    local x = z3.ones { 1000 }
    local function mask() return F.dropout(x, 0.5) end
    z3.manual_seed(9)
    rng.set_position(3, 1)
    local a, b = mask(), mask()
    assert.is_true(difference(a, b) > 0)
    rng.set_position(3, 2)
    assert.is_true(difference(a, mask()) > 0)
    rng.set_position(4, 1)
    assert.is_true(difference(a, mask()) > 0)
    rng.set_position(3, 1)
    assert.equal(0, difference(a, mask()))
    local state = rng.state()
    local c = mask()
    rng.clear_position()
    assert.is_true(difference(b, mask()) > 0)
    rng.set_state(state)
    assert.equal(0, difference(c, mask()))
    assert.equal(0, difference(b, c))
    rng.clear_position()
    z3.manual_seed(0)
  end)

  it('repeats its mask in a recomputed region', function()
    z3.manual_seed(1)
    local x = z3.ones({ 500 }):requires_grad_()
    local y = z3.nn.checkpoint(function(a) return F.dropout(a * 1, 0.5) * 3 end, x)
    y:sum():backward()
    assert.equal(0, difference(y:detach(), x.grad))
  end)
end)

describe('rope', function()
  after_each(rope_table.clear)

  it('turns positions 0, 1, ... unless told; start and positions agree', function()
    local x = z3.randn { 2, 3, 5, 8 }
    local y = F.rope(x)
    close(y:select(2, 0), x:select(2, 0))
    local p = z3.tensor({ { 0, 1, 2, 3, 4 }, { 0, 1, 2, 3, 4 } }, { dtype = 'i32' })
    assert.equal(0, difference(y, F.rope(x, { positions = p })))
    assert.equal(0, difference(y, F.rope(x, { positions = z3.arange(5, ID) })))
    assert.equal(0, difference(F.rope(x, { start = 300 }), F.rope(x, { positions = p + 300 })))
    close((y * y):sum(-1), (x * x):sum(-1), 1e-4)
  end)

  it('takes scaling in both spellings of Hugging Face', function()
    local x = z3.randn { 1, 1, 4, 8 }
    local linear = { type = 'linear', factor = 2 }
    close(F.rope(x, { start = 10, scaling = linear }):select(2, 0), F.rope(x, { start = 5 }):select(2, 0))
    local default = { rope_type = 'default', rope_theta = 5e5 }
    assert.equal(0, difference(F.rope(x, { theta = 5e5 }), F.rope(x, { scaling = default })))
    fails('UNSUPPORTED', 'yarn', F.rope, x, { scaling = { rope_type = 'yarn' } })
    fails('ARG', 'scaling.factor is nil', F.rope, x, { scaling = { type = 'linear' } })
  end)

  it('refuses odd widths, wrong dims and unknown options', function()
    fails('SHAPE', 'D even', F.rope, z3.zeros { 1, 1, 2, 3 })
    fails('SHAPE', 'wants %(B,H,T,D%)', F.rope, z3.zeros { 1, 2, 4 })
    fails('ARG', 'did you mean "theta"', F.rope, z3.zeros { 1, 1, 2, 4 }, { thete = 1 })
    fails('ARG', 'a position is %-1', F.rope, z3.zeros { 1, 1, 1, 4 }, { positions = z3.tensor({ { -1 } }, ID) })
  end)
end)

describe('scaled_dot_product_attention', function()
  local function plain(q, k, v, visible, scale)
    local scores = q:matmul(k:transpose(2, 3)) * (scale or 1 / math.sqrt(q.shape[4]))
    return scores:masked_fill(visible:eq(0), -math.huge):softmax(-1):matmul(v)
  end

  it('equals the plain formula, causal or masked or both', function()
    local q, k, v = z3.randn { 2, 4, 6, 8 }, z3.randn { 2, 4, 6, 8 }, z3.randn { 2, 4, 6, 8 }
    local causal = z3.ones({ 6, 6 }, { dtype = 'u8' }):tril()
    local mask = z3.tensor({ { 1, 0, 1, 1, 0, 1 }, { 1, 1, 1, 0, 0, 1 } }, { dtype = 'u8' }):view(2, 1, 1, 6)
    local all = z3.ones({ 6, 6 }, { dtype = 'u8' })
    close(F.scaled_dot_product_attention(q, k, v), plain(q, k, v, all), 1e-4)
    close(F.scaled_dot_product_attention(q, k, v, { causal = true }), plain(q, k, v, causal), 1e-4)
    close(F.scaled_dot_product_attention(q, k, v, { mask = mask, scale = 0.3 }), plain(q, k, v, mask, 0.3), 1e-4)
    close(F.scaled_dot_product_attention(q, k, v, { mask = mask, causal = true }), plain(q, k, v, mask * causal), 1e-4)
    close(F.scaled_dot_product_attention(q, k, v, { mask = mask:to('i32') }), plain(q, k, v, mask), 1e-4)
  end)

  it('shares key heads: query head h uses h div (H/K)', function()
    local q, k, v = z3.randn { 1, 4, 5, 8 }, z3.randn { 1, 2, 5, 8 }, z3.randn { 1, 2, 5, 8 }
    local wide = function(t) return t:index_select(1, { 0, 0, 1, 1 }) end
    close(F.scaled_dot_product_attention(q, k, v, { causal = true }),
      F.scaled_dot_product_attention(q, wide(k), wide(v), { causal = true }))
    fails('SHAPE', 'attention', F.scaled_dot_product_attention, q, z3.randn { 1, 3, 5, 8 }, z3.randn { 1, 3, 5, 8 })
  end)

  it('gives 0 and no gradient where nothing is visible', function()
    local q = z3.randn({ 1, 1, 2, 4 }):requires_grad_()
    local k, v = z3.randn({ 1, 1, 3, 4 }):requires_grad_(), z3.randn({ 1, 1, 3, 4 }):requires_grad_()
    local mask = z3.tensor({ { 0, 0, 0 }, { 1, 1, 1 } }, { dtype = 'u8' })
    local y = F.scaled_dot_product_attention(q, k, v, { mask = mask })
    assert.equal(0, y:select(2, 0):abs():max():item())
    y:sum():backward()
    assert.equal(0, q.grad:select(2, 0):abs():max():item())
    assert.is_true(q.grad:isfinite():min():item() == 1 and k.grad:isfinite():min():item() == 1)
  end)

  it('refuses unknown options', function()
    local q = z3.randn { 1, 1, 2, 4 }
    fails('ARG', 'did you mean "causal"', F.scaled_dot_product_attention, q, q, q, { casual = true })
    fails('DTYPE', 'mask', F.scaled_dot_product_attention, q, q, q, { mask = z3.ones { 2, 2 } })
  end)
end)

describe('cross_entropy', function()
  it('gives mean, sum with its count, or one loss per target', function()
    local x, t = z3.randn { 5, 7 }, z3.tensor({ 1, -100, 6, 0, -100 }, ID)
    local sum, count = F.cross_entropy(x, t, { reduction = 'sum' })
    assert.equal(3, count)
    assert.equal('number', type(count))
    close(F.cross_entropy(x, t), sum / 3)
    local rows = F.cross_entropy(x, t, { reduction = 'none' })
    assert.same({ 5 }, rows.shape)
    assert.equal(0, rows[1]:item())
    close(rows:sum(), sum)
    close(rows[0], -x:log_softmax(-1)[0][1])
    local _, one = F.cross_entropy(x:narrow(0, 2, 2), t:narrow(0, 2, 2), { reduction = 'sum', ignore_index = 6 })
    assert.equal(1, one)
  end)

  it('takes (B,T,V) with (B,T), bf16 logits and i32 targets', function()
    local x, t = z3.randn { 2, 3, 7 }, z3.tensor({ { 1, 2, 3 }, { 4, -100, 0 } }, { dtype = 'i32' })
    close(F.cross_entropy(x, t), F.cross_entropy(x:view(6, 7), t:view(6)))
    assert.same({ 2, 3 }, F.cross_entropy(x, t, { reduction = 'none' }).shape)
    local low = F.cross_entropy(x:to('bf16'), t)
    assert.equal('f32', low.dtype)
    close(low, F.cross_entropy(x, t), 2e-2)
  end)

  it('of ignored targets only is 0, with no gradient', function()
    local x = z3.randn({ 2, 3 }):requires_grad_()
    local sum, count = F.cross_entropy(x, z3.full({ 2 }, -100, ID), { reduction = 'sum' })
    assert.equal(0, sum:item())
    assert.equal(0, count)
    sum:backward()
    assert.equal(0, x.grad:abs():max():item())
  end)

  it('refuses targets out of range, with value and range', function()
    fails('ARG', '7', F.cross_entropy, z3.zeros { 2, 7 }, z3.tensor({ 0, 7 }, ID))
    fails('ARG', '%-1', F.cross_entropy, z3.zeros { 2, 7 }, z3.tensor({ 0, -1 }, ID))
    fails('DTYPE', 'targets is f32', F.cross_entropy, z3.zeros { 2, 7 }, z3.zeros { 2 })
    fails('SHAPE', 'targets %(3,%)', F.cross_entropy, z3.zeros { 2, 7 }, z3.zeros({ 3 }, ID))
    fails('ARG', 'did you mean "mean"', F.cross_entropy, z3.zeros { 2, 7 }, z3.zeros({ 2 }, ID), { reduction = 'meen' })
    local x, t = z3.zeros { 2, 7 }, z3.zeros({ 2 }, ID)
    fails('ARG', 'did you mean "reduction"', F.cross_entropy, x, t, { reduce = 'sum' })
  end)
end)

describe('linear_cross_entropy', function()
  it('equals linear and cross_entropy, values and gradients', function()
    for _, dtype in ipairs { 'f32', 'bf16' } do
      local x = z3.randn({ 37, 16 }):to(dtype):requires_grad_()
      local w = (z3.randn { 50, 16 } * 0.3):to(dtype):requires_grad_()
      local t = z3.arange(37, ID)
      t[3] = -100
      local tolerance = dtype == 'f32' and 1e-5 or 2e-2
      local s1, n1 = F.linear_cross_entropy(x, w, t, { reduction = 'sum' })
      s1:backward()
      local gx, gw = x.grad, w.grad
      x.grad, w.grad = nil, nil
      local s2, n2 = F.cross_entropy(F.linear(x, w), t, { reduction = 'sum' })
      s2:backward()
      assert.equal(n2, n1)
      close(s1 / 37, s2 / 37, tolerance)
      close(gx, x.grad, tolerance * 4)
      close(gw, w.grad, tolerance * 10)
    end
  end)

  it('takes (B,T,C) with (B,T), and refuses targets out of range', function()
    local x, w = z3.randn { 2, 3, 4 }, z3.randn { 5, 4 }
    local t = z3.tensor({ { 0, 1, 2 }, { 3, 4, -100 } }, ID)
    close(F.linear_cross_entropy(x, w, t), F.cross_entropy(F.linear(x, w), t))
    fails('ARG', '5', F.linear_cross_entropy, x, w, z3.full({ 2, 3 }, 5, ID))
  end)
end)

describe('mse_loss', function()
  it('is the mean squared difference of equal shapes', function()
    assert.equal(2.5, F.mse_loss(z3.tensor { 1, 2 }, z3.tensor { 2, 4 }):item())
    assert.equal(1, F.mse_loss(z3.tensor { 1, 3 }, 2):item())
    fails('SHAPE', 'wants equal shapes', F.mse_loss, z3.ones { 2 }, z3.ones { 2, 1 })
  end)
end)

describe('on the null device', function()
  it('every operation gives the shape and dtype that the cpu gives', function()
    local function run(device)
      local o, ids = { device = device }, { dtype = 'i64', device = device }
      local x = z3.randn({ 2, 3, 8 }, o):requires_grad_()
      local w = z3.randn({ 8, 8 }, o):requires_grad_()
      local h = F.layer_norm(F.linear(x, w), z3.ones({ 8 }, o))
      h = F.dropout(F.gelu(F.rms_norm(h)), 0.1)
      local q = h:view(2, 3, 2, 4):transpose(1, 2)
      local y = F.scaled_dot_product_attention(F.rope(q), q, q, { causal = true })
      y = y:transpose(1, 2):reshape(2, 3, 8)
      local loss, count = F.linear_cross_entropy(y, w, z3.zeros({ 2, 3 }, ids), { reduction = 'sum' })
      loss:backward()
      return { y.shape, loss.shape, count, x.grad.shape, w.grad.shape, w.grad.dtype, y.dtype }
    end
    assert.same(run 'cpu', run 'null')
    rope_table.clear()
  end)
end)
