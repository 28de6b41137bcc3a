--- text.lua -- a text file as tokens: tokenised once, then read from a cache file.
-- The cache is found by the hash of the text and of the tokenizer, and checked by the hash of its own content: a
-- changed text or another tokenizer makes a new file, a damaged one is made again.
local ffi    = require 'ffi'
local err    = require 'z3.error'
local opts   = require 'z3.opts'
local log    = require 'z3.log'
local map    = require 'z3.data.map'
local tokens = require 'z3.data.tokens'

local M = {}

--- Folder of cache files: $Z3_CACHE, else the user's cache folder, else a temporary one.
function M.cache_folder()
  local own, xdg, home = os.getenv 'Z3_CACHE', os.getenv 'XDG_CACHE_HOME', os.getenv 'HOME'
  if own and own ~= '' then return own end
  if xdg and xdg ~= '' then return xdg .. '/z3lua/tokens' end
  if home and home ~= '' then return home .. '/.cache/z3lua/tokens' end
  return (os.getenv 'TMPDIR' or '/tmp') .. '/z3lua-tokens'
end

local function hex(h) return bit.tohex(h, 16) end

local function hash_text(s) return map.hash(ffi.cast('const uint8_t *', s), #s) end

-- Smallest of our widths that holds every id below vocab.
local function kind_for(vocab)
  return vocab <= 256 and 'u8' or vocab <= 65536 and 'u16' or 'i32'
end

-- The ids of a text: a pointer to their bytes, their kind and number, and what keeps the pointer alive.
local function encode(file, tokenizer)
  if tokenizer.bytes_are_ids then return file.ptr, 'u8', file.bytes, file end
  local ids = tokenizer:encode(ffi.string(file.ptr, file.bytes))
  local kind = kind_for(tokenizer.vocab_size)
  local type_name = ({ u8 = 'uint8_t[?]', u16 = 'uint16_t[?]', i32 = 'int32_t[?]' })[kind]
  local buffer = ffi.new(type_name, #ids)
  for i = 1, #ids do buffer[i - 1] = ids[i] end
  return ffi.cast('const uint8_t *', buffer), kind, #ids, buffer
end

-- Writes header and ids to a temporary name, then renames: a cache file is whole or absent.
local function write(path, header, ptr, bytes)
  local temporary = ('%s.%d.part'):format(path, map.process())
  local f, why = io.open(temporary, 'wb')
  if not f then return nil, why end
  local ok = f:write(ffi.string(header, tokens.HEADER_BYTES))
  local block = 16 * 2 ^ 20
  for at = 0, bytes - 1, block do
    ok = ok and f:write(ffi.string(ptr + at, math.min(block, bytes - at)))
  end
  ok = f:close() and ok
  if ok then ok, why = os.rename(temporary, path) end
  if not ok then os.remove(temporary) end
  return ok, why or 'the disk is full'
end

-- The cached data set, or nil when there is none or it is damaged.
local function read(path, source, tokenizer_hash)
  local f = io.open(path, 'rb')
  if not f then return nil end
  f:close()
  local ok, d, h = pcall(tokens.open_own, path, 'data.text')
  if not ok then return nil end
  local bytes = d.count * tokens.KINDS[d.kind].bytes
  if h.source ~= source or h.tokenizer ~= tokenizer_hash then return nil end
  if h.payload ~= map.hash(ffi.cast('const uint8_t *', d.ptr), bytes) then
    log.warn(('%s is damaged; the text is tokenised again'):format(path))
    return nil
  end
  return d
end

local function base_name(path) return (path:match '[^/]+$' or path):gsub('[^%w%.%-_]', '_') end

local function make(path, folder, cached, file, tokenizer, source, tokenizer_hash)
  local ptr, kind, count, anchor = encode(file, tokenizer)
  if count == 0 then err.throw('ARG', ('data.text: %s has no tokens'):format(path)) end
  local bytes = count * tokens.KINDS[kind].bytes
  local ok, why = map.make_folder(folder)
  if ok then
    local h = tokens.Header({ version = 1, width = tokens.KINDS[kind].bytes, count = count,
      source = source, tokenizer = tokenizer_hash, payload = map.hash(ptr, bytes) })
    ffi.copy(h.magic, 'z3tokens', 8)
    ok, why = write(cached, h, ptr, bytes)
  end
  if ok then
    local d = tokens.open_own(cached, 'data.text')
    d.name = path
    return d
  end
  log.warn(('cannot keep tokens in %s (%s); they are held in memory and made again next time'):format(folder, why))
  return tokens.wrap(ptr, kind, count, anchor, path)
end

--- A text file as a data set of tokens.
-- @string path
-- @tab tokenizer   z3.tokenizer.bytes() or another with encode and vocab_size. Only one with a `fingerprint` (a string
--                  that changes when its ids do) is cached
-- @tab[opt] o      cache = folder of the cache file, or false for none
-- @raise IO (missing, unreadable, empty), ARG
function M.open(path, tokenizer, o)
  if type(path) ~= 'string' then
    err.throw('ARG', ('data.text: path is %s, wants a file name'):format(opts.show(path)))
  end
  if type(tokenizer) ~= 'table' or type(tokenizer.vocab_size) ~= 'number' then
    err.throw('ARG', 'data.text: the second argument wants a tokenizer, as z3.tokenizer.bytes()')
  end
  local v = opts.read(o, { cache = opts.either(opts.string, opts.boolean) }, 'data.text')
  local file = map.open(path, 'data.text')
  if v.cache == false or not tokenizer.fingerprint then
    local ptr, kind, count, anchor = encode(file, tokenizer)
    return tokens.wrap(ptr, kind, count, anchor, path)
  end
  local source, tokenizer_hash = map.hash(file.ptr, file.bytes), hash_text(tokenizer.fingerprint)
  local folder = type(v.cache) == 'string' and v.cache or M.cache_folder()
  local cached = ('%s/%s-%s-%s.tokens'):format(folder, base_name(path), hex(source), hex(tokenizer_hash):sub(1, 8))
  local d = read(cached, source, tokenizer_hash)
  if d then
    d.name = path
    return d
  end
  return make(path, folder, cached, file, tokenizer, source, tokenizer_hash)
end

return M
