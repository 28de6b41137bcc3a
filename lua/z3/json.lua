--- json.lua -- z3.json: JSON text to plain Lua data and back, losing nothing silently.
--   decode: an object's null is an absent key; in an array it is json.null (which equals nil, yet fills its place).
--           An empty array remembers that it is one, so that encode writes [] and not {}.
--   encode: a table whose keys are 1..n is an array; one marked by json.array too; any other an object, keys sorted.
--           {} is an object. Whole numbers up to 2^53 are written in full.
-- What Lua can't hold (9007199254740993, 1e999) or JSON can't (nan, a table with holes) is refused.
-- Reading is the library's (core/config/json.c): a flat list of nodes that is walked here.
local ffi   = require 'ffi'
local err   = require 'z3.error'
local check = require 'z3.check'
local opts  = require 'z3.opts'
local C     = require('z3.ffi').C

local M = {}

local DEPTH = 512                               -- as deep as decode goes; a table that holds itself ends there
local WHOLE = 2 ^ 53
local DOC = ffi.new 'z3_json *[1]'

--- Stands for null in arrays and may stand for it anywhere in what is encoded: a NULL pointer, so `x == nil` is true.
M.null = ffi.cast('void *', 0)

local array_mark = { __name = 'json.array' }

--- Marks a table as an array (returns it), so that encode writes [] when it is empty.
function M.array(t)
  err.require_arg(type(t) == 'table', 'json.array: %s is no table', opts.show(t))
  return setmetatable(t, array_mark)
end

-- ---- decode --------------------------------------------------------------------------------------

local NULL, FALSE, TRUE = C.Z3J_NULL, C.Z3J_FALSE, C.Z3J_TRUE
local NUMBER, STRING, ARRAY = C.Z3J_NUMBER, C.Z3J_STRING, C.Z3J_ARRAY

-- Value of node i and the index after it.
local function value(nodes, i)
  local n = nodes[i]
  local kind = n.kind
  if kind == STRING then return ffi.string(n.text, n.text_bytes), i + 1 end
  if kind == NUMBER then
    if n.exact == 0 then
      err.throw('CORRUPT', ('json: line %d, column %d: this whole number is beyond what a number holds exactly (2^53)')
        :format(n.line, n.column))
    end
    return n.number, i + 1
  end
  if kind == NULL then return M.null, i + 1 end
  if kind == TRUE or kind == FALSE then return kind == TRUE, i + 1 end
  local out, last = {}, tonumber(n.next)
  i = i + 1
  if kind == ARRAY then
    if i == last then return M.array(out), last end
    local k = 0
    while i < last do
      k = k + 1
      out[k], i = value(nodes, i)
    end
    return out, last
  end
  while i < last do
    local key = ffi.string(nodes[i].key, nodes[i].key_bytes)
    if nodes[i].kind == NULL then i = i + 1 else out[key], i = value(nodes, i) end
  end
  return out, last
end

