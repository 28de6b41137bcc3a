--- summary.lua -- the rows of a benchmark as tables for people: medians, and ratios of ours to the peer's.
local z3 = require 'z3'

local M = {}

local function line(fmt, ...) print((fmt:format(...):gsub('%s+$', ''))) end

local function group(rows, bench, key)
  local order, by = {}, {}
  for _, r in ipairs(rows) do
    if r.bench == bench then
      if not by[r[key]] then
        by[r[key]] = {}
        order[#order + 1] = r[key]
      end
      table.insert(by[r[key]], r)
    end
  end
  return order, by
end

--- Ours, and the peer's best by a measure (larger is better when sign is 1).
local function sides(list, measure, sign)
  local ours, peer
  for _, r in ipairs(list) do
    if r.who == 'ours' then ours = r
    elseif not peer or sign * r[measure] > sign * peer[measure] then peer = r end
  end
  return ours, peer
end

local function leanest(list)
  local best
  for _, r in ipairs(list) do
    if r.who ~= 'ours' and (not best or r.rss < best) then best = r.rss end
  end
  return best
end

local function steps(rows)
  local order, by = group(rows, 'step', 'cell')
  if #order == 0 then return end
  line('%-26s %16s %16s %-14s %7s %7s %19s %6s %9s', 'training step, tokens/s', 'ours (best)', 'torch (best)', '',
    'ratio', 'best', 'memory ours/torch', 'ratio', 'loss diff')
  for _, cell in ipairs(order) do
    local ours, peer = sides(by[cell], 'tokens_per_s', 1)
    local own = ('%.0f (%.0f)'):format(ours.tokens_per_s, ours.tokens_per_s_best)
    if peer then
      local _, best = sides(by[cell], 'tokens_per_s_best', 1)
      local worst = 0
      for _, r in ipairs(by[cell]) do worst = math.max(worst, r.losses_differ) end
      line('%-26s %16s %16s %-14s %7.2f %7.2f %19s %6.2f %9.1e', cell, own, ('%.0f (%.0f)'):format(peer.tokens_per_s,
        best.tokens_per_s_best), (peer.who:gsub('torch ', '')), ours.tokens_per_s / peer.tokens_per_s,
        ours.tokens_per_s_best / best.tokens_per_s_best, ('%s/%s'):format(z3.bytes(ours.rss), z3.bytes(leanest(
        by[cell]))), ours.rss / leanest(by[cell]), worst)
    else
      line('%-26s %16s %16s %-14s %7s %7s %19s', cell, own, '', '', '', '', z3.bytes(ours.rss))
    end
  end
  print ''
end

local function parts(rows)
  local order, by = group(rows, 'parts', 'cell')
  for _, cell in ipairs(order) do
    local p = by[cell][1]
    local top = {}
    for i = 1, math.min(6, #p.rows) do top[i] = ('%s %.0f %%'):format(p.rows[i].work, 100 * p.rows[i].share) end
    line('%-26s kernels %.2f %%, library %.2f %%, Lua %.2f %%: %s', cell, 100 * p.kernels, 100 * p.library, 100 * p.lua,
      table.concat(top, ', '))
  end
  if #order > 0 then print '' end
end

local function attention(rows)
  local order, by = group(rows, 'attention', 'cell')
  if #order == 0 then return end
  line('%-36s %22s %22s %7s %7s %9s', 'attention, ms', 'ours forward + backward', 'torch', 'ratio', 'best', 'differ')
  for _, cell in ipairs(order) do
    local ours, peer = sides(by[cell], 'ms', -1)
    local function both(r) return ('%.2f + %.2f'):format(r.forward_ms, r.backward_ms) end
    line('%-36s %22s %22s %7s %7s %9s', cell, both(ours), peer and both(peer) or '', peer and ('%.2f'):format(peer.ms /
      ours.ms) or '', peer and ('%.2f'):format(peer.ms_best / ours.ms_best) or '', peer and ('%.1e'):format(ours.err)
      or '')
  end
  print ''
end

local function memory(rows)
  local first = true
  for _, r in ipairs(rows) do
    if r.bench == 'stream' then
      if first then line('%-36s %9s %9s %24s %7s', 'memory, GB/s', 'median', 'best', 'beside', 'ratio') end
      first = false
      line('%-36s %9.1f %9.1f %24s %7s', r.name, r.gb_s, r.gb_s_best, r.beside or '',
        r.ratio and ('%.2f'):format(r.ratio) or '')
    end
  end
  if not first then print '' end
  first = true
  for _, r in ipairs(rows) do
    if r.bench == 'kernel' then
      if first then line('%-52s %10s %9s %10s', 'kernels', 'us', 'GB/s', 'of stream') end
      first = false
      line('%-52s %10.0f %9.1f %10.2f', ('%s %s %s %s'):format(r.op, r.phase, r.shape, r.dtype), r.us, r.gb_s,
        r.of_stream)
    end
  end
  if not first then print '' end
end

local function products(rows)
  local first = true
  for _, r in ipairs(rows) do
    if r.bench == 'gemm' then
      if first then line('%-40s %9s %9s %9s %7s', 'bf16 products, GFLOP/s', 'ours', 'plain', 'blocked', 'ratio') end
      first = false
      line('%-40s %9.0f %9.0f %9.0f %7.2f', ('%s %s %dx%dx%d'):format(r.layer, r.op, r.m, r.n, r.k), r.own.best,
        r.plain.best, r.blocked.best, r.ratio)
    end
  end
  if not first then print '' end
end

local function scaling(rows)
  local order, by = group(rows, 'scaling', 'along')
  for _, along in ipairs(order) do
    line('%-10s %-12s %7s %6s %6s %10s %10s %12s', along, 'model', 'threads', 'batch', 'seq', 'ms', 'tokens/s',
      'memory')
    for _, r in ipairs(by[along]) do
      line('%-10s %-12s %7d %6d %6d %10.1f %10.0f %12s', '', r.model, r.threads, r.batch, r.seq, r.step_ms,
        r.tokens_per_s, z3.bytes(r.memory_peak))
    end
    print ''
  end
end

local function noise(rows)
  local low, high
  for _, r in ipairs(rows) do
    if r.bench == 'start' then line('start of %s: %.1f ms (best %.1f)', r.what, r.ms, r.ms_best) end
    if r.bench == 'machine' and r.load_before > 0.3 * r.cores then
      line('machine: load average %.1f before the run: it was not quiet, run it again', r.load_before)
    end
    if r.bench == 'probe' then low, high = math.min(low or r.gflop_s, r.gflop_s), math.max(high or 0, r.gflop_s) end
  end
  if low then
    line('machine: %.0f to %.0f GFLOP/s a core in probes between the parts%s', low, high, low < 0.85 * high and
      ': it was not quiet, run it again' or '')
  end
end

--- Prints all tables.
-- @return false when a row says that a check failed
function M.print(rows)
  steps(rows)
  parts(rows)
  attention(rows)
  memory(rows)
  products(rows)
  scaling(rows)
  noise(rows)
  local right = true
  for _, r in ipairs(rows) do
    if r.ok == false or r.right == false then
      right = false
      line('WRONG: %s %s', r.cell or r.layer, r.who or r.op)
    end
  end
  return right
end

return M
