--- nearest.lua -- which known name did the user mean?
-- Source: optimal string alignment distance (insert, delete, replace, swap of neighbours).
local M = {}

--- Number of single edits between two strings; gives up and returns limit + 1 when it is more than `limit`.
function M.distance(a, b, limit)
  local n, m = #a, #b
  if math.abs(n - m) > limit then return limit + 1 end
  local before, last, row = nil, {}
  for j = 0, m do last[j] = j end
  for i = 1, n do
    row = { [0] = i }
    local least = i
    for j = 1, m do
      local same = a:byte(i) == b:byte(j)
      local d = math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (same and 0 or 1))
      if before and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        d = math.min(d, before[j - 2] + 1)
      end
      row[j] = d
      if d < least then least = d end
    end
    if least > limit then return limit + 1 end
    before, last = last, row
  end
  return last[m]
end

local COMMON = 4                                -- letters at the start that make two names close

--- Do the names begin alike: at least COMMON letters and three quarters of the shorter one?
local function begin_alike(a, b)
  local n = math.min(#a, #b)
  local k = math.max(math.min(COMMON, n), math.ceil(0.75 * n))
  return n >= 3 and a:sub(1, k) == b:sub(1, k)
end

--- The name in `names` (a sequence) that is closest to `word`, or nil when none is close.
-- Case and the difference of '-' and '_' count nothing; names that begin alike are close.
function M.find(word, names)
  local w = tostring(word):lower():gsub('-', '_')
  local limit = math.max(1, math.floor(#w / 3))
  local best, best_d
  for _, name in ipairs(names) do
    local n = name:lower():gsub('-', '_')
    local d = M.distance(w, n, limit)
    if d > limit and begin_alike(w, n) then d = limit end
    if d <= limit and (not best or d < best_d or d == best_d and name < best) then best, best_d = name, d end
  end
  return best
end

--- The keys of a table as a sorted sequence of strings (pairs' order differs between processes).
function M.keys(t)
  local names = {}
  for k in pairs(t) do names[#names + 1] = tostring(k) end
  table.sort(names)
  return names
end

--- ' (did you mean "lr"?)', or ' (known: a, b, c)' when nothing is close.
function M.hint(word, names)
  local near = M.find(word, names)
  if near then return (' (did you mean "%s"?)'):format(near) end
  if #names == 0 then return '' end
  return (' (known: %s)'):format(table.concat(names, ', '))
end

return M
