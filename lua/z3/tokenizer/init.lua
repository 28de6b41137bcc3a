--- tokenizer/init.lua -- z3.tokenizer. A tokenizer has encode, decode, chat and vocab_size, and a fingerprint that
-- changes when its ids do (text.lua names cache files by it).
local err = require 'z3.error'

local M = {}

--- The id is the byte.
M.bytes = require('z3.tokenizer.bytes').new

--- A tokenizer.json or the folder that holds one.
-- @raise UNSUPPORTED for now
function M.load()
  err.throw('UNSUPPORTED', 'not supported yet: z3.tokenizer.load; z3.tokenizer.bytes() needs no file')
end

return M
