--- run.lua -- `make bench`: training steps, attention, kernels and products; PyTorch beside ours where it is installed.
--   z3lua tests/bench/run.lua [--quick] [--peer VENV] [--out FILE] [--rounds N] [--only WORD]
-- Ours and the peer's run in turn, a step each, in processes that wait for one another: a machine whose speed swings
-- swings for both. Both begin with the same weights and tokens, and their losses must agree in every step.
-- JSON lines go to FILE; the table on standard output is made of them. Exit code 1 when a check failed.
local z3      = require 'z3'
local C       = require('z3.ffi').C
local workers = require 'tests.bench.workers'
local summary = require 'tests.bench.summary'

local args = z3.args({ quick = false, peer = '', out = 'build/bench/results.jsonl', rounds = 0, only = '',
                       build = 'build' }, {
  quick = 'a selection, in less than a minute', peer = 'folder of a Python venv with PyTorch', out = 'JSON lines',
  rounds = 'timed steps of each (0: as many as fit)', only = 'only what has WORD in its name',
  build = 'folder of the build',
})
local quote, threads = workers.quote, z3.features().threads
local WARMUP = 2
-- Losses of the first steps, relative: rounding in 16 bits differs between programs, in 32 it hardly does.
local TOLERANCE = { f32 = 1e-4, bf16 = 2e-3 }

local MODELS = { gpt2 = { preset = '124M' }, llama = { preset = '160M' } }
local STEPS = {
  { 'gpt2', 'bf16', 4, 256, quick = true, rounds = 5 }, { 'gpt2', 'bf16', 1, 1024, rounds = 5 },
  { 'gpt2', 'f32', 4, 256 }, { 'gpt2', 'f32', 1, 1024 }, { 'llama', 'bf16', 4, 256 },
}
local MODES = { bf16 = { 'bf16-autocast', 'bf16-pure' }, f32 = { 'fp32' } }
-- batch, query heads, key heads, length, width
local ATTENTION = { { 4, 12, 12, 256, 64, quick = true }, { 1, 12, 12, 1024, 64, quick = true },
                    { 1, 32, 8, 4096, 128 } }

local rows = {}
local out = assert(io.open(args.out, 'w'))

local function emit(row)
  rows[#rows + 1] = row
  out:write(z3.json.encode(row), '\n')
  out:flush()
end

local function say(fmt, ...)
  io.stderr:write(('bench: ' .. fmt .. '\n'):format(...))
end

local function ours_command(rest)
  return ('%s/bin/z3lua tests/bench/ours.lua %s'):format(args.build, rest)
end

-- glibc's allocator gives large blocks back to the system at once and faults them in again, which would cost PyTorch a
-- quarter of its step.
local function tcmalloc()
  local pipe = io.popen 'ls /usr/lib/*/libtcmalloc_minimal.so.4 /usr/lib*/libtcmalloc_minimal.so.4 2>/dev/null'
  local path = pipe:read '*l'
  pipe:close()
  return path or ''
end

local function peer_command(rest)
  local bin = args.peer .. '/bin/'
  return ('. %s; LD_PRELOAD=%s exec python tests/bench/peer.py %s %d'):format(
    quote(io.open(bin .. 'peers.sh') and bin .. 'peers.sh' or bin .. 'activate'), tcmalloc(), rest, threads)
end

local function median(list)
  local copy = { unpack(list) }
  table.sort(copy)
  local n = #copy
  return n % 2 == 1 and copy[(n + 1) / 2] or (copy[n / 2] + copy[n / 2 + 1]) / 2
end

local function least(list) return math.min(unpack(list)) end

--- Speed of the machine now; a low one makes what is near it doubtful.
local function probe(about)
  for _, row in ipairs(workers.lines('probe', ('%s/bin/z3lua tests/bench/kernels.lua %s/bench/stream.so probe'):format(
    args.build, args.build))) do
    row.about = about
    emit(row)
  end
end

-- ---- training steps --------------------------------------------------------------------------------

local exported = {}

--- The file both sides begin with.
local function export(kind)
  if exported[kind] then return exported[kind] end
  local path, shapes = ('%s/%s.safetensors'):format(workers.folder(), kind), ''
  for _, c in ipairs(STEPS) do
    local shape = (' %dx%d'):format(c[3], c[4])
    if c[1] == kind and not shapes:find(shape .. '%f[%D]') then shapes = shapes .. shape end
  end
  workers.lines('export', ours_command(('export %s %s %s%s'):format(kind, MODELS[kind].preset, quote(path), shapes)))
  exported[kind] = path
  return path
end

local function start_all(cell, B, n_time)
  local kind, dtype = cell[1], cell[2]
  local list = { workers.start('ours', ours_command(('step %s %s %s %d %d'):format(kind, MODELS[kind].preset, dtype, B,
    n_time))) }
  if args.peer == '' then return list end
  local path = export(kind)
  for _, mode in ipairs(MODES[dtype]) do
    list[#list + 1] = workers.start('torch ' .. mode, peer_command(('step %s %s %s %d %d'):format(kind, mode,
      quote(path), B, n_time)))
  end
  return list
