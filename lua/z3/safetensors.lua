--- safetensors.lua -- z3.safetensors: files of named tensors, as Hugging Face writes and reads them.
-- A file is checked whole before anything of it is used; one that is written appears only when it is whole.
local ffi     = require 'ffi'
local err     = require 'z3.error'
local check   = require 'z3.check'
local nearest = require 'z3.nearest'
local opts    = require 'z3.opts'
local C       = require('z3.ffi').C
local T       = require 'z3.tensor'

local M = {}

local FILE, WRITER, INFO = ffi.new 'z3_st *[1]', ffi.new 'z3_st_writer *[1]', ffi.new 'z3_st_info'
local DATA, ID = ffi.new 'void *[1]', ffi.new 'int64_t[1]'
local KEY, VALUE, SIZES = ffi.new 'const char *[1]', ffi.new 'const char *[1]', ffi.new 'int64_t[2]'
local SHAPE = ffi.new('int64_t[?]', C.Z3_MAX_DIMS)

-- ---- reading -------------------------------------------------------------------------------------

local Reader = {}
Reader.__index = Reader

function Reader:__tostring()
  return ('safetensors %s: %d tensors%s'):format(self.path, #self.names, self.f == nil and ', closed' or '')
end

local function handle(r)
  if r.f == nil then err.throw('STALE', ('safetensors: %s is closed'):format(r.path)) end
  return r.f
end

-- Fills INFO; returns the tensor's index.
local function look_up(r, name)
  local f = handle(r)
  err.require_arg(type(name) == 'string', 'safetensors: %s: a name is %s, wants a string', r.path, opts.show(name))
  local index = C.z3_st_find(f, name, #name)
  if index < 0 then
    err.throw('ARG', ('%s has no tensor "%s"%s'):format(r.path, name,
      nearest.find(name, r.names) and nearest.hint(name, r.names) or ''))
  end
  check(C.z3_st_info_get(f, index, INFO))
  return index
end

-- Throws for a tensor that ours can't hold.
local function check_known(r, name)
  if INFO.dtype < 0 then
    err.throw('UNSUPPORTED', ('%s: tensor "%s" has dtype %s; tensors here have F32, BF16, F16, I32, I64, U8'):format(
      r.path, name, ffi.string(INFO.dtype_name)))
  end
  if INFO.ndim > C.Z3_MAX_DIMS then
    err.throw('UNSUPPORTED', ('%s: tensor "%s" has %d dims, at most %d are possible'):format(r.path, name, INFO.ndim,
      C.Z3_MAX_DIMS))
  end
end

local function shape_of_info()
  local shape = {}
  for i = 0, INFO.ndim - 1 do shape[i + 1] = tonumber(INFO.shape[i]) end
  return shape
end

--- What the file says of a tensor: { dtype = 'F32' (the file's word), shape =, bytes =, offset = from its start }.
-- @raise ARG (no such name; the nearest is shown), STALE
function Reader:info(name)
  look_up(self, name)
  return { dtype = ffi.string(INFO.dtype_name), shape = shape_of_info(), bytes = tonumber(INFO.bytes),
           offset = tonumber(INFO.offset) }
end

-- A new tensor from `bytes` bytes at `first` of tensor `index`. On the null device nothing is read.
local function fetch(r, name, index, shape, first, bytes)
  local device = T.default_device()
  if device ~= C.Z3D_NULL then device = C.Z3D_CPU end
  local t = T.new(INFO.dtype, device, shape, nil, r.path)
  if device == C.Z3D_CPU and bytes > 0 then
    check(C.z3_tensor_data(t.h, DATA), r.path)
    local rc = C.z3_st_read(r.f, index, first, bytes, DATA[0])
    if rc ~= 0 then
      t:free()
      check(rc, ('tensor "%s"'):format(name))
    end
  end
  return t
end

--- A tensor of the file.
-- @raise ARG, UNSUPPORTED (a dtype that tensors here don't have), IO, OOM, STALE
function Reader:get(name)
  local index = look_up(self, name)
  check_known(self, name)
  return fetch(self, name, index, shape_of_info(), 0, tonumber(INFO.bytes))
end

--- `count` elements of a tensor in row-major order from element `first` (from 0), as a tensor of one dim: what a shard
-- needs.
-- @raise as get; ARG when the tensor has fewer
function Reader:range(name, first, count)
  local index = look_up(self, name)
  check_known(self, name)
  local each = C.z3_dtype_bytes(INFO.dtype)
  local numel = tonumber(INFO.bytes) / each
  local ok = type(first) == 'number' and type(count) == 'number' and first % 1 == 0 and count % 1 == 0
  err.require_arg(ok and first >= 0 and count >= 0 and first + count <= numel,
    '%s: elements %s + %s of "%s", which has %d', self.path, tostring(first), tostring(count), name, numel)
  return fetch(self, name, index, { count }, first * each, count * each)
end

--- Closes the file; twice is harmless.
function Reader:close()
  if self.f ~= nil then C.z3_st_close(ffi.gc(self.f, nil)) end
  self.f = nil
end

local function read_metadata(f)
  local count = tonumber(C.z3_st_meta_count(f))
  if count == 0 then return nil end
  local metadata = {}
  for i = 0, count - 1 do
    check(C.z3_st_meta_get(f, i, KEY, SIZES, VALUE, SIZES + 1))
    metadata[ffi.string(KEY[0], SIZES[0])] = ffi.string(VALUE[0], SIZES[1])
  end
  return metadata
end

--- Opens a file and checks its header; tensors are read one by one.
-- @return a reader: names (in the order of the bytes), metadata (string -> string, or nil), :info(name), :get(name),
--         :range(name, first, count), :close()
-- @raise IO, CORRUPT (names the file, the tensor and what is wrong), ARG
function M.open(path)
  err.require_arg(type(path) == 'string', 'safetensors: the path is %s, wants a string', opts.show(path))
  check(C.z3_st_open(path, FILE))
  local f = ffi.gc(FILE[0], C.z3_st_close)
  local names = {}
  for i = 0, tonumber(C.z3_st_count(f)) - 1 do
    check(C.z3_st_info_get(f, i, INFO))
    names[i + 1] = ffi.string(INFO.name, INFO.name_bytes)
  end
  return setmetatable({ path = path, f = f, names = names, metadata = read_metadata(f) }, Reader)
end

local function get_all(reader, names, into)
  for _, name in ipairs(names) do
    if into[name] == nil then into[name] = reader:get(name) end
  end
end

--- Tensors of a file.
-- @string path
-- @tab[opt] names  which (a sequence); all unless given
-- @return name -> tensor
-- @return the file's metadata, string -> string, or nil
-- @raise IO, CORRUPT, UNSUPPORTED (dtype of a tensor that is wanted), ARG (unknown name), OOM
function M.load(path, names)
  err.require_arg(names == nil or type(names) == 'table', 'safetensors.load: names are %s, wants a list of strings',
    opts.show(names))
  local reader, tensors = M.open(path), {}
  local ok, problem = pcall(get_all, reader, names or reader.names, tensors)
  reader:close()
  if not ok then
    for _, t in pairs(tensors) do t:free() end
    error(problem, 0)
  end
  return tensors, reader.metadata
end

-- ---- writing -------------------------------------------------------------------------------------

-- Sorted names of a table name -> something; other keys are refused.
local function names_of(t, what)
  local names = {}
  for name in pairs(t) do
    err.require_arg(type(name) == 'string', 'safetensors.save: %s has the key %s, wants names', what, tostring(name))
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

local function declare(w, names, tensors)
  local ids = {}
  for i, name in ipairs(names) do
    local x = tensors[name]
    err.require_arg(T.is_like(x), 'safetensors.save: "%s" is %s, wants a tensor', name, opts.show(x))
    local h = T.handle(x, name)
    local ndim = C.z3_tensor_ndim(h)
    for d = 0, ndim - 1 do SHAPE[d] = C.z3_tensor_dim(h, d) end
    check(C.z3_st_writer_add(w, name, #name, C.z3_tensor_dtype(h), ndim, SHAPE, ID))
    ids[i] = ID[0]
  end
  return ids
end

local function declare_metadata(w, metadata)
  for _, key in ipairs(names_of(metadata, 'metadata')) do
    local value = metadata[key]
    err.require_arg(type(value) == 'string', 'safetensors.save: metadata "%s" is %s, wants a string', key,
      opts.show(value))
    check(C.z3_st_writer_meta(w, key, #key, value, #value))
  end
end

local function write_tensor(w, id, x, name)
  local h, copy = T.handle(x, name), nil
  if not C.z3_tensor_contiguous(h) then
    copy = T.copy_of(x)
    h = copy.h
  end
  check(C.z3_tensor_data(h, DATA), name)
  local bytes = C.z3_tensor_numel(h) * C.z3_dtype_bytes(C.z3_tensor_dtype(h))
  local rc = C.z3_st_writer_write(w, id, 0, DATA[0], bytes)
  if copy then copy:free() end
  check(rc)
end

local function write_all(w, tensors, metadata)
  if metadata then declare_metadata(w, metadata) end
  local names = names_of(tensors, 'tensors')
  local ids = declare(w, names, tensors)
  check(C.z3_st_writer_begin(w))
  for i, name in ipairs(names) do write_tensor(w, ids[i], tensors[name], name) end
  check(C.z3_st_writer_commit(w))
end

--- Writes tensors to a file: element size largest first, then by name, so equal content gives equal bytes. The file
-- appears (or is replaced) only when it is whole and on disk; after an error nothing is left behind.
-- @string path
-- @tab tensors        name -> tensor
-- @tab[opt] metadata  string -> string
-- @raise ARG, IO (disk full, no such folder, ...), UNSUPPORTED (a tensor of the null device), STALE
function M.save(path, tensors, metadata)
  err.require_arg(type(path) == 'string', 'safetensors.save: the path is %s, wants a string', opts.show(path))
  err.require_arg(type(tensors) == 'table', 'safetensors.save: tensors are %s, wants a table', opts.show(tensors))
  err.require_arg(metadata == nil or type(metadata) == 'table', 'safetensors.save: metadata is %s, wants a table',
    opts.show(metadata))
  check(C.z3_st_writer_new(path, WRITER))
  local w = ffi.gc(WRITER[0], C.z3_st_writer_free)
  local ok, problem = pcall(write_all, w, tensors, metadata)
  C.z3_st_writer_free(ffi.gc(w, nil))
  if not ok then error(problem, 0) end
end

return M
