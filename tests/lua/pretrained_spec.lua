-- pretrained_spec.lua -- models.auto.from_pretrained: spellings, several files, what it refuses, configurations.
local z3     = require 'z3'
local auto   = require 'models.auto'
local json   = require 'z3.json'
local helper = require 'tests.lua.helper'

local DATA = helper.root .. '/tests/parity/data/models/'

after_each(function() require('z3.rope_table').clear() end)

local function read(path)
  local f = assert(io.open(path, 'rb'))
  local text = f:read '*a'
  f:close()
  return text
end

local function write(path, text)
  local f = assert(io.open(path, 'wb'))
  f:write(text)
  f:close()
end

local function fails(code, pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, 'expected an error')
  assert.is_true(z3.is_error(e), tostring(e))
  assert.equal(code, e.code, tostring(e))
  assert.matches(pattern, e.message)
end

-- A fresh folder with links to a model's files; fn gets its path.
local function in_folder(name, fn)
  local dir = os.tmpname()
  os.remove(dir)
  local from = DATA .. name
  assert(os.execute(('mkdir %s && ln -s %s/model.safetensors %s/ && cp %s/config.json %s/ && chmod u+w %s/*.json')
    :format(dir, from, dir, from, dir, dir)) == 0)
  local ok, e = pcall(fn, dir)
  os.execute('rm -r ' .. dir)
  if not ok then error(e, 0) end
end

describe('from_pretrained', function()
  local function edit(dir, change)
    local c = json.decode(read(dir .. '/config.json'))
    change(c)
    write(dir .. '/config.json', json.encode(c))
  end

  it('names what is wrong with a folder', function()
    fails('IO', '/no/such/config.json', auto.from_pretrained, '/no/such/')
    fails('ARG', 'wants the path', auto.from_pretrained, nil)
    in_folder('gpt2', function(dir)
      edit(dir, function(c) c.model_type = 'gpt3' end)
      fails('UNSUPPORTED', 'model_type "gpt3".*gpt2', auto.from_pretrained, dir)
      edit(dir, function(c) c.model_type = nil end)
      fails('CONFIG', 'no model_type', auto.from_pretrained, dir)
      write(dir .. '/config.json', '{ "model_type": ')
      fails('CORRUPT', 'config.json', auto.from_pretrained, dir)
    end)
    in_folder('gpt2', function(dir)
      edit(dir, function(c) c.scale_attn_by_inverse_layer_idx = true end)
      fails('UNSUPPORTED', 'scale_attn_by_inverse_layer_idx', auto.from_pretrained, dir)
    end)
    in_folder('gpt2', function(dir)
      edit(dir, function(c) c.n_layer = 3 end)
      fails('CORRUPT', 'no transformer.h.2.ln_1.weight', auto.from_pretrained, dir)
      edit(dir, function(c) c.n_layer = 1 end)
      fails('ARG', 'has transformer.h.1.*strict = false', auto.from_pretrained, dir)
      assert.equal(1, #auto.from_pretrained(dir, { strict = false }).h)
      edit(dir, function(c) c.n_layer, c.vocab_size = 2, 300 end)
      fails('SHAPE', 'wte.weight is %(257,64%), config.json makes it %(300,64%)', auto.from_pretrained, dir)
      fails('ARG', 'unknown option "drop"', auto.from_pretrained, dir, { drop = 1 })
      os.remove(dir .. '/model.safetensors')
      fails('IO', 'neither model.safetensors nor', auto.from_pretrained, dir)
    end)
    in_folder('llama3_rope_tied', function(dir)
      edit(dir, function(c) c.rope_parameters.rope_type = 'yarn' end)
      fails('UNSUPPORTED', 'yarn', function()
        return auto.from_pretrained(dir) { tokens = z3.zeros({ 1, 1 }, { dtype = 'i32' }) }
      end)
    end)
  end)

  it('reads the older spelling of config.json', function()
    for _, name in ipairs { 'gpt2', 'llama', 'qwen2', 'llama3_rope_tied' } do
      in_folder(name, function(dir)
        write(dir .. '/config.json', read(DATA .. name .. '/config_v4.json'))
        local a, b = auto.from_pretrained(dir), auto.from_pretrained(DATA .. name)
        assert.same(b.options, a.options)
        local tokens = z3.tensor({ { 1, 2, 3, 4, 200 } }, { dtype = 'i32' })
        local d = z3.no_grad(function() return a { tokens = tokens } - b { tokens = tokens } end)
        assert.equal(0, d:abs():max():item())
      end)
    end
  end)

  it('reads several files by their index', function()
    in_folder('llama', function(dir)
      local all = z3.safetensors.load(dir .. '/model.safetensors')
      os.remove(dir .. '/model.safetensors')
      local parts, map, n = { {}, {} }, {}, 0
      for name, t in pairs(all) do
        n = n + 1
        parts[n % 2 + 1][name] = t
        map[name] = ('part-%d.safetensors'):format(n % 2 + 1)
      end
      for i, part in ipairs(parts) do z3.safetensors.save(('%s/part-%d.safetensors'):format(dir, i), part) end
      write(dir .. '/model.safetensors.index.json', json.encode { weight_map = map })
      local a, b = auto.from_pretrained(dir), auto.from_pretrained(DATA .. 'llama')
      local state = b:state_dict()
      for name, p in a:parameters() do assert.equal(0, (p:full() - state[name]):abs():max():item(), name) end
      map['lm_head.weight'] = '../part-1.safetensors'
      write(dir .. '/model.safetensors.index.json', json.encode { weight_map = map })
      fails('CORRUPT', 'the file of lm_head.weight is "../part', auto.from_pretrained, dir)
    end)
  end)

  it('writes back a configuration that it reads', function()
    for _, name in ipairs { 'gpt2', 'llama', 'qwen2', 'llama3_rope_tied' } do
      local model = auto.from_pretrained(DATA .. name)
      local weights = require('models.' .. model.architecture).weights
      local c = json.decode(json.encode(weights.config(model, 'float32')))
      local again = weights.options(c)
      for k, v in pairs(again) do assert.same(model.options[k] or v, v, name .. ' ' .. k) end
      assert.equal(model.options.n_layer, again.n_layer)
      assert.equal(model.options.tie, again.tie)
    end
  end)
end)
