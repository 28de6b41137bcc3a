--- nonfinite.lua -- who made the first nan or inf? Only asked once something went wrong, so it may take its time.
local ffi  = require 'ffi'
local err  = require 'z3.error'
local rng  = require 'z3.random'
local T    = require 'z3.tensor'
local C    = require('z3.ffi').C

local M = {}

local SUM, BAD = ffi.new 'double[1]', ffi.new 'int64_t[1]'

--- 'nan' or 'inf' of the first value that isn't finite, and its position; nil when all are.
local function first_bad(t)
  local n = t:numel()
  local p = t:data 'r'
  for i = 0, n - 1 do
    local v = p[i]
    if v ~= v then return 'nan', i end
    if v == math.huge or v == -math.huge then return 'inf', i end
  end
end

-- Any floating tensor as contiguous f32 in host memory.
local function readable(t)
  return T.copy_of(t, 'f32')
end

local function is_bad(t)
  if C.z3_tensor_dtype(t.h) >= C.Z3T_I32 or C.z3_tensor_device(t.h) ~= C.Z3D_CPU then return nil end
  if C.z3_sumsq(t.h, SUM, BAD) == 0 and BAD[0] == 0 then return nil end
  local copy = readable(t)
  local what = first_bad(copy)
  copy:free()
  return what
end

local function scan(v, depth)
  if T.is_tensor(v) then return is_bad(v) end
  if type(v) == 'table' and depth < 2 then
    for _, x in pairs(v) do
      local what = scan(x, depth + 1)
      if what then return what end
    end
  end
end

-- Runs fn with every module's call replaced by one that looks at the results. The first call to end with a value that
-- isn't finite is the innermost one, because calls end from the inside out.
local function watched(modules, fn)
  local found
  local originals = {}
  for _, m in ipairs(modules) do
    local meta = getmetatable(m)
    if not originals[meta] then
      local call = meta.__call
      originals[meta] = call
      meta.__call = function(self, ...)
        local results = { call(self, ...) }
        local n = #results
        if not found then
          for i = 1, n do
            local what = scan(results[i], 0)
            if what then
              local path = rawget(self, '_path')
              found = { module = path ~= '' and path or self.class_name, what = what }
              break
            end
          end
        end
        return unpack(results, 1, n)
      end
    end
  end
  local ok, problem = pcall(fn)
  for meta, call in pairs(originals) do meta.__call = call end
  return found, ok, problem
end

--- The first module whose output wasn't finite when the model runs again on a micro-batch.
-- @tab engine
-- @tab args    arguments of the forward
-- @param at    random position of that forward, from z3.random.state(), or nil
-- @treturn table  { module=, what='nan'|'inf' }, or nil when every output is finite or the run fails
function M.module(engine, args, at)
  local saved, recording = rng.state(), C.z3_grad_enable(false)
  if at then rng.set_state(at) end
  local found = watched(engine.modules, function() engine.scoped(engine, engine.model, unpack(args, 1, args.n)) end)
  C.z3_grad_enable(recording)
  rng.set_state(saved)
  return found
end

local function module_text(found)
  if not found then return 'every module\'s output was finite' end
  return ('the first module whose output wasn\'t finite is %s (%s)'):format(found.module, found.what)
end

--- Throws OVERFLOW for a gradient.
-- @tab slot     the first parameter whose gradient isn't finite
-- @int bad      how many of its elements
function M.throw_gradient(engine, slot, bad, found)
  local ok, what = pcall(first_bad, slot.grad)
  what = ok and what or 'nan'
  err.throw('OVERFLOW', ('step %d: the gradient of %s is %s (%.0f of %.0f elements); %s; nothing was applied')
    :format(engine.step_count + 1, slot.name, what, bad, slot.p:numel(), module_text(found)),
    { parameter = slot.name, module = found and found.module, step = engine.step_count + 1 })
end

--- Throws OVERFLOW for a loss.
-- @string where  'step 3' or 'evaluate'
function M.throw_loss(where, value, found, extra)
  err.throw('OVERFLOW', ('%s: the loss is %s; %s%s'):format(where, value ~= value and 'nan' or 'inf',
    module_text(found), extra or ''), { module = found and found.module })
end

return M
