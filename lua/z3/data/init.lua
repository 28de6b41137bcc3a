--- data/init.lua -- z3.data: token files, text, batches.
-- map.lua: mapped files; ids.lua: tensors of ids; tokens.lua: token files; text.lua: text with a cache;
-- sampler.lua: the order of an epoch; loader.lua: batches.
local ffi     = require 'ffi'
local err     = require 'z3.error'
local ids     = require 'z3.data.ids'
local sampler = require 'z3.data.sampler'

local M = {}

--- Memory-mapped tokens of a file: z3.data.tokens(path [, {dtype=}]).
M.tokens = require('z3.data.tokens').open

--- A text file, tokenised once into a cache: z3.data.text(path, tokenizer [, {cache=}]).
M.text = require('z3.data.text').open

--- Batches of a data set: z3.data.loader{dataset=, batch=, seq=, shuffle=, seed=, epochs=}.
M.loader = require('z3.data.loader').new

--- Conversations or documents as JSON lines.
-- @raise UNSUPPORTED for now
function M.jsonl()
  err.throw('UNSUPPORTED', 'not supported yet: z3.data.jsonl; z3.data.text reads plain text')
end

--- Random token ids for tests and benchmarks: the same for the same seed everywhere.
-- @int B  @int T  shape
-- @int vocab      ids are 0 .. vocab-1
-- @int[opt=0] seed
-- @treturn tensor (B,T) i32
function M.random_tokens(B, T, vocab, seed)
  local function whole(name, v, least)
    err.require_arg(type(v) == 'number' and v % 1 == 0 and v >= least,
      'data.random_tokens: %s is %s, wants a whole number >= %d', name, tostring(v), least)
  end
  whole('B', B, 0)
  whole('T', T, 0)
  whole('vocab', vocab, 1)
  local t, p = ids.new { B, T }
  local key = sampler.mix(ffi.cast('uint64_t', ffi.cast('int64_t', seed or 0)))
  for i = 0, B * T - 1 do
    -- 53 bits are a double in [0, 1) exactly.
    local u = tonumber(bit.rshift(sampler.mix(key + i), 11)) / 2 ^ 53
    p[i] = math.floor(u * vocab)
  end
  return ids.place(t)
end

return M
