--- error_spec.lua -- error objects, option tables, names that were meant, sizes.
local z3      = require 'z3'
local err     = require 'z3.error'
local check   = require 'z3.check'
local opts    = require 'z3.opts'
local nearest = require 'z3.nearest'
local C       = require('z3.ffi').C

local function caught(fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, 'expected an error')
  return e
end

describe('error objects', function()
  it('say what, with which code, and where in the script', function()
    local line = debug.getinfo(1, 'l').currentline + 1
    local e = caught(function() return z3.ones { 2 } + z3.ones { 3 } end)
    assert.equal('SHAPE', e.code)
    assert.equal(0, e.rank)
    assert.matches('error_spec.lua:' .. line .. '$', e.where)
    assert.matches('add: b %(3,%) does not broadcast with %(2,%)', e.message)
    local text = tostring(e)
    assert.is_nil(text:find '\n')
    assert.matches('^tests/lua/error_spec.lua:' .. line .. ': add: .* %[SHAPE%]$', text)
    assert.equal('got ' .. text, 'got ' .. e)
    assert.matches('rules_elem.c', e.chain)
  end)

  it('are told from other values', function()
    local e = caught(err.throw, 'IO', 'no disk')
    assert.is_true(z3.is_error(e))
    assert.is_true(z3.is_error(e, 'IO'))
    assert.is_false(z3.is_error(e, 'ARG'))
    assert.is_false(z3.is_error('IO'))
    assert.is_false(z3.is_error({ code = 'IO' }))
    assert.is_false(z3.is_error(nil))
  end)

  it('carry more fields, and write their rank when it is not 0', function()
    local e = err.new('OOM', 'full', { requested = 5 })
    assert.equal(5, e.requested)
    e.rank = 3
    assert.matches('^%[rank 3%]', tostring(e))
  end)

  it('come from statuses of the library', function()
    check(0, 'fine')
    local e = caught(function() check(C.z3_tensor_fill(nil, 0), 'fill') end)
    assert.equal('ARG', e.code)
    assert.matches('^fill', e.message)
  end)

  it('name the module that ran, once, and leave it', function()
    C.z3_module_enter(C.z3_module_id 'h.3.attn')
    local e = caught(function() return z3.ones { 2 } + z3.ones { 3 } end)
    assert.matches('^h%.3%.attn: add: ', e.message)
    assert.equal(0, C.z3_module_depth())
    e = caught(function() return z3.ones { 2 } + z3.ones { 3 } end)
    assert.matches('^add: ', e.message)
  end)

  it('name the module in backward, too', function()
    local x, w = z3.ones({ 2 }):requires_grad_(), z3.ones { 2 }
    C.z3_module_enter(C.z3_module_id 'h.4.mlp')
    local y = (x * w):sum()
    C.z3_module_leave()
    w:fill_(3)
    local e = caught(function() y:backward() end)
    assert.matches('h%.4%.mlp: mul', e.message)
  end)
end)

