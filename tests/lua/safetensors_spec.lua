-- z3.safetensors: round trips, files of others, what is refused, nothing left behind.
local z3 = require 'z3'
local st = z3.safetensors

local DATA = 'tests/parity/data/safetensors_bad/'

local function refused(code, pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_true(z3.is_error(e, code), tostring(e))
  assert.truthy(e.message:find(pattern), e.message)
end

local function free(tensors)
  for _, t in pairs(tensors) do t:free() end
end

describe('z3.safetensors', function()
  local dir
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    assert(os.execute('mkdir ' .. dir))
  end)
  after_each(function() os.execute('rm -rf ' .. dir) end)

  local function files()
    local pipe = assert(io.popen('ls -A ' .. dir))
    local list = pipe:read '*a'
    pipe:close()
    return (list:gsub('%s+$', ''))
  end

  local function bytes(path)
    local f = assert(io.open(path, 'rb'))
    local text = f:read '*a'
    f:close()
    return text
  end

  it('reads back what it wrote, every dtype and layout', function()
    z3.scope(function()
      local path = dir .. '/x.safetensors'
      local a = z3.arange(12):view(3, 4)
      local tensors = { a = a, t = a:transpose(0, 1), n = a:narrow(1, 1, 2), s = z3.tensor(2.5), z = z3.zeros { 0, 3 },
                        b = a:to 'bf16', h = a:to 'f16', i = a:to 'i32', l = a:to 'i64', u = a:to 'u8' }
      st.save(path, tensors, { note = 'é "quoted"\n', format = 'pt' })
      local back, metadata = st.load(path)
      assert.same({ note = 'é "quoted"\n', format = 'pt' }, metadata)
      for name, t in pairs(tensors) do
        assert.equal(t.dtype, back[name].dtype)
        assert.same(t.shape, back[name].shape)
        assert.same(t:totable(), back[name]:totable())
        tensors[name] = nil
        back[name] = nil
      end
      assert.is_nil(next(back))
      assert.equal('x.safetensors', files())
    end)
  end)

  it('gives equal bytes for equal content, largest elements first', function()
    z3.scope(function()
      local names = {}
      for i = 1, 30 do names[i] = 'p' .. i end
      local one, other = {}, {}
      for i = 1, 30 do one[names[i]] = z3.full({ i }, i, { dtype = i % 3 == 0 and 'bf16' or 'f32' }) end
      for i = 30, 1, -1 do other[names[i]] = one[names[i]]:clone() end
      st.save(dir .. '/1', one)
      st.save(dir .. '/2', other)
      assert.equal(bytes(dir .. '/1'), bytes(dir .. '/2'))
      local reader = st.open(dir .. '/1')
      local last
      for i, name in ipairs(reader.names) do
        local key = (reader:info(name).dtype == 'F32' and 0 or 1) .. name
        assert.is_true(i == 1 or last < key)
        last = key
      end
      reader:close()
    end)
  end)

  it('reads tensors one by one, and parts of them', function()
    local reader = st.open(DATA .. 'unsorted_header.safetensors')
    assert.same({ 'a', 'z' }, reader.names)
    assert.is_nil(reader.metadata)
    assert.same({ dtype = 'F32', shape = { 2 }, bytes = 8, offset = 124 }, reader:info 'z')
    local whole, part, none = reader:get 'z', reader:range('z', 1, 1), reader:range('z', 2, 0)
    assert.same({ 7, 8 }, whole:totable())
    assert.same({ 8 }, part:totable())
    assert.same({ 0 }, none.shape)
    free { whole, part, none }
    refused('ARG', 'elements 1 %+ 2 of "z", which has 2', reader.range, reader, 'z', 1, 2)
    refused('ARG', 'no tensor "y"', reader.get, reader, 'y')
    reader:close()
    reader:close()
    refused('STALE', 'is closed', reader.get, reader, 'z')
  end)

  it('loads by name, and refuses a dtype that it lacks only where it is wanted', function()
    local path = DATA .. 'many_dtypes.safetensors'
    local t = st.load(path, { 'bf', 'h', 'i', 'u' })
    assert.same({ 1, -2 }, t.bf:totable())
    assert.same({ 1, -2 }, t.h:totable())
    assert.same({ -5 }, t.i:totable())
    assert.same({ 1, 2, 3 }, t.u:totable())
    free(t)
    refused('UNSUPPORTED', 'many_dtypes%.safetensors: tensor "o" has dtype BOOL', st.load, path)
    refused('UNSUPPORTED', 'tensor "e" has dtype F8_E4M3', st.load, path, { 'u', 'e' })
    refused('ARG', 'has no tensor "bff" %(did you mean "bf"%?%)', st.load, path, { 'u', 'bff' })
    refused('ARG', 'wants a list', st.load, path, 'u')
  end)

  it('judges the files of others by the format', function()
    local f = assert(io.open(DATA .. 'manifest.json', 'rb'))
    local manifest = z3.json.decode(f:read '*a')
    f:close()
    assert.is_true(#manifest.files >= 48)
    for _, row in ipairs(manifest.files) do
      local ok, result = pcall(st.open, DATA .. row.file)
      assert.equal(row.by_the_format == 'valid', ok, row.file .. ': ' .. row.why)
      if ok then
        for name, t in pairs(row.official.tensors) do
          assert.same(t.shape, result:info(name).shape)
          assert.equal(t.dtype, result:info(name).dtype)
        end
        assert.same(row.official.metadata, result.metadata)
        result:close()
      else
        assert.is_true(z3.is_error(result, 'CORRUPT'), tostring(result))
        assert.truthy(result.message:find(row.file, 1, true))
      end
    end
    refused('IO', 'no/such/file', st.load, 'no/such/file')
    refused('IO', 'not a regular file', st.load, '/')
    refused('ARG', 'wants a string', st.load, nil)
  end)

  it('refuses what it cannot write, and leaves nothing behind', function()
    z3.scope(function()
      local path, a = dir .. '/x', z3.ones { 2 }
      refused('ARG', '"b" is 1, wants a tensor', st.save, path, { a = a, b = 1 })
      refused('ARG', 'has the key 1', st.save, path, { a })
      refused('ARG', 'UTF%-8', st.save, path, { ['\255'] = a })
      refused('ARG', '__metadata__', st.save, path, { __metadata__ = a })
      refused('ARG', 'metadata "n" is 1', st.save, path, { a = a }, { n = 1 })
      refused('IO', 'no/such/folder', st.save, dir .. '/no/such/folder/x', { a = a })
      refused('ARG', 'wants a table', st.save, path, a)
      local dead = z3.ones { 2 }
      dead:free()
      refused('STALE', 'freed', st.save, path, { dead = dead })
      assert.equal('', files())
      st.save(path, { a = a })
      refused('STALE', 'freed', st.save, path, { a = a, dead = dead })      -- the old file stays
      assert.same({ 1, 1 }, st.load(path).a:totable())
      assert.equal('x', files())
      st.save(path, {})
      assert.same({}, (st.load(path)))
    end)
  end)

  it('replaces a file as a whole', function()
    z3.scope(function()
      local path = dir .. '/x'
      st.save(path, { a = z3.ones { 4 } })
      local reader = st.open(path)
      st.save(path, { a = z3.zeros { 9 } })
      assert.same({ 1, 1, 1, 1 }, reader:get('a'):totable())      -- a reader keeps the file that it opened
      reader:close()
      assert.equal(9, st.load(path).a:numel())
    end)
  end)

  it('saves parameters and results of operations', function()
    z3.scope(function()
      local p = z3.ones { 3 }
      p:requires_grad_()
      local path = dir .. '/x'
      st.save(path, { p = p, y = p * 2, row = (p * 3):expand(2, 3) })
      local t = st.load(path)
      assert.same({ 2, 2, 2 }, t.y:totable())
      assert.same({ { 3, 3, 3 }, { 3, 3, 3 } }, t.row:totable())
      assert.is_falsy(t.p.requires_grad)
    end)
  end)
end)
