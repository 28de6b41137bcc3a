--- args.lua -- z3.args: the recipe's own options, with types from their defaults.
local err     = require 'z3.error'
local nearest = require 'z3.nearest'

local M = {}

local TYPE_TEXT = { number = 'a number', boolean = 'true or false', string = 'a text' }
local BOOLEANS = { ['true'] = true, ['false'] = false, yes = true, no = false, on = true, off = false,
                   ['1'] = true, ['0'] = false }

local function fail(fmt, ...) err.throw('ARG', fmt:format(...)) end

--- The key of a word after '--': '-' counts as '_'. Returns nil for an unknown one.
local function find_key(defaults, word)
  if defaults[word] ~= nil then return word end
  local key = word:gsub('-', '_')
  return defaults[key] ~= nil and key or nil
end

local function convert(key, text, default)
  if type(default) == 'string' then return text end
  local v
  if type(default) == 'number' then v = tonumber(text) else v = BOOLEANS[text:lower()] end
  if v == nil or v ~= v then fail('--%s is "%s", wants %s', key, text, TYPE_TEXT[type(default)]) end
  return v
end

local function looks_like_option(word) return word:match '^%-%-?%a' ~= nil end

--- One word of the command line; returns the next position.
local function read_word(words, i, defaults, out, names)
  local word = words[i]
  local name, value = word:match '^%-%-([^=]+)=(.*)$'
  name = name or word:match '^%-%-(.+)$'
  if not name then
    fail('"%s" is not an option of this recipe; options are --key value%s', word,
      #names > 0 and ' (--' .. table.concat(names, ', --') .. ')' or '')
  end
  local key = find_key(defaults, name)
  if not key then
    local negated = name:match '^no[-_](.+)$'
    local base = negated and find_key(defaults, negated)
    if base and type(defaults[base]) == 'boolean' and value == nil then
      out[base] = false
      return i + 1
    end
    fail('unknown option --%s%s', name, nearest.hint(name, names))
  end
  local default = defaults[key]
  if value == nil and type(default) == 'boolean' then
    -- a flag; a following true or false belongs to it
    local next_word = words[i + 1]
    if next_word ~= nil and (next_word == 'true' or next_word == 'false') then value = next_word else
      out[key] = true
      return i + 1
    end
    i = i + 1
  elseif value == nil then
    value = words[i + 1]
    if value == nil or type(default) == 'number' and tonumber(value) == nil and looks_like_option(value) then
      fail('--%s wants a value: %s', key, TYPE_TEXT[type(default)])
    end
    i = i + 1
  end
  out[key] = convert(key, value, default)
  return i + 1
end

--- The text of --help.
function M.help_text(defaults, help, script)
  local names, wide = nearest.keys(defaults), 0
  for _, k in ipairs(names) do wide = math.max(wide, #k) end
  local lines = { ('%s: options, with their defaults'):format(script or 'recipe') }
  for _, k in ipairs(names) do
    local d = defaults[k]
    local shown = type(d) == 'string' and ('"%s"'):format(d) or tostring(d)
    local text = help and help[k]
    lines[#lines + 1] = ('  --%s%s  %s%s'):format(k, (' '):rep(wide - #k), shown, text and '  ' .. text or '')
  end
  return table.concat(lines, '\n')
end

--- Parses given words instead of the command line: what z3.args does, without --help.
function M.parse(words, defaults)
  local out, names = {}, nearest.keys(defaults)
  for k, d in pairs(defaults) do
    if type(k) ~= 'string' or not TYPE_TEXT[type(d)] then
      fail('args: the default of "%s" is %s, wants a number, a text or a boolean', tostring(k), type(d))
    end
    out[k] = d
  end
  local i = 1
  while words[i] ~= nil do i = read_word(words, i, defaults, out, names) end
  return out
end

--- The recipe's options: `--key value`, `--key=value`, `--flag`, `--no-flag`; `-` and `_` in keys are the same.
-- @tab defaults   key -> default; its type is the option's
-- @tab[opt] help  key -> text for --help, which prints all keys and ends the program
-- @raise ARG: unknown option (nearest shown), wrong type
function M.read(defaults, help)
  local words = rawget(_G, 'arg') or {}
  for i = 1, #words do
    if words[i] == '--help' and defaults.help == nil then
      if err.rank == 0 then io.stdout:write(M.help_text(defaults, help, words[0]), '\n') end
      os.exit(0)
    end
  end
  return M.parse(words, defaults)
end

return M
