--- tokens.lua -- a data set of token ids: a memory-mapped file, or ids held in memory.
-- Legend: n = number of tokens. A data set is anything with d:numel() and d:get(first, count).
-- Files: our own (text.lua writes them), llm.c's (its 1024-byte header is recognised), and raw little-endian ids.
local ffi    = require 'ffi'
local err    = require 'z3.error'
local opts   = require 'z3.opts'
local map    = require 'z3.data.map'
local ids    = require 'z3.data.ids'

local M = {}

local Tokens = {}
Tokens.__index = Tokens

local KINDS = {
  u8  = { bytes = 1, pointer = ffi.typeof 'const uint8_t *' },
  u16 = { bytes = 2, pointer = ffi.typeof 'const uint16_t *' },
  i32 = { bytes = 4, pointer = ffi.typeof 'const int32_t *' },
  i64 = { bytes = 8, pointer = ffi.typeof 'const int64_t *' },
}
M.KINDS = KINDS

--- Header of our own files; payload follows at byte 64.
M.Header = ffi.typeof [[struct {
  char magic[8];                /* "z3tokens" */
  uint32_t version, width;      /* 1; bytes per id: 1, 2 or 4 */
  uint64_t count;               /* ids */
  uint64_t source, tokenizer;   /* hashes of the text and of what made ids of it */
  uint64_t payload;             /* hash of the ids */
  uint64_t spare[2];
}]]
local HEADER_POINTER = ffi.typeof('const $ *', M.Header)
M.HEADER_BYTES = 64
local LLMC_BYTES = 1024

--- A data set over `count` ids at ptr; anchor keeps their memory alive.
function M.wrap(ptr, kind, count, anchor, name)
  return setmetatable({ ptr = ffi.cast(KINDS[kind].pointer, ptr), kind = kind, first = 0, count = count,
                        anchor = anchor, name = name }, Tokens)
end

--- Number of tokens.
function Tokens:numel() return self.count end

local function check_range(self, first, count)
  if type(first) ~= 'number' or type(count) ~= 'number' or first < 0 or count < 0 or first + count > self.count
    or first % 1 ~= 0 or count % 1 ~= 0 then
    err.throw('ARG', ('tokens %s: asked for %s tokens from %s, has %d'):format(self.name, tostring(count),
      tostring(first), self.count))
  end
end

--- Copies tokens first .. first+count-1 to an int32_t pointer: the loader's way, without a tensor between.
function Tokens:copy_to(dst, first, count)
  check_range(self, first, count)
  local src, from = self.ptr, self.first + first
  for i = 0, count - 1 do dst[i] = src[from + i] end
end

--- Tokens first .. first+count-1 as a new (count) i32 tensor.
-- @raise ARG outside the data
function Tokens:get(first, count)
  check_range(self, first, count)
  local t, p = ids.new { count }
  self:copy_to(p, first, count)
  return t
end

--- Cuts in two without copying: the first `fraction` of the tokens, and the rest.
-- @number fraction  0 < fraction < 1
function Tokens:split(fraction)
  if type(fraction) ~= 'number' or not (fraction > 0 and fraction < 1) then
    err.throw('ARG', ('tokens:split: fraction is %s, wants a number between 0 and 1'):format(tostring(fraction)))
  end
  local at = math.floor(self.count * fraction)
  local function part(first, count, label)
    local d = M.wrap(self.ptr, self.kind, count, self.anchor, self.name .. ' ' .. label)
    d.first = self.first + first
    return d
  end
  return part(0, at, '(first part)'), part(at, self.count - at, '(rest)')
end

function Tokens:__tostring()
  return ('tokens %s: %s, %s'):format(self.name, ('%.0f'):format(self.count), self.kind)
end

local function starts_with(file, text)
  return file.bytes >= #text and ffi.string(file.ptr, #text) == text
end

local function own_file(file, what)
  local path, h = file.path, ffi.cast(HEADER_POINTER, file.ptr)
  local kinds = { [1] = 'u8', [2] = 'u16', [4] = 'i32' }
  local kind = file.bytes >= M.HEADER_BYTES and h.version == 1 and kinds[tonumber(h.width)]
  local count = kind and tonumber(h.count)
  if not kind or count * h.width + M.HEADER_BYTES ~= file.bytes then
    err.throw('CORRUPT', ('%s: %s is cut short or from another version'):format(what, path))
  end
  return M.wrap(file.ptr + M.HEADER_BYTES, kind, count, file, path), h
end

-- llm.c: int32[256] header: magic, version, count; then u16 (GPT-2) or u32 (Llama 3) ids.
local function llmc_file(file, what)
  if file.bytes < LLMC_BYTES then return nil end
  local h = ffi.cast('const int32_t *', file.ptr)
  local kind = h[0] == 20240520 and h[1] == 1 and 'u16' or h[0] == 20240801 and h[1] == 7 and 'i32'
  if not kind then return nil end
  if h[2] < 0 or h[2] * KINDS[kind].bytes + LLMC_BYTES ~= file.bytes then
    err.throw('CORRUPT', ('%s: %s is cut short: its header says %d tokens'):format(what, file.path, h[2]))
  end
  return M.wrap(file.ptr + LLMC_BYTES, kind, h[2], file, file.path)
end

--- Opens our own file; returns the data set and its header.
-- @raise IO, CORRUPT
function M.open_own(path, what)
  local file = map.open(path, what)
  if not starts_with(file, 'z3tokens') then err.throw('CORRUPT', ('%s: %s is no token file'):format(what, path)) end
  return own_file(file, what)
end

--- Memory-mapped tokens.
-- @string path     a token file of ours or of llm.c, or raw ids without a header
-- @tab[opt] o      dtype = 'u8' | 'u16' (default) | 'i32' | 'i64' of a raw file
-- @raise IO (missing, unreadable, empty), CORRUPT (size doesn't fit), ARG
function M.open(path, o)
  if type(path) ~= 'string' then
    err.throw('ARG', ('data.tokens: path is %s, wants a file name'):format(opts.show(path)))
  end
  local v = opts.read(o, { dtype = opts.string }, 'data.tokens')
  local file = map.open(path, 'data.tokens')
  if starts_with(file, 'z3tokens') then return (own_file(file, 'data.tokens')) end
  local known = llmc_file(file, 'data.tokens')
  if known then return known end
  local kind = opts.choice(v.dtype or 'u16', { 'u8', 'u16', 'i32', 'i64' }, 'data.tokens', 'dtype')
  local width = KINDS[kind].bytes
  if file.bytes % width ~= 0 then
    err.throw('CORRUPT', ('data.tokens: %s has %.0f bytes, no multiple of %d (ids of dtype %s)'):format(path,
      file.bytes, width, kind))
  end
  return M.wrap(file.ptr, kind, file.bytes / width, file, path)
end

return M
