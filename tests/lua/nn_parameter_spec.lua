-- nn_parameter_spec.lua -- parameters and their initial values.
local z3 = require 'z3'
local C  = require('z3.ffi').C

local nn, F = z3.nn, z3.nn.functional

local function fails(code, pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, 'expected an error')
  assert.is_true(z3.is_error(e), tostring(e))
  assert.equal(code, e.code, tostring(e))
  assert.matches(pattern, e.message)
  return e
end

local function values(t)
  local flat = t:full():view(t:numel())
  return flat:totable()
end

describe('nn.Parameter', function()
  it('is a declaration until it is used', function()
    local p = nn.Parameter({ 3, 4 }, { init = 'ones', name = 'mine' })
    local before = tonumber(C.z3_tensor_live())
    assert.equal('released', p.status)
    assert.same({ 3, 4 }, p.shape)
    assert.equal(12, p:numel())
    assert.equal(2, p.ndim)
    assert.equal('f32', p.dtype)
    assert.equal(before, tonumber(C.z3_tensor_live()))
    assert.equal(12, p:sum():item())
    assert.equal('available', p.status)
    assert.equal('mine', p.name)
    assert.matches('mine  parameter %(3,4%) f32  available', tostring(p))
  end)

  it('acts as a tensor in operators, functions and methods', function()
    local w = nn.Parameter({ 2, 3 }, { init = { 'constant', value = 2 } })
    local x = z3.ones { 4, 3 }
    assert.equal(6, F.linear(x, w):totable()[1][1])
    assert.equal(3, (w + 1):totable()[1][1])
    assert.equal(1, (3 - w):totable()[1][1])
    assert.equal(-2, (-w):totable()[1][1])
    assert.equal(4, (w * w):max():item())
    assert.equal(2, w[0]:totable()[1])
    assert.equal(2, w:data()[0])
    assert.equal('cpu', w.device)
  end)

  it('takes the values of a tensor', function()
    local t = z3.tensor { 1, 2, 3 }
    local p = nn.Parameter(t)
    t:fill_(0)
    assert.same({ 1, 2, 3 }, p:full():totable())
    assert.is_true(p.requires_grad)
  end)

  it('gives its gradient as an independent f32 copy, nil when there is none', function()
    local p = nn.Parameter({ 2 }, { init = 'ones' })
    assert.is_nil(p:grad())
    ;(p * z3.tensor { 3, 4 }):sum():backward()
    assert.same({ 3, 4 }, p:grad():totable())
    p:grad():fill_(0)
    assert.same({ 3, 4 }, p:grad():totable())
    ;(p * 1):sum():backward()
    assert.same({ 4, 5 }, p:grad():totable())
    p:zero_grad()
    assert.is_nil(p:grad())
  end)

  it('can be frozen', function()
    local p, q = nn.Parameter({ 1 }, { init = 'ones', requires_grad = false }), nn.Parameter({ 1 }, { init = 'ones' })
    ;(p * q):sum():backward()
    assert.is_nil(p:grad())
    assert.same({ 1 }, q:grad():totable())
    p:requires_grad_()
    q:requires_grad_(false)
    ;(p * q):sum():backward()
    assert.same({ 1 }, p:grad():totable())
    assert.matches('frozen', tostring(q))
  end)

  it('in bf16 starts from the f32 values, rounded', function()
    z3.manual_seed(5)
    local a = nn.Parameter({ 50 }, { init = 'normal', name = 'w' }):full():to 'bf16'
    z3.manual_seed(5)
    local p = nn.Parameter({ 50 }, { init = 'normal', name = 'w', dtype = 'bf16' })
    assert.equal('bf16', p.dtype)
    assert.equal(0, (p:full() - a:to 'f32'):abs():max():item())
    assert.equal('bf16', p.dtype)
  end)

  it('refuses bad shapes, options and dtypes', function()
    fails('ARG', 'dim 1 of the shape is %-2', nn.Parameter, { 2, -2 })
    fails('ARG', 'shape is 3', nn.Parameter, 3)
    fails('ARG', 'did you mean "dtype"', nn.Parameter, { 2 }, { dtyp = 'f32' })
    fails('ARG', 'init is norml.*did you mean "normal"', nn.Parameter, { 2 }, { init = 'norml' })
    fails('ARG', 'init normal has no option "sd".*std', nn.Parameter, { 2 }, { init = { 'normal', sd = 1 } })
    fails('ARG', 'dtype', nn.Parameter, { 2 }, { dtype = 'i32' })
  end)
end)

