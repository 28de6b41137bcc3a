-- nn_spec.lua -- classes, names of parameters, modules, state, what a call does.
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

local function names(m)
  local out = {}
  for name in m:parameters() do out[#out + 1] = name end
  return out
end

local function values(t)
  local flat = t:full():view(t:numel())
  return flat:totable()
end

local function close(a, b, tolerance)
  local d = (a - b):abs():max():item()
  assert.is_true(d <= (tolerance or 1e-6), ('largest difference %g, wants %g'):format(d, tolerance or 1e-6))
end

local Branch = nn.class 'Branch'
function Branch:init(n)
  self.up, self.down = nn.Linear(n, 2 * n), nn.Linear(2 * n, n, { bias = false })
end
function Branch:forward(x) return self.down(F.relu(self.up(x))) end

describe('nn.class', function()
  it('builds when the class is called and runs forward when an instance is', function()
    local Twice = nn.class 'Twice'
    function Twice:init(k) self.k = k end
    function Twice:forward(x, y) return x * self.k, y end
    local a, b = Twice(3)(2, 'more')
    assert.equal(6, a)
    assert.equal('more', b)
    assert.equal('nn.class Twice', tostring(Twice))
  end)

  it('inherits methods, and init can be called of the parent', function()
    local Base = nn.class 'Base'
    function Base:init(n) self.n = n end
    function Base:forward(x) return x + self.n end
    local Derived = nn.class('Derived', Base)
    function Derived:init(n, k) Base.init(self, n); self.k = k end
    function Derived:forward(x) return Base.forward(self, x) * self.k end
    assert.equal(10, Derived(2, 2)(3))
    assert.equal('Derived', Derived(1, 1).class_name)
  end)

  it('refuses a bad name, a bad parent and a call without forward', function()
    fails('ARG', 'name is 3', nn.class, 3)
    fails('ARG', 'no class made by nn.class', nn.class, 'X', {})
    fails('ARG', 'Empty has no forward', nn.class 'Empty'(), 1)
  end)
end)

describe('names', function()
  it('follow the order of assignment; lists count from 0', function()
    local Net = nn.class 'Net'
    function Net:init()
      self.z = nn.Linear(2, 2)
      self.blocks = { Branch(2), Branch(2) }
      self.scale = nn.Parameter({ 2 }, { init = 'ones' })
      self.a = nn.LayerNorm(2)
      self.extra = { nn.Parameter { 1 }, nn.Parameter { 1 } }
      self.seq = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 1, { bias = false }))
    end
    assert.same({ 'z.weight', 'z.bias', 'blocks.0.up.weight', 'blocks.0.up.bias', 'blocks.0.down.weight',
                  'blocks.1.up.weight', 'blocks.1.up.bias', 'blocks.1.down.weight', 'scale', 'a.weight', 'a.bias',
                  'extra.0', 'extra.1', 'seq.0.weight', 'seq.0.bias', 'seq.2.weight' }, names(Net()))
  end)

  it('are the same for many fields, whatever the hash order', function()
    local Wide = nn.class 'Wide'
    function Wide:init() for i = 40, 1, -1 do self['f' .. i] = nn.Parameter { 1 } end end
    local want = {}
    for i = 40, 1, -1 do want[#want + 1] = 'f' .. i end
    assert.same(want, names(Wide()))
  end)

  it('are known from below, also of a part that was replaced', function()
    local Net = nn.class 'Net'
    function Net:init() self.body = { Branch(2) }; self.head = nn.Linear(2, 3) end
    function Net:forward(x) return self.head(self.body[1](x)) end
    local net = Net()
    assert.equal('body.0.up.weight', net.body[1].up.weight.name)
    assert.equal('head.bias', net.head.bias.name)
    net.head = nn.Linear(2, 5)
    net(z3.ones { 1, 2 })
    assert.equal('head.bias', net.head.bias.name)
    assert.same('head.bias', names(net)[5])
    local outer = nn.class 'Outer'()
    outer.net = net
    assert.equal('net.head.bias', names(outer)[5])
    assert.equal('net.head.bias', net.head.bias.name)
  end)

  it('of tied parameters: the first path, once', function()
    local Net = nn.class 'Net'
    function Net:init()
      self.emb = nn.Embedding(5, 3)
      self.head = nn.Linear(3, 5, { bias = false })
      self.head.weight = self.emb.weight
    end
    local net = Net()
    assert.same({ 'emb.weight' }, names(net))
    assert.equal(15, net:numel())
    assert.equal('emb.weight', net.head.weight.name)
  end)

  it('of a module that is held twice or points back to its holder', function()
    local Net = nn.class 'Net'
    function Net:init()
      self.a = nn.Linear(2, 2)
      self.b = self.a
      self.child = Branch(2)
      self.child.owner = self
    end
    assert.same({ 'a.weight', 'a.bias', 'child.up.weight', 'child.up.bias', 'child.down.weight' }, names(Net()))
  end)

  it('modules in a keyed table are refused, not forgotten', function()
    local Net = nn.class 'Net'
    function Net:init() self.heads = { q = nn.Linear(2, 2) } end
    fails('ARG', 'field heads is a keyed table that holds a module', names, Net())
  end)
end)

