-- nn_layers_spec.lua -- layers against their formulas, attention, containers, recomputation.
local z3 = require 'z3'

local nn, F = z3.nn, z3.nn.functional

after_each(function() require('z3.rope_table').clear() end)

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

local function close(a, b, tolerance)
  local d = (a - b):abs():max():item()
  assert.is_true(d <= (tolerance or 1e-6), ('largest difference %g, wants %g'):format(d, tolerance or 1e-6))
end

describe('recomputation', function()
  local function run(on, dropout)
    z3.manual_seed(21)
    local Net = nn.class 'Net'
    function Net:init()
      self.parts = { nn.MLP(6, 12, { dropout = dropout }), nn.MLP(6, 12, { dropout = dropout }) }
      self.norm = nn.LayerNorm(6)
    end
    function Net:forward(x)
      for _, m in ipairs(self.parts) do x = x + m(self.norm(x)) end
      return x
    end
    local net = Net()
    for _, m in ipairs(net.parts) do m:checkpoint(on) end
    local loss = net(z3.randn { 5, 6 }):pow(2):mean()
    loss:backward()
    local grads = {}
    for name, p in net:parameters() do grads[name] = p:grad():view(p:numel()):totable() end
    return loss:item(), grads
  end

  it('gives the same bits, dropout included', function()
    for _, p in ipairs { 0, 0.3 } do
      local loss, grads = run(false, p)
      local loss2, grads2 = run(true, p)
      assert.equal(loss, loss2)
      assert.same(grads, grads2)
    end
  end)

  it('nn.checkpoint takes functions and returns their results; errors pass through', function()
    local w = nn.Parameter({ 3 }, { init = { 'constant', value = 2 } })
    local a, b = nn.checkpoint(function(x, k) return (x * w):exp():sum(), k end, z3.ones { 3 }, 'k')
    assert.equal('k', b)
    a:backward()
    close(w:grad(), z3.full({ 3 }, math.exp(2)), 1e-5)
    assert.has_error(function() nn.checkpoint(function() error('no') end) end)
    assert.has_error(function() nn.checkpoint(function() return F.linear(w, w, w, w) end) end)
    nn.checkpoint(function(x) return (x * w):sum() end, z3.ones { 3 }):backward()
  end)
end)

describe('CausalSelfAttention', function()
  -- The formula, with all scores: q (B,H,T,D), k and v (B,K,T,D).
  local function reference(q, k, v)
    local B, H, n, D, K = q.shape[1], q.shape[2], q.shape[3], q.shape[4], k.shape[2]
    local group = H / K
    k = k:unsqueeze(2):expand(B, K, group, n, D):reshape(B, H, n, D)
    v = v:unsqueeze(2):expand(B, K, group, n, D):reshape(B, H, n, D)
    local future = z3.ones { n, n }:tril():eq(0)
    local s = (q:matmul(k:transpose(2, 3)) / math.sqrt(D)):masked_fill(future, -math.huge)
    return s:softmax(-1):matmul(v):transpose(1, 2):reshape(B, n, H * D)
  end

  local function heads(y, B, n, H, D) return y:view(B, n, H, D):transpose(1, 2) end

  it('equals the formula: fused, grouped, with rotary positions and norms', function()
    local B, n, C_, H, K, D = 2, 5, 12, 6, 2, 4
    local x = z3.randn { B, n, C_ }
    local fused = nn.CausalSelfAttention { n_embd = C_, n_head = 3 }
    local y = fused.c_attn(x)
    local want = reference(heads(y:narrow(2, 0, 12):contiguous(), B, n, 3, 4),
      heads(y:narrow(2, 12, 12):contiguous(), B, n, 3, 4), heads(y:narrow(2, 24, 12):contiguous(), B, n, 3, 4))
    close(fused(x), fused.c_proj(want), 1e-5)
    local full = nn.CausalSelfAttention { n_embd = C_, n_head = H, n_kv_head = K, head_dim = D, fused = false,
                                          bias = false, rope = { theta = 100 }, qk_norm = true }
    local q = F.rope(full.q_norm(heads(full.q_proj(x), B, n, H, D)), { theta = 100 })
    local k = F.rope(full.k_norm(heads(full.k_proj(x), B, n, K, D)), { theta = 100 })
    close(full(x), full.o_proj(reference(q, k, heads(full.v_proj(x), B, n, K, D))), 1e-5)
    assert.same({ 'q_proj.weight', 'k_proj.weight', 'v_proj.weight', 'o_proj.weight', 'q_norm.weight',
                  'k_norm.weight' }, names(full))
  end)

  it('with dropout of the weights: the same in mean, exact without training', function()
    z3.manual_seed(2)
    local a = nn.CausalSelfAttention { n_embd = 8, n_head = 4, n_kv_head = 2, dropout = 0.1 }
    local x = z3.randn { 1, 6, 8 }
    z3.no_grad(function()
      a:eval()
      local exact = a(x)
      a:train()
      local sum, n = z3.zeros { 1, 6, 8 }, 300
      for _ = 1, n do sum = sum + a(x) end
      close(sum / n, exact, 0.02)
      assert.is_true((a(x) - exact):abs():max():item() > 1e-4)
    end)
  end)

  it('names what does not fit', function()
    fails('ARG', 'n_embd 10 is no multiple of n_head 3', nn.CausalSelfAttention, { n_embd = 10, n_head = 3 })
    fails('ARG', 'n_head 4 is no multiple of n_kv_head 3', nn.CausalSelfAttention,
      { n_embd = 8, n_head = 4, n_kv_head = 3 })
    fails('ARG', 'unknown option "n_heads".*n_head', nn.CausalSelfAttention, { n_embd = 8, n_heads = 4 })
    fails('SHAPE', 'x is %(2,4%).*%(B,T,8%)', nn.CausalSelfAttention { n_embd = 8, n_head = 2 }, z3.ones { 2, 4 })
  end)
end)

