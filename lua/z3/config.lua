--- config.lua -- a DeepSpeed configuration as a plain Lua table: checked, completed, in DeepSpeed's structure.
-- The schema and all checking are the library's (core/config); here are the ways in: a file, a table, nothing.
local ffi   = require 'ffi'
local err   = require 'z3.error'
local check = require 'z3.check'
local json  = require 'z3.json'
local log   = require 'z3.log'
local opts  = require 'z3.opts'
local C     = require('z3.ffi').C

local M = {}

local FOUND = ffi.new 'z3_config *[1]'
local MICRO = 'train_micro_batch_size_per_gpu'
local OPTIONS = { world = 1, micro_batch = opts.integer, own_optimizer = false, own_schedule = false, quiet = false }

local function read(source, world, flags)
  if type(source) == 'string' then
    check(C.z3_config_load(source, world, flags, FOUND))
    return
  end
  if source ~= nil and type(source) ~= 'table' then
    err.throw('ARG', ('config is %s, wants a file name, a table or nil'):format(opts.show(source)))
  end
  local text = source and json.encode(source, { what = 'config', code = 'CONFIG' }) or '{}'
  check(C.z3_config_parse(text, #text, nil, world, flags, FOUND))
end

local function lines(text)
  local list = {}
  for line in text:gmatch '[^\n]+' do list[#list + 1] = line end
  return list
end

-- The data's own batch size is the micro-batch where the configuration leaves it open.
local function fill_batch(effective, micro, world)
  local given = effective[MICRO]
  if given == nil and micro then
    effective[MICRO] = micro
    effective.train_batch_size = micro * effective.gradient_accumulation_steps * world
  elseif micro and given ~= micro then
    log.warn(('%s is %d, the data gives batches of %d'):format(MICRO, given, micro))
  end
end

--- Reads a configuration.
-- @param source  name of a JSON file (comments and trailing commas are fine), the same thing as a table, or nil: all
--                defaults
-- @tab[opt] o    world: ranks (1); micro_batch: samples in a batch of the data, which decides when the configuration is
--                nil or {}; own_optimizer, own_schedule: the caller has one, the section isn't needed; quiet: print
--                neither warnings nor the batch number that was derived
-- @return the effective configuration: every default filled in, null keys absent
-- @return { warnings = {text, ...}, derived = text or nil }
-- @raise CONFIG (names key, value, what is allowed, the nearest key, file:line:column), UNSUPPORTED ("not supported
--        yet: KEY"), IO, ARG
function M.load(source, o)
  o = opts.read(o, OPTIONS, 'config')
  local flags = (o.own_optimizer and C.Z3CFG_OWN_OPTIMIZER or 0) + (o.own_schedule and C.Z3CFG_OWN_SCHEDULE or 0)
  read(source, o.world, flags)
  local c = FOUND[0]
  local dump, warnings = ffi.string(C.z3_config_dump(c)), lines(ffi.string(C.z3_config_warnings(c)))
  local derived = ffi.string(C.z3_config_derived(c))
  C.z3_config_free(c)
  local effective = json.decode(dump)
  fill_batch(effective, o.micro_batch, o.world)
  if not o.quiet then
    for _, text in ipairs(warnings) do log.warn(text) end
    if derived ~= '' then log.notice(derived) end
  end
  return effective, { warnings = warnings, derived = derived ~= '' and derived or nil }
end

--- Every key of the schema, in its order: a list of { key =, type =, default = JSON text, range =, unit =, status =
-- 'built' | 'hint' (accepted, changes no numbers) | 'ranks' (accepted on one rank) | 'later', doc = }.
function M.keys()
  local list, k = {}, ffi.new 'z3_config_key'
  for i = 0, C.z3_config_key_count() - 1 do
    check(C.z3_config_key_get(i, k))
    local section = ffi.string(k.section)
    list[#list + 1] = {
      key = (section ~= '' and section .. '.' or '') .. ffi.string(k.name), type = ffi.string(k.type),
      default = ffi.string(k.value), range = ffi.string(k.range), unit = ffi.string(k.unit),
      status = ffi.string(k.status), doc = ffi.string(k.doc),
    }
  end
  return list
end

return M