end

-- How long the program takes to start, in milliseconds: alone, and with the library loaded.
local function start_up()
  for name, code in pairs { ["z3lua -e ''"] = '', ["z3lua -e 'z3.zeros{1}'"] = 'z3.zeros{1}' } do
    local list = {}
    for i = 1, 15 do
      local start = C.z3_now_ns()
      os.execute(('%s/bin/z3lua -e %s'):format(args.build, quote(code)))
      list[i] = tonumber(C.z3_now_ns() - start) * 1e-6
    end
    emit { bench = 'start', what = name, ms = median(list), ms_best = least(list) }
  end
end

local function result(w, cell, name, last)
  local tokens = cell[3] * cell[4]
  return { bench = 'step', who = w.name, model = cell[1] .. '-' .. MODELS[cell[1]].preset, cell = name,
    dtype = cell[2], batch = cell[3], seq = cell[4], threads = threads, steps = w.seconds, losses = w.losses,
    faults = w.faults, tokens_per_s = tokens / median(w.seconds), tokens_per_s_best = tokens / least(w.seconds),
    rss = last.rss, memory = last.memory, version = w.about.torch or w.about.version }
end

local function compare_losses(ours, w, dtype)
  local worst = 0
  for i, loss in ipairs(ours.losses) do worst = math.max(worst, math.abs(w.losses[i] / loss - 1)) end
  return worst, worst <= TOLERANCE[dtype]
end

local function step_cell(cell, name)
  local rounds = args.rounds > 0 and args.rounds or args.quick and 2 or cell.rounds or 3
  say('%s: starting', name)
  local list = start_all(cell, cell[3], cell[4])
  for _, w in ipairs(list) do w:ready().seconds, w.losses, w.faults = {}, {}, {} end
  for round = 1, WARMUP + rounds do
    for _, w in ipairs(list) do
      local a = w:ask 'step'
      w.losses[round] = a.loss
      if round > WARMUP then table.insert(w.seconds, a.s); table.insert(w.faults, a.faults) end
    end
  end
  local parts = list[1]:ask 'parts'
  parts.bench, parts.cell = 'parts', name
  emit(parts)
  for i, w in ipairs(list) do
    local row = result(w, cell, name, w:stop())
    row.losses_differ, row.ok = compare_losses(list[1], w, cell[2])
    emit(row)
    if not row.ok then say('%s: losses of %s differ from ours by %g', name, w.name, row.losses_differ) end
    if i > 1 or #list == 1 then
      say('%s: %s %.0f tokens/s, ours %.0f', name, w.name, row.tokens_per_s, cell[3] * cell[4] /
        median(list[1].seconds))
    end
  end
end

-- ---- attention -------------------------------------------------------------------------------------

local function attention_case(ours, peer, a, dtype, name)
  local path = workers.folder() .. '/attention.safetensors'
  local rounds = args.rounds > 0 and args.rounds or a[4] > 2000 and 3 or 15
  ours:ask(('make %s %d %d %d %d %d %s'):format(path, a[1], a[2], a[3], a[4], a[5], dtype))
  local err = peer and peer:ask('load ' .. path).err
  local times = {}
  for round = 0, rounds do
    for _, w in ipairs { ours, peer } do
      local r = w:ask 'run'
      times[w] = times[w] or { forward = {}, backward = {}, both = {} }
      if round > 0 then
        table.insert(times[w].forward, r.forward)
        table.insert(times[w].backward, r.backward)
        table.insert(times[w].both, r.forward + r.backward)
      end
    end
  end
  for _, w in ipairs { ours, peer } do
    local t = times[w]
    emit { bench = 'attention', cell = name, who = w == ours and 'ours' or 'torch', dtype = dtype,
           forward_ms = median(t.forward) * 1e3, backward_ms = median(t.backward) * 1e3, ms = median(t.both) * 1e3,
           ms_best = least(t.both) * 1e3, err = err, ok = err == nil or err < (dtype == 'f32' and 1e-4 or 0.02) }
  end
end

