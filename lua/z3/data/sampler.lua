--- sampler.lua -- the order of samples in an epoch: a pure function of (seed, epoch, position), nothing is stored.
-- Legend: n = samples. A shuffled order is a Feistel network over the smallest power of two >= n, walked until it
-- lands inside: a permutation of 0 .. n-1 that any position reads in constant time, whatever the size of the data.
-- Sources: Luby & Rackoff 1988; Black & Rogaway 2002 (cycle walking).
local ffi = require 'ffi'

local M = {}

local ROUNDS = 8                                -- even, so that unequal halves end as they began

-- splitmix64's finaliser: every bit of the result depends on every bit of the input.
local function mix(z)
  z = z + 0x9E3779B97F4A7C15ULL
  z = bit.bxor(z, bit.rshift(z, 30)) * 0xBF58476D1CE4E5B9ULL
  z = bit.bxor(z, bit.rshift(z, 27)) * 0x94D049BB133111EBULL
  return bit.bxor(z, bit.rshift(z, 31))
end
M.mix = mix

-- A whole Lua number as 64 bits, negative ones and those above 2^53 included.
local function word(v) return ffi.cast('uint64_t', ffi.cast('int64_t', v)) end

local function low_bits(v, bits) return tonumber(bit.band(v, bit.lshift(1ULL, bits) - 1ULL)) end

-- One permutation of 0 .. 2^(a+b)-1.
local function scramble(x, a, b, key)
  local left, right = math.floor(x / 2 ^ b), x % 2 ^ b
  for round = 1, ROUNDS do
    local width = round % 2 == 1 and a or b
    local f = low_bits(mix(key + word(right) * 0x100ULL + word(round)), width)
    -- The halves change places; the one that was `left` is `width` bits wide. Adding is as good as xor, in doubles.
    left, right = right, (left + f) % 2 ^ width
  end
  return left * 2 ^ b + right
end

--- The sample at a position of an epoch's order.
-- @int n        samples, >= 1
-- @int seed
-- @int epoch    from 0
-- @int position 0 .. n-1
-- @bool shuffle false: the position itself
function M.at(n, seed, epoch, position, shuffle)
  if not shuffle or n == 1 then return position end
  local bits = 6                                -- tiny domains have few Feistel permutations: walk in a larger one
  while 2 ^ bits < n do bits = bits + 1 end
  local a = math.floor(bits / 2)
  local b = bits - a
  local key = mix(mix(word(seed)) + word(epoch))
  local x = position
  repeat x = scramble(x, a, b, key) until x < n
  return x
end

return M
