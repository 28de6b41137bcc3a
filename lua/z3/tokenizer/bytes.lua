--- bytes.lua -- the tokenizer that needs no vocabulary: the id is the byte.
local err    = require 'z3.error'
local opts   = require 'z3.opts'
local utf8   = require 'z3.tokenizer.utf8'
local T      = require 'z3.tensor'

local M = {}

local Bytes = { vocab_size = 256, name = 'bytes', fingerprint = 'bytes 1', bytes_are_ids = true }
Bytes.__index = Bytes

local CHUNK = 4096                              -- string.char takes so many arguments without growing the stack

--- Ids of a text: its bytes.
-- @string text
-- @tab[opt] o  add_special_tokens: accepted, there are none
-- @treturn table  sequence of 0 .. 255
function Bytes.encode(_, text, o)
  err.require_arg(type(text) == 'string', 'tokenizer:encode: text is %s, wants a string', opts.show(text))
  opts.read(o, { add_special_tokens = opts.boolean }, 'tokenizer:encode')
  local ids = {}
  for i = 1, #text do ids[i] = text:byte(i) end
  return ids
end

local function check_id(id, at)
  if type(id) ~= 'number' or id % 1 ~= 0 or id < 0 or id > 255 then
    err.throw('ARG', ('tokenizer:decode: id %d is %s, wants 0 to 255'):format(at, opts.show(id)))
  end
  return id
end

--- Text of ids; bytes that aren't UTF-8 become U+FFFD.
-- @param ids   a sequence of numbers, or an integer tensor
-- @tab[opt] o  skip_special_tokens: accepted, there are none
-- @raise ARG: an id above 255
function Bytes.decode(_, ids, o)
  opts.read(o, { skip_special_tokens = opts.boolean }, 'tokenizer:decode')
  if type(ids) == 'number' then ids = { ids } end
  err.require_arg(type(ids) == 'table' or T.is_tensor(ids), 'tokenizer:decode: ids are %s, want a table or a tensor',
    opts.show(ids))
  if T.is_tensor(ids) then ids = ids:reshape(-1):totable() end
  local parts = {}
  for first = 1, #ids, CHUNK do
    local chunk, last = {}, math.min(#ids, first + CHUNK - 1)
    for i = first, last do chunk[i - first + 1] = check_id(ids[i], i) end
    parts[#parts + 1] = string.char(unpack(chunk))
  end
  return utf8.clean(table.concat(parts))
end

--- Chat templates belong to a model's own tokenizer.
-- @raise UNSUPPORTED
function Bytes.chat()
  err.throw('UNSUPPORTED', 'the byte tokenizer has no chat template')
end

function Bytes.__tostring() return 'tokenizer: bytes, 256 ids' end

--- The byte tokenizer.
function M.new() return setmetatable({}, Bytes) end

return M
