--- args_spec.lua -- the recipe's own options: z3.args.
local z3   = require 'z3'
local args = require 'z3.args'

local DEFAULTS = { data = 'input.txt', steps = 200, lr = 1e-3, bf16 = false, shuffle = true, micro_batch = 4, out = '' }

local function parse(...) return args.parse({ ... }, DEFAULTS) end

local function message(...)
  local ok, e = pcall(parse, ...)
  assert.is_false(ok, 'expected an error')
  assert.is_true(z3.is_error(e, 'ARG'), tostring(e))
  return e.message
end

describe('z3.args', function()
  local saved
  before_each(function() saved = rawget(_G, 'arg') end)
  after_each(function() rawset(_G, 'arg', saved) end)

  it('gives the defaults', function()
    assert.same(DEFAULTS, parse())
  end)

  it('reads --key value, --key=value, flags and their negation', function()
    local o = parse('--steps', '7', '--lr=-2.5e-4', '--bf16', '--no-shuffle', '--data', 'a b.txt', '--out=')
    assert.equal(7, o.steps)
    assert.equal(-2.5e-4, o.lr)
    assert.is_true(o.bf16)
    assert.is_false(o.shuffle)
    assert.equal('a b.txt', o.data)
    assert.equal('', o.out)
  end)

  it('takes - for _ in keys, negative numbers, values with =, and the last of repeated ones', function()
    local o = parse('--micro-batch', '-3', '--data=k=v', '--steps', '1', '--steps', '2', '--bf16=false', '--shuffle',
                    'false')
    assert.equal(-3, o.micro_batch)
    assert.equal('k=v', o.data)
    assert.equal(2, o.steps)
    assert.is_false(o.bf16)
    assert.is_false(o.shuffle)
  end)

  it('names the nearest key of an unknown one', function()
    assert.equal('unknown option --step (did you mean "steps"?)', message('--step', '3'))
    assert.matches('known: bf16, data', message('--qqqqqq', '3'))
    assert.matches('"extra" is not an option', message('extra'))
    assert.matches('unknown option %-%-no%-steps', message('--no-steps'))
  end)

  it('refuses wrong types and missing values', function()
    assert.equal('--steps is "many", wants a number', message('--steps', 'many'))
    assert.equal('--steps is "nan", wants a number', message('--steps=nan'))
    assert.equal('--bf16 is "perhaps", wants true or false', message('--bf16=perhaps'))
    assert.matches('%-%-steps wants a value', message('--steps'))
    assert.matches('%-%-steps wants a value', message('--steps', '--bf16'))
    local ok, e = pcall(args.parse, {}, { list = {} })
    assert.is_false(ok)
    assert.matches('default of "list" is table', e.message)
  end)

  it('reads the global arg', function()
    rawset(_G, 'arg', { [0] = 'recipe.lua', '--steps', '9' })
    assert.equal(9, z3.args(DEFAULTS).steps)
  end)

  it('prints keys, defaults and texts for --help, and ends with status 0', function()
    local text, _, status = require('tests.lua.helper').z3lua [[-e "arg = { [0] = 'r.lua', '--help' }
      require('z3').args({ data = 'input.txt', steps = 200 }, { data = 'plain text file' })
      print 'not reached'"]]
    assert.matches('^r.lua: options, with their defaults\n', text)
    assert.matches('  %-%-data   "input.txt"  plain text file\n', text)
    assert.matches('  %-%-steps  200\n', text)
    assert.equal(0, status)
    assert.is_nil(text:find 'not reached')
  end)
end)