describe('initial values', function()
  local function net() return nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)) end

  it('depend on seed, ordinal of the root, name and element only', function()
    z3.manual_seed(7)
    local a = net()
    local first = values(a[1].weight)
    local last = values(a[2].weight)
    local second_root = values(net()[1].weight)
    z3.manual_seed(7)
    local b = net()
    z3.randn { 100 }                                    -- other streams don't move this one
    assert.same(last, values(b[2].weight))              -- nor does the order of first use
    assert.same(first, values(b[1].weight))
    assert.not_same(first, second_root)
    assert.same(second_root, values(net()[1].weight))
    z3.manual_seed(8)
    assert.not_same(first, values(net()[1].weight))
    assert.not_same(values(nn.Linear(4, 4).weight), values(nn.Linear(4, 4).weight))
  end)

  it('can be written in part: a shard has the values that the whole has', function()
    z3.manual_seed(3)
    local p = nn.Parameter({ 5, 7 }, { init = 'normal', name = 'w' })
    local whole = values(p)
    for _, part in ipairs { { 0, 35 }, { 0, 1 }, { 3, 18 }, { 30, 5 } } do
      local t = z3.zeros { part[2] }
      p:fill_initial(t.h, part[1])
      for i, v in ipairs(t:totable()) do assert.equal(whole[part[1] + i], v) end
    end
    local f = nn.Parameter({ 4 }, { init = function(t) t:copy_(z3.tensor { 1, 2, 3, 4 }) end })
    local t = z3.zeros { 2 }
    f:fill_initial(t.h, 1)
    assert.same({ 2, 3 }, t:totable())
    assert.same({ 1, 2, 3, 4 }, values(f))
  end)

  it('have the distributions that their names say', function()
    z3.manual_seed(11)
    local function stats(init, shape)
      local t = nn.Parameter(shape or { 200, 100 }, { init = init }):full()
      return t:mean():item(), t:std():item(), t:min():item(), t:max():item()
    end
    local function near(want, got, tolerance) assert.is_true(math.abs(want - got) < tolerance, want .. ' ' .. got) end
    -- init, then mean, std, smallest and largest value; false: not bounded
    local uniform, glorot = math.sqrt(6 / 100), math.sqrt(6 / 300)
    for _, case in ipairs {
      { { 'normal', mean = 1, std = 0.5 }, 1, 0.5, false },
      { { 'uniform', low = -1, high = 3 }, 1, 4 / math.sqrt(12), -1, 3 },
      { { 'trunc_normal', std = 0.1 }, 0, 0.088, -0.2, 0.2 },
      { 'kaiming_uniform', 0, uniform / math.sqrt(3), -uniform, uniform },
      { 'kaiming_normal', 0, math.sqrt(2 / 100), false },
      { 'xavier_uniform', 0, glorot / math.sqrt(3), -glorot, glorot },
      { 'xavier_normal', 0, math.sqrt(2 / 300), false },
    } do
      local mean, std, low, high = stats(case[1])
      near(case[2], mean, 0.03 * case[3])
      near(case[3], std, 0.03 * case[3])
      if case[4] then
        near(case[4], low, 0.01 * case[3])
        near(case[5], high, 0.01 * case[3])
      end
    end
    assert.equal(1, (stats('ones', { 4 })))
    assert.equal(0.25, (stats(0.25, { 4 })))
    fails('ARG', 'wants a shape of two dims', stats, 'kaiming_uniform', { 4 })
  end)

  it('of layers are those of PyTorch', function()
    local l = nn.Linear(64, 32)
    local bound = 1 / 8
    for _, p in ipairs { l.weight, l.bias } do
      local high = p:full():abs():max():item()
      assert.is_true(high <= bound and high > 0.8 * bound, tostring(high))
    end
    local c = nn.Conv1D(64, 32)
    assert.same({ 64, 32 }, c.weight.shape)
    assert.is_true(math.abs(c.weight:full():std():item() - 0.02) < 0.002)
    assert.equal(0, c.bias:full():abs():max():item())
    assert.equal(1, nn.LayerNorm(3).weight:full():mean():item())
  end)
end)
