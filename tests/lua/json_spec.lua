-- z3.json: what decodes to what, what encodes to what, and what is refused.
local z3 = require 'z3'
local json = z3.json

local function refused(code, pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_true(z3.is_error(e, code), tostring(e))
  assert.truthy(e.message:find(pattern), e.message)
  return e
end

describe('z3.json.decode', function()
  it('gives plain data', function()
    local v = json.decode '{"a": [1, 2.5, -3e2], "b": {"c": true, "d": false}, "e": "x"}'
    assert.same({ a = { 1, 2.5, -300 }, b = { c = true, d = false }, e = 'x' }, v)
    assert.equal('number', type(v.a[1]))
    assert.equal(3, json.decode '3')
    assert.equal('x', json.decode '"x"')
  end)

  it('leaves a null out of an object and keeps its place in an array', function()
    local v = json.decode '{"a": null, "b": [1, null, 3, null]}'
    assert.is_nil(v.a)
    assert.is_nil(next(json.decode '{"a": null}'))
    assert.equal(4, #v.b)
    assert.is_true(v.b[2] == json.null and v.b[4] == nil)
    assert.equal('[1,null,3,null]', json.encode(v.b))
    assert.is_true(json.decode 'null' == json.null)
  end)

  it('keeps every byte of a string', function()
    assert.equal('a\0b\0', json.decode '"a\\u0000b\\u0000"')
    assert.equal('\240\159\152\128é\n\t"\\/', json.decode '"\\ud83d\\ude00\\u00e9\\n\\t\\"\\\\\\/"')
    assert.equal(1, json.decode('{"k\\u0000": 1}')['k\0'])
  end)

  it('refuses a number that it would change', function()
    assert.equal(2 ^ 53, json.decode '9007199254740992')
    assert.equal(1e30, json.decode '1000000000000000019884624838656')
    assert.equal(0.1, json.decode '0.1')
    local e = refused('CORRUPT', '2%^53', json.decode, '{"a": [0, 9007199254740993]}')
    assert.truthy(e.message:find 'line 1, column 11')
    refused('CORRUPT', '2%^53', json.decode, '9223372036854775807')
    refused('CORRUPT', 'range', json.decode, '1e999')
  end)

  it('says where a text is wrong', function()
    for text, pattern in pairs {
      [''] = 'line 1, column 1: there is no value', ['{"a": }'] = 'line 1, column 7',
      ['[1,\n2,]'] = 'line 2, column 3', ['{"a": 1, "a": 2}'] = "column 10: duplicate key 'a'",
      ['{a: 1}'] = 'column 2', ['[1] 2'] = 'column 5', ['nan'] = "'nan' is no JSON value", ['"\255"'] = 'UTF%-8',
      ['"\\ud800"'] = 'surrogate', [('['):rep(600)] = '512 levels',
    } do
      refused('CORRUPT', pattern, json.decode, text)
    end
    refused('CORRUPT', '^f%.json:1:2: ', json.decode, '[', { name = 'f.json' })
    refused('ARG', 'is no string', json.decode, nil)
    refused('ARG', 'unknown option', json.decode, '1', { relax = true })
  end)

  it('takes comments and trailing commas when asked', function()
    local text = '{ // x\n a: 1, /* y */ "b": [2,], # z\n}'
    assert.same({ a = 1, b = { 2 } }, json.decode(text, { relaxed = true }))
    refused('CORRUPT', '', json.decode, text)
  end)
end)

describe('z3.json.encode', function()
  it('writes whole numbers in full and others so that they read back', function()
    assert.equal('9007199254740992', json.encode(2 ^ 53))
    assert.equal('-1000000000000', json.encode(-1e12))
    assert.equal('0.1', json.encode(0.1))
    assert.equal('1e+300', json.encode(1e300))
    local x = 17
    for _ = 1, 2000 do
      x = (x * 16807) % 2147483647
      local v = (x / 2147483647 - 0.5) * 10 ^ (x % 600 - 300)
      assert.equal(v, json.decode(json.encode(v)))
    end
  end)

  it('tells arrays from objects', function()
    assert.equal('[1,2,3]', json.encode { 1, 2, 3 })
    assert.equal('{}', json.encode {})
    assert.equal('[]', json.encode(json.array {}))
    assert.equal('{"a":[],"b":{}}', json.encode(json.decode '{"b": {}, "a": []}'))
    assert.equal('{"a":{"x":1},"b":[true,null]}', json.encode { b = { true, json.null }, a = { x = 1 } })
  end)

  it('sorts keys: equal data gives equal text', function()
    local one, other = {}, {}
    for i = 1, 100 do one['k' .. i] = i end
    for i = 100, 1, -1 do other['k' .. i] = i end
    assert.equal(json.encode(one), json.encode(other))
  end)

  it('escapes what must be', function()
    assert.equal('"\\"\\\\\\n\\u0000\\u001f/é\240\159\152\128"', json.encode '"\\\n\0\31/é\240\159\152\128')
    local all = {}
    for i = 0, 127 do all[#all + 1] = string.char(i) end
    local text = table.concat(all)
    assert.equal(text, json.decode(json.encode(text)))
  end)

  it('indents when asked', function()
    local text = json.encode({ a = { 1, 2 }, b = { c = 1 } }, { indent = 2 })
    assert.equal('{\n  "a": [1, 2],\n  "b": {\n    "c": 1\n  }\n}', text)
  end)

  it('refuses what JSON has not, and says where', function()
    refused('ARG', '^json.encode: a%.2%.b is nan', json.encode, { a = { 1, { b = 0 / 0 } } })
    refused('ARG', 'is inf', json.encode, math.huge)
    refused('ARG', 'is %-inf', json.encode, -math.huge)
    refused('ARG', 'key 1', json.encode, { 1, 2, nil, 4 })
    refused('ARG', 'key', json.encode, { 1, a = 2 })
    refused('ARG', 'key', json.encode, { [1.5] = 2 })
    refused('ARG', 'a is a function', json.encode, { a = print })
    refused('ARG', 'UTF%-8', json.encode, 'a\255')
    refused('ARG', 'UTF%-8', json.encode, '\237\160\128')
    refused('ARG', 'UTF%-8', json.encode, '\192\128')
    local loop = {}
    loop.loop = loop
    refused('ARG', '512 levels', json.encode, loop)
  end)

  it('ends what decode began', function()
    local text = '{"a":[1,[],{"b":"c"}],"d":{"e":[[[1.25]]]},"f":true}'
    assert.equal(text, json.encode(json.decode(text)))
  end)
end)
