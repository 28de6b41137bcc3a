--- data_spec.lua -- token files, text with its cache, the order of samples, loaders and their state.
local ffi = require 'ffi'
local z3  = require 'z3'
local sampler = require 'z3.data.sampler'
local map = require 'z3.data.map'

local folder = os.tmpname()
os.remove(folder)
assert(map.make_folder(folder .. '/cache'))

local function path_of(name) return folder .. '/' .. name end

local function write(name, bytes)
  local f = assert(io.open(path_of(name), 'wb'))
  f:write(bytes)
  f:close()
  return path_of(name)
end

local function packed(kind, ids)
  local p = ffi.new(kind .. '[?]', #ids, ids)
  return ffi.string(p, ffi.sizeof(p))
end

local function code_of(fn, ...)
  local ok, e = pcall(fn, ...)
  return not ok and e.code or nil, not ok and tostring(e) or ''
end

local function ids_of(d, first, count)
  local t = d:get(first, count)
  assert.equal('i32', t.dtype)
  local ids = t:totable()
  t:free()
  return ids
end

-- A data set in Lua: token i is i.
local function counting(n, as_tensor)
  return { numel = function() return n end, get = function(_, first, count)
    local ids = {}
    for i = 1, count do ids[i] = first + i - 1 end
    return as_tensor and z3.tensor(ids, { dtype = as_tensor }) or ids
  end }
end

-- First token of every sample that a loader yields, until its end.
local function samples(loader, limit)
  local seen, n = {}, 0
  for batch in loader do
    for _, row in ipairs(batch.tokens:totable()) do seen[#seen + 1] = row[1] end
    loader:recycle(batch)
    n = n + 1
    if n == limit then break end
  end
  return seen
end

teardown(function() os.execute("rm -rf '" .. folder .. "'") end)

describe('data.tokens', function()
  it('maps raw ids of every width', function()
    for kind, ids in pairs { u8 = { 3, 7, 255 }, u16 = { 1, 2, 65535 }, i32 = { 5, 70000 }, i64 = { 5, 6 } } do
      local c_type = ({ u8 = 'uint8_t', u16 = 'uint16_t', i32 = 'int32_t', i64 = 'int64_t' })[kind]
      local d = z3.data.tokens(write('a.' .. kind, packed(c_type, ids)), { dtype = kind })
      assert.equal(#ids, d:numel())
      assert.same(ids, ids_of(d, 0, #ids))
      assert.same({ ids[2] }, ids_of(d, 1, 1))
    end
    assert.equal(3, z3.data.tokens(path_of 'a.u16'):numel())
  end)

  it("knows llm.c's header", function()
    local head = {}
    for i = 1, 256 do head[i] = 0 end
    head[1], head[2], head[3] = 20240520, 1, 3
    local file = write('llmc.bin', packed('int32_t', head) .. packed('uint16_t', { 9, 8, 7 }))
    local d = z3.data.tokens(file)
    assert.equal(3, d:numel())
    assert.same({ 9, 8, 7 }, ids_of(d, 0, 3))
    head[3] = 4
    file = write('llmc_short.bin', packed('int32_t', head) .. packed('uint16_t', { 9, 8, 7 }))
    assert.equal('CORRUPT', (code_of(z3.data.tokens, file)))
  end)

  it('splits without copying', function()
    local d = z3.data.tokens(write('split.u16', packed('uint16_t', { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 })))
    local first, rest = d:split(0.75)
    assert.equal(7, first:numel())
    assert.equal(3, rest:numel())
    assert.same({ 6 }, ids_of(first, 6, 1))
    assert.same({ 7, 8, 9 }, ids_of(rest, 0, 3))
    local _, inner = rest:split(0.5)
    assert.same({ 8, 9 }, ids_of(inner, 0, 2))
    assert.equal('ARG', (code_of(first.get, first, 6, 2)))
    assert.equal('ARG', (code_of(d.split, d, 1)))
  end)

  it('names what is wrong with a file', function()
    local code, text = code_of(z3.data.tokens, path_of 'missing.bin')
    assert.equal('IO', code)
    assert.matches('missing.bin', text, 1, true)
    code, text = code_of(z3.data.tokens, write('empty.bin', ''))
    assert.equal('IO', code)
    assert.matches('empty', text)
    assert.equal('IO', (code_of(z3.data.tokens, folder)))
    code, text = code_of(z3.data.tokens, write('odd.bin', 'abc'))
    assert.equal('CORRUPT', code)
    assert.matches('3 bytes', text)
    assert.equal('ARG', (code_of(z3.data.tokens, 5)))
    assert.equal('ARG', (code_of(z3.data.tokens, path_of 'odd.bin', { dtype = 'u32' })))
  end)
end)

describe('data.text', function()
  local tok = z3.tokenizer.bytes()
  local o = { cache = folder .. '/cache' }

  local function cache_files()
    local names = {}
    local p = assert(io.popen("ls '" .. o.cache .. "'"))
    for name in p:lines() do names[#names + 1] = name end
    p:close()
    return names
  end

  it('tokenises once, notices a changed text and a damaged cache', function()
    local text = 'To be, or not to be\n'
    local file = write('play.txt', text)
    local count = 0
    local spy = setmetatable({ fingerprint = 'spy', vocab_size = 300, bytes_are_ids = false,
      encode = function(_, s) count = count + 1; return tok:encode(s) end }, {})
    assert.same(tok:encode(text), ids_of(z3.data.text(file, spy, o), 0, #text))
    assert.same(tok:encode(text), ids_of(z3.data.text(file, spy, o), 0, #text))
    assert.equal(1, count)
    local name = cache_files()[1]
    assert.equal(1, #cache_files())

    local f = assert(io.open(o.cache .. '/' .. name, 'r+b'))
    f:seek('set', 70)
    f:write 'XX'
    f:close()
    assert.same(tok:encode(text), ids_of(z3.data.text(file, spy, o), 0, #text))
    assert.equal(2, count)

    write('play.txt', 'That is the question')
    assert.same(tok:encode 'That is', ids_of(z3.data.text(file, spy, o), 0, 7))
    assert.equal(3, count)
    assert.equal(2, #cache_files())
    spy.fingerprint = 'another'
    z3.data.text(file, spy, o)
    assert.equal(4, count)
    assert.equal(3, #cache_files())
  end)

  it('reads bytes with and without a cache', function()
    local text = ('0123456789'):rep(1000) .. '\255\0'
    local file = write('bytes.txt', text)
    for _, cache in ipairs { folder .. '/cache/deeper/still', false } do
      for _ = 1, 2 do
        local d = z3.data.text(file, tok, { cache = cache })
        assert.equal(#text, d:numel())
        assert.same({ 57, 255, 0 }, ids_of(d, #text - 3, 3))
      end
    end
  end)

  it('goes on without a cache folder that it may write', function()
    local d = z3.data.text(write('nocache.txt', 'abc'), tok, { cache = '/proc/nowhere' })
    assert.same({ 97, 98, 99 }, ids_of(d, 0, 3))
  end)

  it('names what is wrong', function()
    local code, text = code_of(z3.data.text, path_of 'none.txt', tok, o)
    assert.equal('IO', code)
    assert.matches('none.txt', text, 1, true)
    code, text = code_of(z3.data.text, write('void.txt', ''), tok, o)
    assert.equal('IO', code)
    assert.matches('empty', text)
    assert.equal('ARG', (code_of(z3.data.text, path_of 'void.txt')))
    assert.equal('UNSUPPORTED', (code_of(z3.data.jsonl, path_of 'a.jsonl', tok)))
  end)
end)

describe('data.sampler', function()
  it('is a permutation for any size, seed and epoch', function()
    for _, n in ipairs { 1, 2, 3, 7, 64, 65, 1000, 4097 } do
      for epoch = 0, 2 do
        local seen = {}
        for k = 0, n - 1 do
          local s = sampler.at(n, 5, epoch, k, true)
          assert(s >= 0 and s < n and not seen[s])
          seen[s] = true
        end
      end
    end
  end)

  it('differs between seeds and epochs, and scatters neighbours', function()
    local n, same_epoch, same_seed, near = 1000, 0, 0, 0
    for k = 0, n - 1 do
      local a = sampler.at(n, 1, 0, k, true)
      if a == sampler.at(n, 1, 1, k, true) then same_epoch = same_epoch + 1 end
      if a == sampler.at(n, 2, 0, k, true) then same_seed = same_seed + 1 end
      if k > 0 and math.abs(a - sampler.at(n, 1, 0, k - 1, true)) < 10 then near = near + 1 end
    end
    assert(same_epoch < 10 and same_seed < 10 and near < 50)
    -- Mean distance of a random permutation from the identity is n/3.
    local total = 0
    for k = 0, n - 1 do total = total + math.abs(sampler.at(n, 3, 0, k, true) - k) end
    assert.is_near(n / 3, total / n, 30)
    assert.equal(5, sampler.at(n, 1, 0, 5, false))
  end)
end)

describe('data.loader', function()
  it('yields windows and their successors', function()
    local loader = z3.data.loader { dataset = counting(23), batch = 3, seq = 5, epochs = 1 }
    assert.equal(4, loader.samples)             -- floor(22 / 5)
    local a, b = loader:next(), loader:next()
    assert.same({ { 0, 1, 2, 3, 4 }, { 5, 6, 7, 8, 9 }, { 10, 11, 12, 13, 14 } }, a.tokens:totable())
    assert.same({ { 1, 2, 3, 4, 5 }, { 6, 7, 8, 9, 10 }, { 11, 12, 13, 14, 15 } }, a.targets:totable())
    assert.equal(15, a.count)
    assert.equal('i32', a.tokens.dtype)
    assert.same({ { 15, 16, 17, 18, 19 } }, b.tokens:totable())
    assert.equal(5, b.count)
    assert.is_nil(loader:next())
    assert.is_nil(loader:next())
  end)

  it('takes data sets that give tables or tensors', function()
    for _, kind in ipairs { false, 'i32', 'i64', 'u8' } do
      local loader = z3.data.loader { dataset = counting(11, kind), batch = 2, seq = 5, epochs = 1 }
      local batch = loader:next()
      assert.same({ { 1, 2, 3, 4, 5 }, { 6, 7, 8, 9, 10 } }, batch.targets:totable())
    end
  end)

  it('has every sample once per epoch, in an order of seed and epoch only', function()
    local function order(seed, batch)
      return samples(z3.data.loader { dataset = counting(101 * 4 + 1), batch = batch, seq = 4, shuffle = true,
        seed = seed, epochs = 2 })
    end
    local got = order(7, 8)
    assert.equal(202, #got)
    for epoch = 0, 1 do
      local seen = {}
      for i = 1, 101 do seen[got[epoch * 101 + i]] = true end
      for k = 0, 100 do assert.is_true(seen[k * 4]) end
    end
    assert.are_not.same({ unpack(got, 1, 101) }, { unpack(got, 102, 202) })
    assert.same(got, order(7, 8))
    assert.same(got, order(7, 3))
    assert.are_not.same(got, order(8, 8))
  end)

  it('shares an epoch between ranks: each sample once, equal numbers of rounds, an empty last batch', function()
    for _, world in ipairs { 1, 2, 3, 5 } do
      local seen, order, rounds = {}, {}, nil
      local loaders = {}
      for r = 0, world - 1 do
        loaders[r] = z3.data.loader { dataset = counting(23 * 2 + 1), batch = 4, seq = 2, shuffle = true, seed = 3,
          epochs = 1, rank = r, world = world }
      end
      for m = 1, 100 do
        local ended = 0
        for r = 0, world - 1 do
          local b = loaders[r]:next()
          if not b then ended = ended + 1
          else
            assert.equal(2, b.tokens.shape[2])
            assert.equal(2 * b.tokens.shape[1], b.count)
            for _, row in ipairs(b.tokens:totable()) do
              assert.is_nil(seen[row[1]])
              seen[row[1]] = true
              order[#order + 1] = row[1]
            end
          end
        end
        assert(ended == 0 or ended == world)
        if ended > 0 then rounds = m - 1; break end
      end
      assert.equal(23, #order)
      assert.equal(math.ceil(23 / (4 * world)), rounds)
      assert.equal(rounds, loaders[0]:batches())
      assert.same(samples(z3.data.loader { dataset = counting(47), batch = 4, seq = 2, shuffle = true, seed = 3,
        epochs = 1, rank = 0, world = 1 }), order)
    end
  end)

  it('goes on from its state, also at another world size', function()
    local function new(world, rank)
      return z3.data.loader { dataset = counting(61), batch = 2, seq = 3, shuffle = true, seed = 9, rank = rank or 0,
        world = world or 1, epochs = 3 }
    end
    local whole = samples(new())
    local a = new()
    local head = samples(a, 13)
    local state = z3.json.decode(z3.json.encode(a:state()))
    local b = new()
    b:load_state(state)
    local tail = samples(b)
    for i = 1, #tail do head[#head + 1] = tail[i] end
    assert.same(whole, head)
    assert.equal(60, #whole)

    local r0, r1, order = new(2, 0), new(2, 1), {}
    r0:load_state(state)
    r1:load_state(state)
    while true do
      local x, y = r0:next(), r1:next()
      if not x then break end
      for _, batch in ipairs { x, y } do
        for _, row in ipairs(batch.tokens:totable()) do order[#order + 1] = row[1] end
      end
    end
    assert.same(tail, order)
    assert.equal('ARG', (code_of(b.load_state, b, { version = 1, samples = 5, seq = 3 })))
    assert.equal('ARG', (code_of(b.load_state, b, {})))
  end)

  it('goes on without end unless epochs says otherwise, and knows what is left of one', function()
    local loader = z3.data.loader { dataset = counting(21), batch = 3, seq = 4 }
    assert.equal(2, loader:batches_left())
    for _ = 1, 7 do
      local batch = loader:next()
      loader:recycle(batch)
    end
    assert.equal(1, loader:batches_left())
    loader:reset()
    assert.equal(0, loader:next().tokens:totable()[1][1])
  end)

  it("takes manual_seed's seed unless it has its own", function()
    local function first()
      return samples(z3.data.loader { dataset = counting(401), batch = 4, seq = 4, shuffle = true, epochs = 1 })
    end
    z3.manual_seed(11)
    local a = first()
    z3.manual_seed(12)
    local b = first()
    z3.manual_seed(11)
    assert.same(a, first())
    assert.are_not.same(a, b)
    z3.manual_seed(0)
  end)

  it('says what is wrong', function()
    local function bad(o) return code_of(z3.data.loader, o) end
    local code, text = bad { dataset = counting(8), batch = 1, seq = 8 }
    assert.equal('ARG', code)
    assert.matches('8 tokens', text)
    assert.matches('needs 9', text)
    assert.is_nil((bad { dataset = counting(9), batch = 1, seq = 8 }))
    assert.equal('ARG', (bad { dataset = counting(8), batch = 0, seq = 4 }))
    assert.equal('ARG', (bad { dataset = counting(8), batch = 1.5, seq = 4 }))
    assert.equal('ARG', (bad { dataset = {}, batch = 1, seq = 4 }))
    assert.equal('ARG', (bad { batch = 1, seq = 4 }))
    code, text = bad { dataset = counting(8), batch = 1, sequence = 4 }
    assert.equal('ARG', code)
    assert.matches('seq', text)
  end)
end)

describe('data.random_tokens', function()
  it('depends on the seed only and covers the range', function()
    local a, b = z3.data.random_tokens(20, 50, 7, 3), z3.data.random_tokens(20, 50, 7, 3)
    assert.same({ 20, 50 }, a.shape)
    assert.equal('i32', a.dtype)
    assert.same(a:totable(), b:totable())
    assert.are_not.same(a:totable(), z3.data.random_tokens(20, 50, 7, 4):totable())
    local count = {}
    for _, row in ipairs(a:totable()) do
      for _, id in ipairs(row) do
        assert(id >= 0 and id < 7 and id % 1 == 0)
        count[id] = (count[id] or 0) + 1
      end
    end
    for id = 0, 6 do assert(count[id] > 90 and count[id] < 200) end
    assert.equal('ARG', (code_of(z3.data.random_tokens, 2, 3, 0, 1)))
  end)
end)
