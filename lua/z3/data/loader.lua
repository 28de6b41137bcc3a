--- loader.lua -- batches of token windows: {tokens=(B,T) i32, targets=(B,T) i32, count=B*T}.
-- Legend: B = samples of this rank's micro-batch, T = seq, n = tokens, N = floor((n-1)/T) samples; sample k holds
-- tokens k*T .. k*T+T-1, its targets are one further. R = world, r = rank: round m takes samples
-- (m*R + r)*B ... of the epoch's order, so every sample comes exactly once per epoch at any world size.
local ffi     = require 'ffi'
local err     = require 'z3.error'
local opts    = require 'z3.opts'
local T       = require 'z3.tensor'
local ids     = require 'z3.data.ids'
local random  = require 'z3.random'
local sampler = require 'z3.data.sampler'

local M = {}

local Loader = {}
Loader.__index = Loader

local STATE_VERSION = 1

local function positive(key, v)
  if type(v) ~= 'number' or v < 1 or v % 1 ~= 0 then
    err.throw('ARG', ('data.loader: %s is %s, wants a whole number >= 1'):format(key, opts.show(v)))
  end
  return v
end

local function check_dataset(d)
  if type(d) ~= 'table' or type(d.numel) ~= 'function' or type(d.get) ~= 'function' then
    err.throw('ARG', ('data.loader: dataset is %s, wants one of z3.data or a table with numel() and get(first, count)')
      :format(opts.show(d)))
  end
  local n = d:numel()
  if type(n) ~= 'number' then
    err.throw('ARG', ('data.loader: dataset:numel() gave %s, wants a number'):format(opts.show(n)))
  end
  return n
end

--- Batches of a data set.
-- @tab o  dataset; batch (samples per micro-batch and rank); seq (tokens per sample); shuffle = false; seed (default:
--         manual_seed's); epochs (default: without end); rank, world (default: this process's)
-- @treturn Loader  next(), state(), load_state(), batches(); itself an iterator: `for batch in loader do`
-- @raise ARG: an unknown key, a bad value, data shorter than one sample
function M.new(o)
  local v = opts.read(o, { dataset = opts.table, batch = opts.number, seq = opts.number, seed = opts.integer,
    shuffle = false, epochs = opts.number, rank = opts.integer, world = opts.integer }, 'data.loader')
  local n = check_dataset(v.dataset)
  local self = { dataset = v.dataset, batch = positive('batch', v.batch), seq = positive('seq', v.seq),
    shuffle = v.shuffle, seed = v.seed or random.seed(), epoch = 0, position = 0 }
  self.epochs = v.epochs and positive('epochs', v.epochs)
  local z3 = package.loaded['z3']
  self.world = v.world or z3 and z3.world or 1
  self.rank = v.rank or err.rank
  if self.rank < 0 or self.rank >= self.world then
    err.throw('ARG', ('data.loader: rank is %d, wants 0 to %d'):format(self.rank, self.world - 1))
  end
  self.window = ffi.new('int32_t[?]', self.seq + 1)     -- one sample's tokens and the one after them
  self.samples = math.floor((n - 1) / self.seq)
  if self.samples < 1 then
    err.throw('ARG', ('data.loader: the data has %.0f tokens; one sample of seq %d needs %d'):format(n, self.seq,
      self.seq + 1))
  end
  return setmetatable(self, Loader)
end

--- Micro-batches of one epoch (the same on every rank; the last may be short or empty).
function Loader:batches() return math.ceil(self.samples / (self.batch * self.world)) end

--- Micro-batches until the epoch ends; a whole epoch's where one has just ended.
function Loader:batches_left()
  local left = self.samples - self.position
  if left <= 0 then left = self.samples end
  return math.ceil(left / (self.batch * self.world))
end

-- Copies tokens of one window to dst (int32_t *), from any kind of data set.
local function copy_window(d, dst, first, count)
  if d.copy_to then return d:copy_to(dst, first, count) end
  local got = d:get(first, count)
  if T.is_tensor(got) then
    local flat = got.dtype == 'i32' and got:contiguous() or got:to 'i32'
    if flat:numel() ~= count then
      err.throw('SHAPE', ('dataset:get(%.0f, %d) gave %d elements'):format(first, count, flat:numel()))
    end
    ffi.copy(dst, flat:data 'r', 4 * count)
    return
  end
  for i = 0, count - 1 do
    local id = got[i + 1]
    if type(id) ~= 'number' then
      err.throw('ARG', ('dataset:get(%.0f, %d) gave %s at %d, wants numbers'):format(first, count, opts.show(id),
        i + 1))
    end
    dst[i] = id
  end
end

function Loader:fill(first, B)
  local seq, w = self.seq, self.window
  local x, px = ids.new { B, seq }
  local y, py = ids.new { B, seq }
  for b = 0, B - 1 do
    local k = sampler.at(self.samples, self.seed, self.epoch, first + b, self.shuffle)
    copy_window(self.dataset, w, k * seq, seq + 1)
    ffi.copy(px + b * seq, w, 4 * seq)
    ffi.copy(py + b * seq, w + 1, 4 * seq)
  end
  return ids.place(x), ids.place(y)
end

--- The next micro-batch, or nil after the last epoch. A last batch of an epoch may be short, on some ranks empty:
-- shape (0, T) and count 0.
function Loader:next()
  if self.position >= self.samples then self.epoch, self.position = self.epoch + 1, 0 end
  if self.epochs and self.epoch >= self.epochs then return nil end
  local first = self.position + self.rank * self.batch
  local B = math.max(0, math.min(self.batch, self.samples - first))
  local x, y = self:fill(first, B)
  self.position = self.position + self.batch * self.world
  return { tokens = x, targets = y, count = B * self.seq }
end

Loader.__call = Loader.next

--- Takes a batch back when nobody needs it any more: the engine calls this after a micro-batch, so that its memory
-- doesn't wait for the garbage collector.
function Loader.recycle(_, batch)
  batch.tokens:free()
  batch.targets:free()
end

--- Where the loader stands: plain data, for load_state here or at another world size.
function Loader:state()
  return { version = STATE_VERSION, epoch = self.epoch, position = math.min(self.position, self.samples),
    seed = self.seed, shuffle = self.shuffle, seq = self.seq, samples = self.samples }
end

--- Goes on from a state: the next batch is the one that would have come there.
-- @raise ARG: a state of other data (another number of samples or seq) or of another version
function Loader:load_state(s)
  if type(s) ~= 'table' or s.version ~= STATE_VERSION then
    err.throw('ARG', 'loader:load_state: this is no state of a loader')
  end
  if s.samples ~= self.samples or s.seq ~= self.seq then
    err.throw('ARG', ('loader:load_state: the state is of %s samples of seq %s, the data has %d of seq %d')
      :format(tostring(s.samples), tostring(s.seq), self.samples, self.seq))
  end
  self.epoch, self.position, self.seed, self.shuffle = s.epoch, s.position, s.seed, s.shuffle
end

--- Back to the first batch of the first epoch.
function Loader:reset() self.epoch, self.position = 0, 0 end

return M
