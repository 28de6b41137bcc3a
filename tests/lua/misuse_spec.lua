--- misuse_spec.lua -- whatever a script hands to a public function, a failure is an error object and nothing breaks:
-- every function of z3, every method, layers, models and engines are called with values that make no sense.
-- time limit: 120 s
local z3 = require 'z3'
local nearest = require 'z3.nearest'

local nn = z3.nn
local SMALL = { vocab_size = 8, n_ctx = 8, n_layer = 1, n_embd = 8, n_head = 2 }

-- Values of every kind; made anew for each call, because calls may change them.
local function values()
  local freed = z3.ones { 2 }
  freed:free()
  local ids = z3.tensor({ { 0, 1 } }, { dtype = 'i64' })
  return { 1, -1, 0.5, 0, 'x', 'f32', true, false, {}, { 1 }, { 1, 2 }, { 'a' }, { a = 1 }, z3.ones { 2, 3 },
           z3.ones { 3 }, z3.ones({ 2 }, { dtype = 'u8' }), ids, z3.tensor(2), z3.zeros { 0, 3 }, function() end, 5LL,
           0 / 0, math.huge, 2 ^ 62, nn.Parameter({ 2, 3 }, { init = 'ones' }), freed, { {} }, { z3.ones { 2 } },
           z3.ones({ 2, 3 }, { dtype = 'bf16' }), { dtype = 'i32' }, { tokens = ids }, nn.Linear(3, 2), '', io.stdout,
           { tokens = ids, targets = ids }, { tokens = z3.ones { 2 } }, z3.randn { 1, 4, 8 }, { strict = false },
           { theta = 'a' }, { scaling = 5 }, { start = 'x' }, { positions = 5 }, { scale = {} }, { mask = 5 },
           { ignore_index = 'x' }, { reduction = 5 }, { next = function() return 5 end },
           { max_new_tokens = 2, temperature = 1 } }
end

local function shown(v)
  if z3.is_tensor(v) then return 'a tensor' end
  return type(v) == 'string' and ('%q'):format(v) or tostring(v)
end