--- Lua data of a JSON text.
-- @string text
-- @tab[opt] o  name: what messages call the text (a file's name); relaxed: comments, trailing commas and names without
--              quotes are fine
-- @raise CORRUPT (with line and column; also: a key twice in one object), ARG (text is no string), OOM
function M.decode(text, o)
  err.require_arg(type(text) == 'string', 'json.decode: %s is no string', opts.show(text))
  o = opts.read(o, { name = opts.string, relaxed = false }, 'json.decode')
  local flags = o.relaxed and C.Z3J_RELAXED or C.Z3J_STRICT
  check(C.z3_json_parse(text, #text, o.name, flags, DOC), o.name == nil and 'json' or nil)
  local doc = ffi.gc(DOC[0], C.z3_json_free)
  local ok, result = pcall(value, C.z3_json_nodes(doc), 0)
  C.z3_json_free(ffi.gc(doc, nil))
  if not ok then error(result, 0) end
  return result
end

-- ---- encode --------------------------------------------------------------------------------------

local ESCAPES = { ['"'] = '\\"', ['\\'] = '\\\\', ['\n'] = '\\n', ['\t'] = '\\t', ['\r'] = '\\r', ['\b'] = '\\b',
                  ['\f'] = '\\f' }

local function escape(c) return ESCAPES[c] or ('\\u%04x'):format(c:byte()) end

-- Is s valid UTF-8 (no surrogates, nothing overlong)?
local function is_utf8(s)
  if not s:find '[\128-\255]' then return true end
  local i, n = 1, #s
  while i <= n do
    local c, d = s:byte(i, i + 1)
    local more = c < 0x80 and 0 or c < 0xC2 and -1 or c < 0xE0 and 1 or c < 0xF0 and 2 or c < 0xF5 and 3 or -1
    if more < 0 or i + more > n then return false end
    if c == 0xE0 and d < 0xA0 or c == 0xED and d > 0x9F or c == 0xF0 and d < 0x90 or c == 0xF4 and d > 0x8F then
      return false
    end
    if more > 0 and not s:find('^' .. ('[\128-\191]'):rep(more), i + 1) then return false end
    i = i + more + 1
  end
  return true
end

local function fail(st, what)
  local n = #st.path
  local path = n > 0 and table.concat(st.path, '.', 1, math.min(n, 8)) .. (n > 8 and '...' or '') or 'the value'
  err.throw(st.code, ('%s: %s %s'):format(st.what, path, what))
end

local function write_string(st, s)
  if not is_utf8(s) then fail(st, 'is not valid UTF-8') end
  st[#st + 1] = '"' .. s:gsub('[%c"\\]', escape) .. '"'
end

local function write_number(st, v)
  local finite = v == v and v ~= math.huge and v ~= -math.huge
  if not finite then fail(st, ('is %s; JSON has no such number'):format(tostring(v))) end
  if v == math.floor(v) and math.abs(v) <= WHOLE then
    st[#st + 1] = ('%.0f'):format(v)
    return
  end
  for precision = 15, 17 do
    local text = ('%.' .. precision .. 'g'):format(v)
    if tonumber(text) == v or precision == 17 then
      st[#st + 1] = text
      return
    end
  end
end

-- Length of a table whose keys are 1..n, nil for any other; {} is none unless it is marked.
local function array_length(t)
  local n = #t
  if n == 0 and getmetatable(t) ~= array_mark then return nil end
  local count = 0
  for k in next, t do
    if type(k) ~= 'number' then return nil end
    count = count + 1
  end
  return count == n and n or nil
end

local write

local function new_line(st, depth)
  if st.indent then st[#st + 1] = '\n' .. (' '):rep(st.indent * depth) end
end

local function write_array(st, t, n, depth)
  st[#st + 1] = '['
  for i = 1, n do
    if i > 1 then st[#st + 1] = st.indent and ', ' or ',' end
    st.path[depth] = tostring(i)
    write(st, t[i], depth + 1)
  end
  st.path[depth] = nil
  st[#st + 1] = ']'
end

local function write_object(st, t, depth)
  local keys = {}
  for k in next, t do
    if type(k) ~= 'string' then
      fail(st, ('has the key %s; an array has the keys 1..n without holes, an object has strings'):format(tostring(k)))
    end
    keys[#keys + 1] = k
  end
  table.sort(keys)
  st[#st + 1] = '{'
  for i, k in ipairs(keys) do
    if i > 1 then st[#st + 1] = ',' end
    st.path[depth] = k
    new_line(st, depth)
    write_string(st, k)
    st[#st + 1] = st.indent and ': ' or ':'
    write(st, t[k], depth + 1)
  end
  st.path[depth] = nil
  if #keys > 0 then new_line(st, depth - 1) end
  st[#st + 1] = '}'
end

function write(st, v, depth)
  local kind = type(v)
  if kind == 'string' then return write_string(st, v) end
  if kind == 'number' then return write_number(st, v) end
  if kind == 'boolean' then st[#st + 1] = tostring(v); return end
  if v == nil then st[#st + 1] = 'null'; return end       -- json.null too
  if kind ~= 'table' then fail(st, ('is a %s; JSON has no such thing'):format(kind)) end
  if depth > DEPTH then fail(st, ('lies more than %d levels deep (a table that holds itself?)'):format(DEPTH)) end
  local n = array_length(v)
  if n then return write_array(st, v, n, depth) end
  return write_object(st, v, depth)
end

--- JSON text of plain data, the same for equal data whatever the order of pairs.
-- @param v      nil, json.null, boolean, number, string, table of those
-- @tab[opt] o   indent: spaces per level (one line unless given); what, code: how errors begin, and their code
-- @raise ARG: nan or inf, no valid UTF-8, a function or other object, keys that are neither 1..n nor strings, more than
--        512 levels; the text names the place
function M.encode(v, o)
  o = opts.read(o, { indent = opts.integer, what = 'json.encode', code = 'ARG' }, 'json.encode')
  local st = { path = {}, indent = o.indent, what = o.what, code = o.code }
  write(st, v, 1)
  return table.concat(st)
end

return M