local function attention()
  say 'attention'
  local ours = workers.start('ours', ours_command 'attention')
  local peer = args.peer ~= '' and workers.start('torch', peer_command 'attention') or nil
  ours:ready()
  if peer then peer:ready() end
  for _, a in ipairs(ATTENTION) do
    for _, dtype in ipairs { 'bf16', 'f32' } do
      local name = ('attention %s (%d,%d%s,%d,%d)'):format(dtype, a[1], a[2], a[2] ~= a[3] and '/' .. a[3] or '', a[4],
        a[5])
      if name:find(args.only, 1, true) and (not args.quick or a.quick and dtype == 'bf16') then
        attention_case(ours, peer, a, dtype, name)
      end
    end
  end
  ours:stop()
  if peer then peer:stop() end
end

-- ---- scaling ---------------------------------------------------------------------------------------
-- What changes along each row: threads; sequence; batch; model. Only when asked for by name.
local SCALING = {
  { 'threads', { '124M', 4, 256, 1 }, { '124M', 4, 256, 2 }, { '124M', 4, 256, 4 }, { '124M', 4, 256, 8 } },
  { 'sequence', { '124M', 1, 128 }, { '124M', 1, 256 }, { '124M', 1, 512 }, { '124M', 1, 1024 }, { '124M', 1, 2048 },
    { '124M', 1, 4096 } },
  { 'batch', { '124M', 1, 256 }, { '124M', 2, 256 }, { '124M', 4, 256 }, { '124M', 8, 256 }, { '124M', 16, 256 } },
  { 'model', { 'nano', 4, 256 }, { '124M', 4, 256 }, { '355M', 4, 256 }, { '774M', 4, 256 } },
}

local function scaling_case(along, preset, B, n_time, n_threads)
  if n_threads and n_threads > threads then return end
  local options = n_threads and ('--threads %d '):format(n_threads) or ''
  local w = workers.start('ours', ('%s/bin/z3lua %stests/bench/ours.lua step gpt2 %s bf16 %d %d'):format(args.build,
    options, preset, B, n_time)):ready()
  local seconds, a = {}, nil
  for round = 1, WARMUP + (args.rounds > 0 and args.rounds or 3) do
    a = w:ask 'step'
    if round > WARMUP then seconds[#seconds + 1] = a.s end
  end
  w:stop()
  emit { bench = 'scaling', along = along, model = 'gpt2-' .. preset, batch = B, seq = n_time,
         threads = n_threads or threads, step_ms = median(seconds) * 1e3, step_ms_best = least(seconds) * 1e3,
         tokens_per_s = B * n_time / median(seconds), memory_peak = a.memory_peak }
end

local function scaling()
  for _, row in ipairs(SCALING) do
    for i = 2, #row do
      say('scaling: %s %d/%d', row[1], i - 1, #row - 1)
      scaling_case(row[1], unpack(row[i]))
    end
  end
end

-- ---- all -------------------------------------------------------------------------------------------

local function pass_on(name, command)
  say('%s', name)
  for _, row in ipairs(workers.lines(name, command)) do emit(row) end
end

local function wanted(word) return word:find(args.only, 1, true) ~= nil end

local function everything()
  local load = io.open '/proc/loadavg'
  if load then
    emit { bench = 'machine', load_before = load:read '*n', cores = threads }
    load:close()
  end
  start_up()
  for _, cell in ipairs(STEPS) do
    local name = ('%s %s %s %dx%d'):format(cell[1], MODELS[cell[1]].preset, cell[2], cell[3], cell[4])
    if wanted(name) and (not args.quick or cell.quick) then
      probe(name)
      step_cell(cell, name)
    end
  end
  probe 'attention'
  if wanted 'attention' then attention() end
  if wanted 'kernels' then
    pass_on('kernels', ('%s/bin/z3lua tests/bench/kernels.lua %s/bench/stream.so %s'):format(args.build, args.build,
      args.quick and 'quick' or ''))
  end
  -- bf16 products on AMX; on other machines there is nothing to compare (the library's are used).
  if wanted 'products' and not args.quick and z3.features().amx and io.open(args.build .. '/bench/gemm') then
    pass_on('products', ('%s/bench/gemm 1024 7 %d'):format(args.build, args.only ~= '' and 0 or threads))
  end
  if args.only == 'scaling' then scaling() end
end

local ok, problem = pcall(everything)
if not ok then say('%s', tostring(problem)) end
workers.clean()
out:close()
local right = summary.print(rows)
say('JSON lines: %s', args.out)
os.exit(ok and right and 0 or 1)