--- Calls each function `rounds` times with up to four values; first(all values) -> the first argument, or nil.
local function misuse(functions, rounds, first)
  math.randomseed(7)
  local names = nearest.keys(functions)
  for _ = 1, rounds do
    for _, name in ipairs(names) do
      local all, args, n = values(), {}, math.random(0, 4)
      for i = 1, n do args[i] = all[math.random(0, #all)] end
      if first and n > 0 and math.random() < 0.7 then args[1] = first(all) end
      local ok, e = pcall(functions[name], unpack(args, 1, n))
      if not ok and (not z3.is_error(e) or e.code == 'BUG') then
        local list = {}
        for i = 1, n do list[i] = shown(args[i]) end
        error(('%s(%s): %s'):format(name, table.concat(list, ', '), tostring(e)), 0)
      end
    end
  end
end

local function tensors(all)
  local some = {}
  for _, v in ipairs(all) do if z3.is_tensor(v) then some[#some + 1] = v end end
  return some[math.random(1, #some)]
end

--- Methods of an object as functions.
local function bound(into, name, object, methods)
  for _, m in ipairs(methods) do
    if object[m] then into[name .. ':' .. m] = function(...) return object[m](object, ...) end end
  end
end

describe('misuse', function()
  before_each(function() z3.memory.set_limit('1GiB') end)
  after_each(function()
    z3.memory.set_limit(nil)
    require('z3.rope_table').clear()
    assert.equal(6, z3.ones({ 2, 3 }):sum():item())
  end)

  it('of functions and methods of tensors', function()
    local functions = {}
    for name, fn in pairs(z3) do
      if type(fn) == 'function' and name ~= 'print' and name ~= 'args' then functions[name] = fn end
    end
    misuse(functions, 40, tensors)
    misuse(require('z3.tensor_core').methods, 40, tensors)
  end)

  it('of operations, schedules, optimizers, data, files', function()
    misuse(nn.functional, 150, tensors)
    misuse(z3.sched, 60)
    misuse({ adamw = z3.optim.adamw, adam = z3.optim.adam, sgd = z3.optim.sgd, lion = z3.optim.lion,
             custom = z3.optim.custom, loader = z3.data.loader, tokens = z3.data.tokens, text = z3.data.text,
             random_tokens = z3.data.random_tokens, load = z3.safetensors.load, decode = z3.json.decode,
             encode = z3.json.encode, generate = z3.generate, initialize = z3.initialize, progress = z3.progress,
             checkpoint = nn.checkpoint, class = nn.class, parameter = nn.Parameter, stats = z3.memory.stats,
             top = z3.memory.top, gpt2 = require('models.gpt2').new, llama = require('models.llama').new }, 100)
  end)

  it('of layers and models', function()
    local layers = { emb = nn.Embedding(4, 3), ln = nn.LayerNorm(3), rms = nn.RMSNorm(3), drop = nn.Dropout(0.5),
                     gelu = nn.GELU(), mlp = nn.MLP(3), swi = nn.SwiGLU(3, 4), lin = nn.Linear(3, 2),
                     att = nn.CausalSelfAttention { n_embd = 8, n_head = 2, rope = true }, conv = nn.Conv1D(3, 2),
                     seq = nn.Sequential(nn.Linear(3, 3)), gpt2 = require('models.gpt2').new('nano', SMALL),
                     list = nn.ModuleList { nn.Linear(3, 2) } }
    local calls = {}
    for name, layer in pairs(layers) do
      calls[name] = function(...) return layer(...) end
      bound(calls, name, layer, { 'state_dict', 'load_state_dict', 'train', 'eval', 'requires_grad_', 'apply',
                                  'checkpoint', 'numel', 'zero_grad', 'set_dtype' })
    end
    for _, name in ipairs { 'Linear', 'Conv1D', 'Embedding', 'LayerNorm', 'RMSNorm', 'Dropout', 'GELU', 'MLP', 'SwiGLU',
                            'CausalSelfAttention', 'ModuleList', 'Sequential' } do
      calls[name] = function(...) return nn[name](...) end
    end
    bound(calls, 'parameter', nn.Parameter({ 2, 3 }, { init = 'ones' }),
      { 'full', 'grad', 'requires_grad_', 'load', 'zero_grad', 'set_dtype', 'numel' })
    misuse(calls, 40, tensors)
  end)

  it('of engines, loaders and tokenizers', function()
    local model = require('models.gpt2').new('nano', SMALL)
    local engine = z3.initialize { model = model, optimizer = z3.optim.sgd { lr = 0 },
                                   config = { train_micro_batch_size_per_gpu = 1 } }
    local data = { numel = function() return 100 end,
                   get = function(_, _, count) return z3.zeros({ count }, { dtype = 'i32' }) end }
    local calls = { generate = function(...) return z3.generate(model, ...) end }
    bound(calls, 'engine', engine, { 'train_batch', 'forward', 'backward', 'step', 'eval_batch', 'evaluate', 'lr',
                                     'loss_scale', 'knobs', 'stats', 'save', 'load' })
    local loader = z3.data.loader { dataset = data, batch = 2, seq = 4 }
    bound(calls, 'loader', loader, { 'next', 'state', 'load_state', 'batches', 'reset' })
    bound(calls, 'tokenizer', z3.tokenizer.bytes(), { 'encode', 'decode', 'chat' })
    misuse(calls, 200)
    engine:close()
  end)

  it('of option tables: an unknown key is an error that names the nearest', function()
    local model = require('models.gpt2').new('nano', SMALL)
    local engine = z3.initialize { model = model, optimizer = z3.optim.sgd {},
                                   config = { train_micro_batch_size_per_gpu = 1 } }
    local ones, F, tok = z3.ones { 1, 1, 1, 2 }, nn.functional, z3.tokenizer.bytes()
    local data = { numel = function() return 9 end, get = function() end }
    local calls = {
      { 'dtype', z3.tensor, { 1 }, { dtyp = 'f32' } }, { 'dtype', z3.zeros, { 1 }, { dtyp = 'f32' } },
      { 'dtype', z3.full, { 1 }, 1, { dtyp = 'f32' } }, { 'device', z3.randn, { 1 }, { devic = 'cpu' } },
      { 'dtype', z3.arange, 3, { dtyp = 'f32' } }, { 'dtype', z3.zeros_like, ones, { dtyp = 'f32' } },
      { 'device', ones.to, ones, { devic = 'cpu' } }, { 'theta', F.rope, ones, { theat = 1 } },
      { 'causal', F.scaled_dot_product_attention, ones, ones, ones, { casual = true } },
      { 'reduction', F.cross_entropy, ones, ones, { reducton = 'sum' } },
      { 'init', nn.Parameter, { 1 }, { int = 'ones' } }, { 'bias', nn.Linear, 1, 1, { bais = false } },
      { 'std', nn.Parameter, { 1 }, { init = { 'normal', sdt = 1 } } },
      { 'init', nn.Embedding, 2, 2, { ini = 'ones' } },
      { 'eps', nn.LayerNorm, 2, { esp = 1 } }, { 'n_head', nn.CausalSelfAttention, { n_embd = 4, n_heads = 2 } },
      { 'activation', nn.MLP, 4, 8, { activaton = 'relu' } },
      { 'strict', model.load_state_dict, model, {}, { strct = 1 } },
      { 'lr', z3.optim.adamw, { lrr = 1 } }, { 'state', z3.optim.custom, { update = print, stat = {} } },
      { 'warmup', z3.sched.constant, { warmpu = 1 } }, { 'total', z3.sched.one_cycle, { totl = 5 } },
      { 'num_warmup_steps', z3.sched.transformers, 'linear', { num_warmup_step = 1 } },
      { 'epochs', z3.data.loader, { dataset = data, batch = 1, seq = 2, epoch = 1 } },
      { 'dtype', z3.data.tokens, 'README.md', { dtyp = 'u8' } },
      { 'cache', z3.data.text, 'README.md', tok, { cahce = '' } },
      { 'max_new_tokens', z3.generate, model, { 1 }, { max_new_token = 1 } },
      { 'model', z3.initialize, { modle = model } },
      { 'quiet', z3.progress, engine, 1, { quite = true } }, { 'indent', z3.json.encode, {}, { indnet = 2 } },
      { 'relaxed', z3.json.decode, '{}', { relaxd = true } }, { 'forward', z3.op, { foward = print } },
      { 'vocab_size', require('models.gpt2').new, 'nano', { vocab_sizes = 8 } },
    }
    for _, c in ipairs(calls) do
      local ok, e = pcall(unpack(c, 2, 6))
      assert.is_false(ok, c[1])
      assert.is_true(z3.is_error(e, 'ARG'), tostring(e))
      assert.truthy(e.message:find(('did you mean "%s"'):format(c[1]), 1, true), tostring(e))
    end
    engine:close()
  end)
end)
