--- autograd_spec.lua -- recording, accumulation, errors, and operations written in Lua. Gradients of each operation are
-- checked in gradcheck_spec.lua.
local z3 = require 'z3'
local C  = require('z3.ffi').C
local nodes_left = require('z3.autograd').pending

local function fails(code, pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, 'expected an error')
  assert.is_true(z3.is_error(e, code), tostring(e))
  assert.matches(pattern, e.message)
  return e
end

local function same(expected, t) assert.same(expected, t:totable()) end

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
    fails('DTYPE', 'i64', function() z3.arange(2, { dtype = 'i64' }):requires_grad_() end)
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
    fails('SHAPE', 'bad: backward %(.-autograd_spec.lua:%d+%) returned a gradient of shape %(3,%) for argument 1',
      y.backward, y)
    y = bad(function() return 1 end)(x):sum()
    fails('SCRIPT', 'bad: backward %(.-autograd_spec.lua:%d+%) returned number', y.backward, y)
    y = bad(function() error('oops', 0) end)(x):sum()
    local ok, e = pcall(y.backward, y)
    assert.is_false(ok)
    assert.equal('oops', e)
    assert.is_true(C.z3_grad_enabled())
    square(x):sum():backward()
    same({ 2, 2 }, x.grad)
    fails('SCRIPT', 'n: forward %(.-autograd_spec.lua:%d+%) returned nothing',
      z3.op { name = 'n', forward = function() end, backward = function() end }, x)
    fails('SCRIPT', 'wants tensors', z3.op { name = 'n', forward = function() return 1 end, backward = print }, x)
    fails('ARG', 'did you mean "backward"', z3.op, { forward = print, bakcward = print })
    fails('ARG', 'wants forward and backward', z3.op, { forward = print })
  end)

  it('refuses saved tensors that changed in place after forward, not before its end', function()
    local scaled = z3.op {
      name = 'scaled',
      forward = function(ctx, x, by, touched)
        ctx:save(by)
        if touched then by:fill_(3) end
        return x * by
      end,
      backward = function(ctx, grad) return grad * ctx:saved() end,
    }
    local x, by = z3.tensor({ 1, 2 }, { requires_grad = true }), z3.tensor { 5, 5 }
    local y = scaled(x, by):sum()
    by:select(0, 1):fill_(9)                    -- through a view
    fails('STALE', 'scaled: saved tensor 1 was changed in place', y.backward, y)
    scaled(x, by, true):sum():backward()
    assert.same({ 3, 3 }, x.grad:totable())
    y = scaled(x, by):sum()
    by:data()[0] = 1
    fails('STALE', 'changed in place', y.backward, y)
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