describe('nn.Module', function()
  it('counts, walks and switches modes', function()
    local net = nn.Sequential(Branch(2), nn.Dropout(0.5))
    assert.equal(2 * 4 + 4 + 8, net:numel())
    local paths = {}
    for path in net:modules() do paths[#paths + 1] = path end
    assert.same({ '', '0', '0.up', '0.down', '1' }, paths)
    assert.is_true(net[2].training)
    assert.equal(net, net:eval())
    assert.is_false(net[2].training)
    assert.is_false(net[1].up.training)
    net:train()
    assert.is_true(net[1].up.training)
    local seen = {}
    net:apply(function(m) seen[#seen + 1] = m.class_name end)
    assert.same({ 'Dropout', 'Linear', 'Linear', 'Branch', 'Sequential' }, seen)
    net:requires_grad_(false)
    for _, p in net:parameters() do assert.is_false(p.requires_grad) end
  end)

  it('dropout acts in training only', function()
    local d, x = nn.Dropout(0.5), z3.ones { 1000 }
    local y = d(x)
    local zeros = y:eq(0):sum():item()
    assert.is_true(zeros > 400 and zeros < 600)
    assert.equal(2, y:max():item())
    d:eval()
    assert.equal(1000, d(x):sum():item())
    fails('ARG', 'p is 2', nn.Dropout, 2)
  end)

  it('prints a tree with shapes and counts; equal neighbours once', function()
    local Net = nn.class 'Net'
    function Net:init()
      self.emb = nn.Embedding(10, 4)
      self.blocks = { Branch(4), Branch(4), Branch(4) }
      self.head = nn.Linear(4, 10, { bias = false })
      self.head.weight = self.emb.weight
      self.gain = nn.Parameter { 4 }
    end
    local net = Net()
    assert.equal(table.concat({
      'Net  260 parameters',
      '  emb       Embedding (10,4)  40',
      '  blocks.0-2  3 × Branch',
      '    up    Linear (4,8)  40',
      '    down  Linear (8,4)  32',
      '  head      Linear (4,10)  40  weight tied to emb.weight',
      '  gain      Parameter (4)' }, '\n'), tostring(net))
    net.emb:requires_grad_(false)
    assert.matches('260 parameters: 220 trained, 40 frozen', tostring(net))
    assert.matches('1,234,567', require('z3.nn.show').count(1234567))
  end)
end)

describe('state_dict and load_state_dict', function()
  local function tied()
    local Net = nn.class 'Net'
    function Net:init()
      self.emb = nn.Embedding(3, 2)
      self.head = nn.Linear(2, 3)
      self.head.weight = self.emb.weight
    end
    return Net()
  end

  it('go round, and what is taken out is independent', function()
    local a, b = Branch(3), Branch(3)
    local state = a:state_dict()
    assert.same({}, b:load_state_dict(state).missing)
    for name, p in b:parameters() do close(p:full(), state[name], 0) end
    state['up.bias']:fill_(9)
    assert.is_true(a.up.bias:full():max():item() < 9)
  end)

  it('take a tied parameter under any of its names', function()
    local net = tied()
    local w, bias = z3.ones { 3, 2 }, z3.zeros { 3 }
    net:load_state_dict { ['head.weight'] = w, ['head.bias'] = bias }
    assert.equal(6, net.emb.weight:full():sum():item())
    net:load_state_dict { ['emb.weight'] = w * 2, ['head.bias'] = bias }
    assert.equal(12, net.emb.weight:full():sum():item())
    assert.is_nil(net:state_dict()['head.weight'])
  end)

  it('name what is unknown, missing or of another shape, and change nothing then', function()
    local net = Branch(3)
    local before = values(net.up.weight)
    local state = net:state_dict()
    state['up.weight']:fill_(1)
    state['up.wieght'] = state['up.bias']
    fails('ARG', 'no up.wieght.*did you mean "up.weight"', net.load_state_dict, net, state)
    state['up.wieght'] = nil
    state['down.weight'] = nil
    state.down_weight = nil
    fails('ARG', 'down.weight missing', net.load_state_dict, net, state)
    state['down.weight'] = z3.zeros { 1, 1 }
    fails('SHAPE', 'down.weight is %(3,6%) here, %(1,1%)', net.load_state_dict, net, state)
    assert.same(before, values(net.up.weight))
    state['down.weight'] = nil
    state.other = z3.zeros { 1 }
    local r = net:load_state_dict(state, { strict = false })
    assert.same({ 'down.weight' }, r.missing)
    assert.same({ 'other' }, r.unexpected)
    assert.equal(1, net.up.weight:full():max():item())
  end)

  it('convert to the dtype of the parameter', function()
    local p = nn.Linear(2, 2, { bias = false, dtype = 'bf16' })
    p:load_state_dict { weight = z3.full({ 2, 2 }, 1.001) }
    assert.equal('bf16', p.weight.dtype)
    assert.equal(1, p.weight:full():max():item())
  end)
end)

describe('a call', function()
  it('of built-in layers frees what it made and did not return', function()
    local mlp, x = nn.MLP(4, 8), z3.ones { 2, 4 }
    mlp:materialise()
    local before = tonumber(C.z3_tensor_live())
    local y = z3.no_grad(mlp, x)
    assert.equal(before + 1, tonumber(C.z3_tensor_live()))
    y:free()
    y = mlp(x)                                           -- recorded: backward holds inputs, not the script
    y:sum():backward()
    assert.not_nil(mlp.c_fc.weight:grad())
  end)

  it('of a class of one\'s own keeps what it stashes, also inside a built-in one', function()
    local Stash = nn.class 'Stash'
    function Stash:init() self.l = nn.Linear(4, 4) end
    function Stash:forward(x) self.last = self.l(x) * 2; return self.last + 0 end
    local mlp = nn.MLP(4, 4)
    mlp.act = Stash()
    local y = mlp(z3.ones { 1, 4 })
    assert.same({ 1, 4 }, mlp.act.last.shape)
    assert.is_number(mlp.act.last:sum():item())
    z3.scope(function() mlp(z3.ones { 1, 4 }) end)
    fails('STALE', 'scope', function() return mlp.act.last:sum() end)
    mlp.act.last = nil
    y:free()
  end)

  it('marks the boundary of its module', function()
    local seen = {}
    local Spy = nn.class 'Spy'
    function Spy:forward(x) seen[#seen + 1] = require('ffi').string(C.z3_module_current()); return x end
    local Net = nn.class 'Net'
    function Net:init() self.h = { Spy(), Spy() } end
    function Net:forward(x)
      seen[#seen + 1] = require('ffi').string(C.z3_module_current())
      return self.h[2](self.h[1](x))
    end
    Net()(1)
    assert.same({ 'Net', 'h.0', 'h.1' }, seen)
    assert.equal(0, C.z3_module_depth())
  end)

  it('that fails leaves nothing open', function()
    local Bad = nn.class 'Bad'
    function Bad:init() self.l = nn.Linear(2, 2) end
    function Bad:forward(x, how)
      if how == 'throw' then error('a plain error') end
      return self.l(x)
    end
    local net = nn.Sequential(nn.MLP(2, 2), Bad())
    assert.has_error(function() net[2](z3.ones { 1, 2 }, 'throw') end)
    fails('SHAPE', 'linear', net, z3.ones { 1, 3 })
    assert.equal(0, C.z3_module_depth())
    assert.same({ 1, 2 }, net(z3.ones { 1, 2 }).shape)
    -- a forward that catches the error of a part goes on as if nothing was
    local Careful = nn.class 'Careful'
    function Careful:init() self.bad, self.l = Bad(), nn.Linear(2, 2) end
    function Careful:forward(x)
      assert(not pcall(self.bad, x, 'throw'))
      return self.l(x)
    end
    assert.same({ 1, 2 }, Careful()(z3.ones { 1, 2 }).shape)
    assert.equal(0, C.z3_module_depth())
  end)
end)
