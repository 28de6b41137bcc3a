-- z3.config: files and tables in DeepSpeed's form to effective tables, with what is wrong named.
local z3     = require 'z3'
local config = require 'z3.config'
local json   = z3.json

local DATA = 'tests/parity/data/config/'

local function load(source, o)
  o = o or {}
  o.quiet = true
  return config.load(source, o)
end

local function refused(code, pattern, source, o)
  local ok, e = pcall(load, source, o)
  assert.is_false(ok)
  assert.is_true(z3.is_error(e, code), tostring(e))
  assert.truthy(e.message:find(pattern), e.message)
end

local function write(text)
  local path = os.tmpname()
  local f = assert(io.open(path, 'wb'))
  f:write(text)
  f:close()
  return path
end

describe('z3.config', function()
  it('completes a file in the structure of DeepSpeed', function()
    local c, info = load(DATA .. 'comments_and_commas.json')
    assert.equal(8, c.train_batch_size)
    assert.equal(2, c.train_micro_batch_size_per_gpu)
    assert.equal(4, c.gradient_accumulation_steps)
    assert.equal(1, c.gradient_clipping)
    assert.equal(1, c.zero_optimization.stage)
    assert.equal(5e8, c.zero_optimization.reduce_bucket_size)
    assert.equal(false, c.zero_optimization.overlap_comm)
    assert.equal('none', c.zero_optimization.offload_param.device)
    assert.equal(false, c.bf16.enabled)
    assert.is_nil(c.optimizer)
    assert.same({}, info.warnings)
    assert.equal('train_batch_size = 8 (8 = 2 x 4 x 1 rank)', info.derived)
    assert.same(c, load(json.decode(json.encode(c))))      -- what comes out goes in again
  end)

  it('reads the same from a table as from a file', function()
    local text = '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},' ..
      '"optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},' ..
      '"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}, "zero_optimization": {"stage": 3}}'
    local path = write(text)
    local from_file = load(path)
    os.remove(path)
    local from_table = load {
      train_batch_size = 16, train_micro_batch_size_per_gpu = 2, bf16 = { enabled = true },
      optimizer = { type = 'AdamW', params = { lr = 3e-4, betas = { 0.9, 0.95 } } },
      scheduler = { type = 'WarmupLR', params = { warmup_num_steps = 5 } }, zero_optimization = { stage = 3 },
    }
    assert.same(from_file, from_table)
    assert.equal(8, from_file.gradient_accumulation_steps)
    assert.same({ 0.9, 0.95 }, from_file.optimizer.params.betas)
    assert.equal(0, from_file.optimizer.params.weight_decay)        -- DeepSpeed's default, not PyTorch's
    assert.equal('log', from_file.scheduler.params.warmup_type)
    assert.is_nil(from_file.scheduler.params.warmup_max_lr)
    assert.is_true(from_file.zero_optimization.overlap_comm)
  end)

  it('lets the data decide the batch of an empty configuration', function()
    for _, source in ipairs { false, {} } do
      local c = load(source or nil, { micro_batch = 4, world = 3 })
      assert.equal(4, c.train_micro_batch_size_per_gpu)
      assert.equal(12, c.train_batch_size)
      assert.equal(1, c.gradient_accumulation_steps)
    end
    assert.is_nil(load().train_micro_batch_size_per_gpu)
    assert.equal(1, load().gradient_accumulation_steps)
    refused('CONFIG', 'not determined', { bf16 = { enabled = true } }, { micro_batch = 4 })
  end)

  it('names key, value and what is allowed', function()
    refused('CONFIG', "^config: unknown key 'gradient_cliping'; the nearest known one is 'gradient_clipping'$",
      { train_batch_size = 8, gradient_cliping = 1 })
    refused('CONFIG', '^config: train_batch_size is 30, but .* 2 x .* 4 x 2 ranks = 16$',
      { train_batch_size = 30, train_micro_batch_size_per_gpu = 2, gradient_accumulation_steps = 4 }, { world = 2 })
    refused('CONFIG', '^config: zero_optimization%.stage is 4; wants a whole number in 0 %.%. 3$',
      { train_batch_size = 8, zero_optimization = { stage = 4 } })
    refused('CONFIG', 'optimizer%.params%.lr is nan',
      { train_batch_size = 8, optimizer = { type = 'SGD', params = { lr = 0 / 0 } } })
    refused('CONFIG', 'bf16%.enabled is a function', { bf16 = { enabled = print } })
    refused('CONFIG', 'wants an object', { 1, 2 })
    refused('CONFIG', 'fp16.enabled and bf16.enabled', { fp16 = { enabled = true }, bf16 = { enabled = true } })
    refused('ARG', 'wants a file name, a table or nil', 8)
    refused('IO', 'no/such%.json', 'no/such.json')
  end)

  it('gives file, line and column', function()
    local path = write '{\n  "train_batch_size": 8,\n  "bf16": { "enable": true }\n}\n'
    refused('CONFIG', '^' .. path .. ":3:13: unknown key 'bf16%.enable'", path)
    os.remove(path)
    for _, text in ipairs { '', '\n', '// nothing\n', '[]', '"x"' } do
      path = write(text)
      refused('CONFIG', '^' .. path, path)
      os.remove(path)
    end
    path = write '\239\187\191{ "train_batch_size": 8, }'
    assert.equal(8, load(path).train_batch_size)
    os.remove(path)
  end)

  it('says what is not supported yet', function()
    refused('UNSUPPORTED', 'not supported yet: fp16%.enabled', { train_batch_size = 1, fp16 = { enabled = true } })
    refused('UNSUPPORTED', 'not supported yet: zero_optimization%.offload_optimizer%.device',
      { train_batch_size = 1, zero_optimization = { stage = 3, offload_optimizer = { device = 'cpu' } } })
    refused('UNSUPPORTED', 'on more than one rank', { train_batch_size = 2, zero_optimization = { stage = 1 } },
      { world = 2 })
    assert.equal(2, load({ train_batch_size = 1, zero_optimization = { stage = 2 } }).zero_optimization.stage)
  end)

  it('wants no section that the caller replaces', function()
    local source = { train_batch_size = 8, optimizer = { type = 'AdamW', params = { lr = 'auto' } },
                     scheduler = { type = 'WarmupDecayLR', params = { total_num_steps = 'auto' } } }
    refused('CONFIG', 'optimizer%.params%.lr is "auto"', source)
    refused('CONFIG', 'scheduler%.params%.total_num_steps is "auto"', source, { own_optimizer = true })
    local c = load(source, { own_optimizer = true, own_schedule = true })
    assert.is_nil(c.optimizer)
    assert.is_nil(c.scheduler)
    source.optimizer.params.lrr = 1
    source.optimizer.params.lr = nil
    assert.is_nil(load(source, { own_optimizer = true, own_schedule = true }).optimizer)
  end)

  it('warns of old keys', function()
    local _, info = load(DATA .. 'zero_bool_allgather.json')
    assert.equal(2, #info.warnings)
    assert.truthy(info.warnings[2]:find 'allgather_size is an old key; use zero_optimization.allgather_bucket_size')
    local c
    c, info = load(DATA .. 'max_grad_norm_param.json')
    assert.equal(1, c.gradient_clipping)
    assert.truthy(info.warnings[1]:find 'max_grad_norm is an old key; use gradient_clipping')
  end)

  it('lists every key with its default, unit and meaning', function()
    local keys, by_name = config.keys(), {}
    assert.is_true(#keys > 500)
    for _, k in ipairs(keys) do by_name[k.key] = k end
    assert.same({ key = 'zero_optimization.sub_group_size', type = 'int', default = '1000000000', range = '>= 0',
                  unit = 'elements', status = 'hint', doc = 'updated at a time' },
      by_name['zero_optimization.sub_group_size'])
    assert.equal('later', by_name['fp16.enabled'].status)
    assert.equal('built', by_name['optimizer.params@AdamW.lr'].status)
  end)
end)
