-- auto.lua -- require 'models.auto'.from_pretrained(dir): a model from a Hugging Face folder.
-- Reads config.json in both spellings (rope_parameters, dtype; rope_theta, rope_scaling, torch_dtype) and
-- model.safetensors, or the files that model.safetensors.index.json lists. One tensor is in memory at a time.
local err         = require 'z3.error'
local json        = require 'z3.json'
local nearest     = require 'z3.nearest'
local opts        = require 'z3.opts'
local safetensors = require 'z3.safetensors'
local names       = require 'models.names'

local M = {}

--- model_type of a config.json -> module. A model of one's own adds itself here: it needs new(options), presets and
-- weights (see models/README.md).
M.architectures = { gpt2 = 'models.gpt2', llama = 'models.llama', qwen2 = 'models.qwen2' }

local DTYPES = { float32 = 'f32', bfloat16 = 'bf16', float16 = 'f16', float = 'f32', half = 'f16' }

local function read_json(path)
  local f, why = io.open(path, 'rb')
  if not f then err.throw('IO', ('from_pretrained: %s'):format(why)) end
  local text = f:read '*a'
  f:close()
  if not text then err.throw('IO', ('from_pretrained: %s cannot be read'):format(path)) end
  local value = json.decode(text, { name = path })
  if type(value) ~= 'table' then err.throw('CORRUPT', ('from_pretrained: %s holds no object'):format(path)) end
  return value
end

local function exists(path)
  local f = io.open(path, 'rb')
  if f then f:close() end
  return f ~= nil
end

local function architecture_of(config, path)
  local kind = names.value(config, 'model_type', nil)
  if type(kind) ~= 'string' then
    err.throw('CONFIG', ('from_pretrained: %s has no model_type'):format(path))
  end
  local module = M.architectures[kind]
  if not module then
    err.throw('UNSUPPORTED', ('from_pretrained: %s: model_type "%s" is not supported%s'):format(path, kind,
      nearest.hint(kind, nearest.keys(M.architectures))))
  end
  return require(module)
end

-- The compute dtype that the folder asks for: newer files say dtype, older ones torch_dtype; f32 when none does.
local function dtype_of(config, path)
  local name = names.value(config, 'dtype', names.value(config, 'torch_dtype', 'float32'))
  local dtype = DTYPES[name]
  if not dtype then
    err.throw('UNSUPPORTED', ('from_pretrained: %s: dtype "%s" is not supported%s'):format(path, tostring(name),
      nearest.hint(tostring(name), nearest.keys(DTYPES))))
  end
  return dtype
end

-- Files to read, in a fixed order. Names from an index may not lead out of the folder.
local function weight_files(dir)
  local single, index = dir .. '/model.safetensors', dir .. '/model.safetensors.index.json'
  if exists(single) then return { single } end
  if not exists(index) then
    err.throw('IO', ('from_pretrained: %s has neither model.safetensors nor model.safetensors.index.json'):format(dir))
  end
  local map = read_json(index).weight_map
  if type(map) ~= 'table' or next(map) == nil then
    err.throw('CORRUPT', ('from_pretrained: %s has no weight_map'):format(index))
  end
  local seen, files = {}, {}
  for _, tensor in ipairs(nearest.keys(map)) do
    local file = map[tensor]
    if type(file) ~= 'string' or file:find '[/\\%z]' or file == '' or file:sub(1, 1) == '.' then
      err.throw('CORRUPT', ('from_pretrained: %s: the file of %s is %s'):format(index, tensor, opts.show(file)))
    end
    if not seen[file] then
      seen[file] = true
      files[#files + 1] = dir .. '/' .. file
    end
  end
  return files
end

-- Puts every tensor of one file into its parameter. loaded: parameter -> the name it came under.
local function load_file(path, by_name, name_of, loaded, unexpected)
  local reader = safetensors.open(path)
  for _, file_name in ipairs(reader.names) do
    local name = by_name[file_name] and file_name or name_of(file_name)
    local p = name and by_name[name]
    if p == nil then
      if name then unexpected[#unexpected + 1] = file_name end
    elseif not loaded[p] then
      local t = reader:get(file_name)
      if not require('z3.tensor').same_shape(t.shape, p.shape) then
        err.throw('SHAPE', ('from_pretrained: %s: %s is (%s), config.json makes it (%s)'):format(path, file_name,
          table.concat(t.shape, ','), table.concat(p.shape, ',')))
      end
      p:load(t)
      t:free()
      loaded[p] = file_name
    end
  end
  reader:close()
end

local function load_weights(model, weights, dir, strict)
  local by_name, order, loaded, unexpected, known = {}, {}, {}, {}, {}
  for _, e in ipairs(require('z3.nn.walk').collect(model).parameters) do
    by_name[e.path] = e.parameter
    order[#order + 1], known[#known + 1] = e, e.path
    for _, alias in ipairs(e.aliases) do by_name[alias] = e.parameter end
  end
  for _, path in ipairs(weight_files(dir)) do load_file(path, by_name, weights.name, loaded, unexpected) end
  for _, e in ipairs(order) do
    if not loaded[e.parameter] then
      err.throw('CORRUPT', ('from_pretrained: the files of %s have no %s'):format(dir, weights.file_name(e.path)))
    end
  end
  if strict and #unexpected > 0 then
    err.throw('ARG', ('from_pretrained: %s has %s, which the model lacks%s (strict = false leaves it out)'):format(dir,
      unexpected[1], nearest.find(unexpected[1], known) and nearest.hint(unexpected[1], known) or ''))
  end
end

--- A model with the weights of a Hugging Face folder.
-- @string dir     holds config.json and model.safetensors, or model.safetensors.index.json and its files
-- @tab[opt] o     dtype: compute dtype whatever the files hold ('f32', 'bf16', 'f16'; unless given what config.json
--   says); strict = false: tensors that the model lacks are left out; the rest are the model's options (n_ctx, ...)
-- @return the model, in training mode
-- @raise IO, CORRUPT (naming the file), CONFIG, UNSUPPORTED (naming the key), SHAPE (naming the tensor), ARG
function M.from_pretrained(dir, o)
  local ok = type(dir) == 'string' and dir ~= ''
  err.require_arg(ok, 'from_pretrained: wants the path of a folder, got %s', opts.show(dir))
  dir = #dir > 1 and dir:gsub('/+$', '') or dir
  local path = dir .. '/config.json'
  local config = read_json(path)
  local architecture = architecture_of(config, path)
  local options = architecture.weights.options(config)
  options.dtype = dtype_of(config, path)
  local strict = true
  if o ~= nil then
    err.require_arg(type(o) == 'table', 'from_pretrained: options are %s, wants a table', type(o))
    for k, v in pairs(o) do
      if k == 'strict' then strict = v else options[k] = v end
    end
  end
  local model = architecture.new(options)
  load_weights(model, architecture.weights, dir, strict)
  return model
end

return M
