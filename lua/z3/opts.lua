--- opts.lua -- strict option tables: an unknown key is an error with the nearest known one, types are checked.
--
--   local o = opts.read(user, { lr = 1e-3, betas = { 0.9, 0.999 }, init = opts.string, on = false }, 'adamw')
--
-- A default states the type: its own. A key without a default is declared by one of the markers below.
local ffi     = require 'ffi'
local err     = require 'z3.error'
local nearest = require 'z3.nearest'

local M = {}

local Marker = {}
local function marker(name, types)
  return setmetatable({ name = name, types = types }, Marker)
end

--- Markers of keys that are nil unless given.
M.number   = marker('a number', { number = true })
M.string   = marker('a string', { string = true })
M.boolean  = marker('true or false', { boolean = true })
M.table    = marker('a table', { table = true })
M.func     = marker('a function', { ['function'] = true })
M.tensor   = marker('a tensor', { table = true, cdata = true })
M.integer  = marker('a whole number', { number = true })
M.size     = marker('a size: bytes, or a string as "512MiB"', { number = true, string = true })
M.any      = marker('anything', nil)
--- One of several types: opts.either(opts.string, opts.number).
function M.either(...)
  local names, types = {}, {}
  for i, m in ipairs { ... } do
    names[i] = m.name
    for k in pairs(m.types) do types[k] = true end
  end
  return marker(table.concat(names, ' or '), types)
end

local ARTICLE = { number = 'a number', string = 'a string', boolean = 'true or false', table = 'a table',
                  ['function'] = 'a function', cdata = 'a tensor' }

--- A value as an error message shows it.
function M.show(v)
  if type(v) == 'string' then return ('"%s"'):format(v) end
  return type(v) == 'table' and 'a table' or tostring(v)
end

local function check_value(v, spec, key, what)
  local is_marker = getmetatable(spec) == Marker
  local wants = is_marker and spec.name or ARTICLE[type(spec)]
  local ok
  if is_marker then ok = spec.types == nil or spec.types[type(v)] else ok = type(v) == type(spec) end
  if ok and spec == M.integer and v % 1 ~= 0 then ok = false end
  if not ok then err.throw('ARG', ('%s: "%s" is %s, wants %s'):format(what, key, M.show(v), wants)) end
end

--- Throws ARG for the first key of `user` (in sorted order) that isn't in `known` (a table whose keys are the names).
function M.check_keys(user, known, what)
  local bad
  for k in pairs(user) do
    if known[k] == nil and (bad == nil or tostring(k) < tostring(bad)) then bad = k end
  end
  if bad ~= nil then
    err.throw('ARG', ('%s: unknown option "%s"%s'):format(what, tostring(bad), nearest.hint(bad, nearest.keys(known))))
  end
end

--- A new table: the defaults with the user's values over them.
-- @tab user   may be nil
-- @tab spec   key -> default or marker
-- @string what  name of the function, for messages
-- @raise ARG: unknown key (nearest shown), wrong type
function M.read(user, spec, what)
  local out = {}
  if user ~= nil then
    if type(user) ~= 'table' then
      err.throw('ARG', ('%s: options are %s, wants a table'):format(what, M.show(user)))
    end
    M.check_keys(user, spec, what)
    for k, v in pairs(user) do check_value(v, spec[k], k, what); out[k] = v end
  end
  for k, d in pairs(spec) do
    if out[k] == nil and getmetatable(d) ~= Marker then out[k] = d end
  end
  return out
end

--- The same for a C struct: numbers and booleans of `defaults` overlaid by `user` in a new struct of type `ct`.
-- LuaJIT's own initialiser ignores unknown keys and cuts fractions; this refuses both.
function M.fill(ct, defaults, user, what)
  local values = M.read(user, defaults, what)
  local s = ffi.new(ct)
  for k, v in pairs(values) do
    s[k] = v
    local back = s[k]
    if type(v) == 'number' and type(back) ~= 'boolean' and tonumber(back) ~= v and v == v then
      err.throw('ARG', ('%s: "%s" is %s, wants a whole number in range'):format(what, k, tostring(v)))
    end
  end
  return s
end

--- Throws ARG unless v is a number (a whole one where `whole`). Returns it.
function M.want_number(v, what, key, whole)
  if type(v) ~= 'number' or whole and v % 1 ~= 0 then
    err.throw('ARG', ('%s: %s is %s, wants a %snumber'):format(what, key, M.show(v), whole and 'whole ' or ''))
  end
  return v
end

--- Throws ARG unless fn can be called. Returns it.
function M.want_callable(fn, what)
  local meta = type(fn) == 'table' and getmetatable(fn)
  if type(fn) ~= 'function' and not (type(meta) == 'table' and meta.__call) then
    err.throw('ARG', ('%s: the first argument is %s, wants a function'):format(what, M.show(fn)))
  end
  return fn
end

--- One of the given names, else ARG with the nearest.
function M.choice(value, names, what, key)
  for _, n in ipairs(names) do if value == n then return value end end
  err.throw('ARG', ('%s: %s is %s%s'):format(what, key, M.show(value),
    type(value) == 'string' and nearest.hint(value, names) or ', wants one of ' .. table.concat(names, ', ')))
end

local UNITS = { b = 1, k = 1e3, kb = 1e3, m = 1e6, mb = 1e6, g = 1e9, gb = 1e9, t = 1e12, tb = 1e12,
                kib = 2 ^ 10, mib = 2 ^ 20, gib = 2 ^ 30, tib = 2 ^ 40 }

--- Bytes of a size: a whole number >= 0, or a string with a unit: '512MiB', '16GB', '1.5 GiB'.
function M.bytes(size, what)
  what = what or 'size'
  local n = size
  if type(size) == 'string' then
    local digits, unit = size:match '^%s*([%d%.]+[eE]?[%d]*)%s*(%a*)%s*$'
    local scale = unit == '' and 1 or unit and UNITS[unit:lower()]
    n = digits and scale and tonumber(digits) and math.floor(tonumber(digits) * scale)
  end
  if type(n) ~= 'number' or not (n >= 0 and n < 2 ^ 62) then
    err.throw('ARG', ('%s: %s is no size; wants bytes, or a string as "512MiB" or "16GB"'):format(what, M.show(size)))
  end
  return n
end

local BINARY = { 'KiB', 'MiB', 'GiB', 'TiB', 'PiB' }

--- Bytes for people: '512 B', '1.5 GiB'.
function M.bytes_text(n)
  if math.abs(n) < 1024 then return ('%d B'):format(n) end
  local unit = 0
  repeat n, unit = n / 1024, unit + 1 until math.abs(n) < 1023.95 or unit == #BINARY
  return (('%.1f'):format(n):gsub('%.0$', '')) .. ' ' .. BINARY[unit]
end

return M
