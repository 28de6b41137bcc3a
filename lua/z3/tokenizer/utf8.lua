--- utf8.lua -- bytes to valid UTF-8: each maximal ill-formed piece becomes U+FFFD.
-- Source: The Unicode Standard, table 3-7 (well-formed byte sequences) and "Substitution of Maximal Subparts".
local M = {}

local REPLACEMENT = '\239\191\189'

-- Range of the second byte by the first; the others are 0x80 .. 0xBF.
local function second_range(a)
  if a == 0xE0 then return 0xA0, 0xBF end
  if a == 0xED then return 0x80, 0x9F end       -- no surrogates
  if a == 0xF0 then return 0x90, 0xBF end
  if a == 0xF4 then return 0x80, 0x8F end       -- nothing above U+10FFFF
  return 0x80, 0xBF
end

local function length(a)
  if a < 0x80 then return 1 end
  if a >= 0xC2 and a <= 0xDF then return 2 end
  if a >= 0xE0 and a <= 0xEF then return 3 end
  if a >= 0xF0 and a <= 0xF4 then return 4 end
  return nil
end

-- Bytes from i that belong together, and whether they are a whole character.
local function piece(s, i)
  local a = s:byte(i)
  local need = length(a)
  if not need then return 1, false end
  for j = 1, need - 1 do
    local c = s:byte(i + j)
    local low, high = 0x80, 0xBF
    if j == 1 then low, high = second_range(a) end
    if not c or c < low or c > high then return j, false end
  end
  return need, true
end

--- The same text with broken bytes replaced.
function M.clean(s)
  if not s:find '[\128-\255]' then return s end
  local parts, i, from = {}, 1, 1
  while i <= #s do
    local n, whole = piece(s, i)
    if not whole then
      parts[#parts + 1] = s:sub(from, i - 1)
      parts[#parts + 1] = REPLACEMENT
      from = i + n
    end
    i = i + n
  end
  parts[#parts + 1] = s:sub(from)
  return table.concat(parts)
end

return M