describe('option tables', function()
  local SPEC = { lr = 1e-3, betas = { 0.9, 0.999 }, name = opts.string, n = opts.integer, on = false,
                 hook = opts.func, size = opts.size, either = opts.either(opts.string, opts.number) }

  it('are defaults with the given values over them', function()
    local o = opts.read({ lr = 2, name = 'x' }, SPEC, 'f')
    assert.equal(2, o.lr)
    assert.same({ 0.9, 0.999 }, o.betas)
    assert.equal('x', o.name)
    assert.is_false(o.on)
    assert.is_nil(o.n)
    assert.equal(1e-3, opts.read(nil, SPEC, 'f').lr)
    assert.equal(true, opts.read({ on = true }, SPEC, 'f').on)
    assert.equal(3, opts.read({ either = 3 }, SPEC, 'f').either)
  end)

  it('refuse unknown keys and wrong types', function()
    local function message(o) return caught(opts.read, o, SPEC, 'f').message end
    assert.equal('f: unknown option "lrr" (did you mean "lr"?)', message { lrr = 1 })
    assert.matches('unknown option "zzzzzz" %(known: betas, either, hook', message { zzzzzz = 1 })
    assert.equal('f: "lr" is "a", wants a number', message { lr = 'a' })
    assert.equal('f: "n" is 1.5, wants a whole number', message { n = 1.5 })
    assert.equal('f: "betas" is 1, wants a table', message { betas = 1 })
    assert.equal('f: "hook" is 1, wants a function', message { hook = 1 })
    assert.equal('f: "on" is 1, wants true or false', message { on = 1 })
    assert.equal('f: "either" is true, wants a string or a number', message { either = true })
    assert.matches('options are 3', caught(opts.read, 3, SPEC, 'f').message)
    assert.matches('unknown option "1"', message { 'positional' })
  end)

  it('fill C structs without cutting or ignoring', function()
    local s = opts.fill('z3_update_args', { lr = 1e-3, step = 1, nesterov = 0 }, { step = 7 }, 'update')
    assert.equal(7, tonumber(s.step))
    assert.equal(1e-3, s.lr)
    assert.matches('whole number', caught(opts.fill, 'z3_update_args', { step = 1 }, { step = 1.5 }, 'update').message)
    assert.matches('unknown', caught(opts.fill, 'z3_update_args', { step = 1 }, { stp = 1 }, 'update').message)
  end)

  it('choose among names', function()
    assert.equal('mean', opts.choice('mean', { 'mean', 'sum' }, 'loss', 'reduction'))
    assert.matches('did you mean "mean"', caught(opts.choice, 'maen', { 'mean', 'sum' }, 'loss', 'reduction').message)
  end)

  it('read sizes', function()
    for text, bytes in pairs { ['512MiB'] = 2 ^ 29, ['16GB'] = 16e9, ['1.5 GiB'] = 1.5 * 2 ^ 30, ['10'] = 10,
                               ['2k'] = 2000, ['1 TiB'] = 2 ^ 40, ['7b'] = 7, ['1e3'] = 1000 } do
      assert.equal(bytes, opts.bytes(text), text)
    end
    assert.equal(12, opts.bytes(12))
    for _, bad in ipairs { 'x', '12 XB', '-1', '', -1, 1e300, true, '1.2.3' } do
      assert.equal('ARG', caught(opts.bytes, bad, 'limit').code, tostring(bad))
    end
  end)
end)

describe('the nearest name', function()
  it('is found by few edits', function()
    assert.equal(0, nearest.distance('abc', 'abc', 3))
    assert.equal(1, nearest.distance('abc', 'acb', 3))
    assert.equal(2, nearest.distance('abc', 'axcd', 3))
    assert.equal(4, nearest.distance('kitten', 'xyzzy', 3))
    local names = { 'learning_rate', 'weight_decay', 'stage', 'overlap_comm' }
    assert.equal('learning_rate', nearest.find('learnign_rate', names))
    assert.equal('learning_rate', nearest.find('Learning-Rate', names))
    assert.equal('overlap_comm', nearest.find('overlap', names))
    assert.equal('stage', nearest.find('stages', names))
    assert.equal('reduction', nearest.find('reduce', { 'reduction', 'ignore_index' }))
    assert.is_nil(nearest.find('temperature', names))
    assert.is_nil(nearest.find('x', names))
  end)
end)

describe('small things of z3', function()
  it('writes bytes', function()
    assert.equal('1.5 GiB', z3.bytes(1.5 * 2 ^ 30))
    assert.equal('0 B', z3.bytes(0))
    assert.equal('1023 B', z3.bytes(1023))
    assert.equal('1 KiB', z3.bytes(1024))
    assert.equal('1 MiB', z3.bytes(2 ^ 20 - 1))
    assert.equal('-2 MiB', z3.bytes(-2 ^ 21))
  end)

  it('knows its version and features', function()
    assert.matches('^%d+%.%d+', z3.version)
    local f = z3.features()
    assert.is_false(f.cuda)
    assert.is_truthy(f.onednn)
    assert.equal('boolean', type(f.amx))
    assert.equal(0, z3.rank)
    assert.equal(1, z3.world)
    assert.is_nil(z3.no_such_thing)
    assert.equal('not supported yet: z3.lora', caught(function() return z3.lora end).message)
  end)
end)
