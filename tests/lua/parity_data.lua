--- parity_data.lua -- reads tests/parity/data without the library's own readers: manifests and safetensors files.
local ffi = require 'ffi'
local z3  = require 'z3'

local M = {}

local ESCAPE = { b = '\b', f = '\f', n = '\n', r = '\r', t = '\t' }

local parse

local function skip(s, i) return s:find('[^ \t\r\n]', i) or #s + 1 end

local function parse_string(s, i)
  local out, at = {}, i + 1
  while true do
    local stop = assert(s:find('["\\]', at), 'unfinished string')
    out[#out + 1] = s:sub(at, stop - 1)
    if s:sub(stop, stop) == '"' then return table.concat(out), stop + 1 end
    local c = s:sub(stop + 1, stop + 1)
    if c == 'u' then
      local code = tonumber(s:sub(stop + 2, stop + 5), 16)
      out[#out + 1] = code < 128 and string.char(code) or '?'
      at = stop + 6
    else
      out[#out + 1] = ESCAPE[c] or c
      at = stop + 2
    end
  end
end

local function parse_list(s, i, close, item)
  i = skip(s, i + 1)
  if s:sub(i, i) == close then return i + 1 end
  while true do
    i = skip(s, item(i))
    local c = s:sub(i, i)
    if c == close then return i + 1 end
    assert(c == ',', 'expected a comma at ' .. i)
    i = skip(s, i + 1)
  end
end

function parse(s, i)
  i = skip(s, i)
  local c = s:sub(i, i)
  if c == '"' then return parse_string(s, i) end
  if c == '{' then
    local out = {}
    local after = parse_list(s, i, '}', function(at)
      local key, value
      key, at = parse_string(s, at)
      at = skip(s, at)
      value, at = parse(s, at + 1)
      out[key] = value
      return at
    end)
    return out, after
  end
  if c == '[' then
    local out = {}
    local after = parse_list(s, i, ']', function(at)
      local value
      value, at = parse(s, at)
      out[#out + 1] = value
      return at
    end)
    return out, after
  end
  for word, value in pairs { ['true'] = true, ['false'] = false } do
    if s:sub(i, i + #word - 1) == word then return value, i + #word end
  end
  if s:sub(i, i + 3) == 'null' then return nil, i + 4 end
  local number = assert(s:match('^[-+%deE%.]+', i), 'bad value at ' .. i)
  return tonumber(number), i + #number
end

--- Plain data from JSON text.
function M.json(text) return (parse(text, 1)) end

function M.read(path)
  local f = assert(io.open(path, 'rb'))
  local text = f:read '*a'
  f:close()
  return text
end

local DTYPE = { F32 = 'f32', BF16 = 'bf16', F16 = 'f16', I32 = 'i32', I64 = 'i64', U8 = 'u8' }

--- name -> tensor of a safetensors file; names: only those for which names(name) is true.
function M.tensors(path, names)
  local text = M.read(path)
  local length = tonumber(ffi.cast('const uint64_t *', text)[0])
  local header, out = M.json(text:sub(9, 8 + length)), {}
  for name, e in pairs(header) do
    if name ~= '__metadata__' and (not names or names(name)) then
      local t = z3.zeros(e.shape, { dtype = assert(DTYPE[e.dtype], e.dtype) })
      local from, to = e.data_offsets[1], e.data_offsets[2]
      if to > from then ffi.copy(t:data(), text:sub(9 + length + from, 8 + length + to), to - from) end
      out[name] = t
    end
  end
  return out
end

--- manifest and tensors of one case folder below tests/parity/data.
function M.case(folder, names)
  local dir = 'tests/parity/data/' .. folder .. '/'
  return M.json(M.read(dir .. 'manifest.json')), M.tensors(dir .. 'tensors.safetensors', names)
end

--- Largest excess of |got - expected| over atol + rtol |expected|; <= 0 passes. floor: least atol.
function M.excess(got, expected, tolerance, floor)
  local e = expected:to('f32')
  local over = (got:detach():to('f32') - e):abs() - (e:abs() * tolerance.rtol + math.max(tolerance.atol, floor or 0))
  if over:numel() == 0 then return -1 end
  local worst = over:max():item()
  return worst == worst and worst or math.huge
end

return M