describe('layers', function()
  it('follow their formulas', function()
    local x = z3.randn { 3, 4 }
    local l = nn.Linear(4, 2)
    close(l(x), x:matmul(l.weight:transpose(0, 1)) + l.bias)
    local c = nn.Conv1D(4, 2)
    close(c(x), x:matmul(c.weight) + c.bias)
    local r = nn.RMSNorm(4, { eps = 1e-3 })
    close(r(x), x / ((x * x):mean(-1, true) + 1e-3):sqrt())
    local n = nn.LayerNorm(4, { eps = 1e-3, bias = false })
    assert.is_nil(n.bias)
    local d = x - x:mean(-1, true)
    close(n(x), d / ((d * d):mean(-1, true) + 1e-3):sqrt(), 1e-5)
    local s = nn.SwiGLU(4, 6)
    close(s(x), s.down_proj(F.silu(s.gate_proj(x)) * s.up_proj(x)))
    close(nn.GELU 'erf'(x), F.gelu(x, 'erf'))
    close(nn.SiLU()(x), x * x:sigmoid())
    assert.equal(2, nn.Embedding(5, 2)(z3.tensor({ 1, 4 }, { dtype = 'i32' })).ndim)
  end)

  it('take both forms of MLP, and name wrong options', function()
    assert.equal(nn.MLP(4, 8):numel(), nn.MLP { n_embd = 4, n_inner = 8 }:numel())
    assert.equal(nn.MLP(4, 16):numel(), nn.MLP(4):numel())
    fails('ARG', 'no activation "gelu_tnah".*gelu_tanh', nn.MLP, 4, 8, { activation = 'gelu_tnah' })
    fails('ARG', 'nn.Linear: in is nil', nn.Linear)
    fails('ARG', 'nn.Linear: unknown option "bais".*bias', nn.Linear, 2, 2, { bais = false })
    fails('ARG', "kind is tahn", nn.GELU, 'tahn')
  end)

  it('Sequential passes all results on and takes functions; ModuleList is indexed from 1', function()
    local seq = nn.Sequential { nn.Linear(2, 3), F.relu, function(x) return x, 'two' end }
    local y, two = seq(z3.ones { 1, 2 })
    assert.same({ 1, 3 }, y.shape)
    assert.equal('two', two)
    local list = nn.ModuleList { nn.Linear(1, 1), nn.Linear(1, 1) }
    list:append(nn.Linear(1, 1))
    assert.equal(3, #list)
    assert.same({ '0.weight', '0.bias', '1.weight', '1.bias', '2.weight', '2.bias' }, names(list))
    fails('ARG', 'entry 1 is no module', nn.ModuleList, { 3 })
  end)
end)
