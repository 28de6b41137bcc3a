--- run.lua -- runs every test program and spec in a process of its own, with a time limit, and sums what they report.
-- luajit tests/run.lua [word ...]     runs only files whose path contains one of the words
-- Programs speak TAP ("ok 1 - name", "not ok 2 - name", "# SKIP"). A program that crashes, hangs, stops before its
-- plan is done or runs nothing counts as a failure. The last line is "N passed, N failed, N skipped".
-- Legend: a job is { label, command, env, limit_s, level }.
local build  = os.getenv 'B' or 'build'
local luajit = os.getenv 'LUAJIT' or 'luajit'
local san    = os.getenv 'SAN' == '1'
local LIMIT_S = san and 600 or 180

local function lines_of(command)
  local out, pipe = {}, assert(io.popen(command))
  for line in pipe:lines() do out[#out + 1] = line end
  pipe:close()
  return out
end

local function read_file(path)
  local f = io.open(path, 'rb')
  if not f then return '' end
  local text = f:read '*a'
  f:close()
  return text
end

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

--- The instruction sets that this machine can be made to use, best first, and those that it lacks.
local function cpu_levels()
  local flags = ' ' .. (read_file '/proc/cpuinfo':match '\nflags%s*:([^\n]*)' or '') .. ' '
  local function has(list)
    for flag in list:gmatch '%S+' do if not flags:find(' ' .. flag .. ' ', 1, true) then return false end end
    return true
  end
  if not has 'sse4_2' then return {}, {} end
  local v3 = has 'avx2 fma bmi2 f16c movbe'
  local v4 = v3 and has 'avx512f avx512bw avx512cd avx512dq avx512vl'
  if v4 then return { 'v4', 'v3', 'v2' }, {} end
  if v3 then return { 'v3', 'v2' }, { 'v4' } end
  return { 'v2' }, { 'v4', 'v3' }
end

--- Environment of Lua jobs: modules are found in the tree, and sanitizers are loaded before an unsanitized luajit.
local function lua_env(root)
  local path = ('R/lua/?.lua;R/lua/?/init.lua;R/?.lua;R/?/init.lua;B/lua/?.lua;;'):gsub('[RB]/', { ['R/'] = root .. '/',
    ['B/'] = root .. '/' .. build .. '/' })
  local env = 'LUA_PATH=' .. quote(path) .. ' Z3_BUILD=' .. quote(build)
  if san then
    local cc = os.getenv 'CC' or 'cc'
    local asan = lines_of(cc .. ' -print-file-name=libasan.so')[1]
    local ubsan = lines_of(cc .. ' -print-file-name=libubsan.so')[1]
    -- LSan doesn't see pointers that only LuaJIT's own heap holds, so it would call every handle a leak.
    env = env .. ' ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=' .. quote(asan .. ' ' .. ubsan)
  end
  return env
end

--- A spec's own wishes, from its first lines: "-- Z3_CPU: all" and "-- time limit: 300 s".
local function wishes(path)
  local head = read_file(path):sub(1, 600)
  return head:find('%-%- Z3_CPU: all') ~= nil, tonumber(head:match '%-%- time limit: (%d+) s')
end

local function find_jobs(root)
  local jobs = {}
  for _, path in ipairs(lines_of 'ls tests/c/test_*.c 2>/dev/null') do
    local name = path:match 'tests/c/(.*)%.c$'
    jobs[#jobs + 1] = { label = 'c/' .. name, command = build .. '/tests/' .. name,
                        env = 'CMOCKA_MESSAGE_OUTPUT=TAP Z3_BUILD=' .. quote(build) }
  end
  local env = lua_env(root)
  jobs[#jobs + 1] = { label = 'lua/smoke', command = luajit .. ' tests/lua/smoke.lua', env = env }
  local levels, lacking = cpu_levels()
  local specs = 'find tests/lua tests/parity tests/losses -name "*_spec.lua" 2>/dev/null | LC_ALL=C sort'
  for _, path in ipairs(lines_of(specs)) do
    local all_levels, limit_s = wishes(path)
    local job = { label = path:match '^tests/(.*)%.lua$', env = env, limit_s = limit_s,
                  command = ('busted --lua=%s --helper=tests/lua/helper.lua -o TAP %s'):format(luajit, path) }
    jobs[#jobs + 1] = job
    for i = 2, all_levels and #levels or 0 do
      jobs[#jobs + 1] = { label = job.label .. ' ' .. levels[i], command = job.command, limit_s = limit_s,
                          env = env .. ' Z3_CPU=' .. levels[i] }
    end
    for _, level in ipairs(all_levels and lacking or {}) do
      jobs[#jobs + 1] = { label = job.label .. ' ' .. level, same_as = job }     -- counted as skipped, never run
    end
  end
  if build == 'build' and not san then
    jobs[#jobs + 1] = { label = 'install', command = 'sh tests/install.sh', env = '' }
  end
  return jobs
end

local function wanted(job)
  if #arg == 0 then return true end
  for _, word in ipairs(arg) do if job.label:find(word, 1, true) then return true end end
  return false
end

--- Counts a TAP report. -> passed, failed, skipped, planned
local function count_tap(text)
  local passed, failed, skipped, planned = 0, 0, 0, 0
  for line in text:gmatch '[^\n]+' do
    local verdict, rest = line:match '^(ok) %d+(.*)'
    if not verdict then verdict, rest = line:match '^(not ok) %d+(.*)' end
    if verdict and rest:find('# SKIP', 1, true) then skipped = skipped + 1
    elseif verdict == 'ok' then passed = passed + 1
    elseif verdict then failed = failed + 1
    else planned = planned + (tonumber(line:match '^1%.%.(%d+)%s*$') or 0) end
  end
  return passed, failed, skipped, planned
end

local function run(job)
  local log = build .. '/tests/' .. job.label:gsub('[/ ]', '_') .. '.log'
  local limit_s = job.limit_s or LIMIT_S
  local start = lines_of 'date +%s.%N'[1]
  -- A short spin, as z3lua sets it: waiting threads must not hold a core that the test needs.
  os.execute(('timeout -k 5 %d env GOMP_SPINCOUNT=300 KMP_BLOCKTIME=0 %s %s > %s 2>&1; echo $? > %s.rc'):format(
    limit_s, job.env, job.command, log, log))
  local seconds = lines_of 'date +%s.%N'[1] - start
  local rc, text = tonumber(read_file(log .. '.rc')) or 1, read_file(log)
  local passed, failed, skipped, planned = count_tap(text)
  local trouble
  if rc == 124 or rc == 137 then trouble = ('no end within %d s'):format(limit_s)
  elseif passed + failed + skipped == 0 then trouble = ('ran no tests (exit code %d)'):format(rc)
  elseif passed + failed + skipped < planned then trouble = ('stopped after %d of %d tests (exit code %d)'):format(
    passed + failed + skipped, planned, rc)
  elseif rc ~= 0 and failed == 0 then trouble = ('exit code %d, though no test failed'):format(rc) end
  if trouble then failed = failed + 1 end
  print(('%-34s %4d passed %3d failed %3d skipped  %6.1f s'):format(job.label, passed, failed, skipped, seconds))
  if trouble then print('  ' .. job.label .. ': ' .. trouble) end
  if failed > 0 then
    local tail = text:sub(-6000)
    print('  | ' .. tail:gsub('%s+$', ''):gsub('\n', '\n  | '))
    print('  (all of it: ' .. log .. ')')
  end
  job.count = passed + failed + skipped
  return passed, failed, skipped
end

local function main()
  local root = lines_of 'pwd'[1]
  os.execute('mkdir -p ' .. build .. '/tests')
  local passed, failed, skipped, ran = 0, 0, 0, 0
  for _, job in ipairs(find_jobs(root)) do
    if wanted(job) then
      ran = ran + 1
      if job.same_as then
        print(('%-34s not run: this CPU lacks it'):format(job.label))
        skipped = skipped + (job.same_as.count or 0)
      else
        local p, f, s = run(job)
        passed, failed, skipped = passed + p, failed + f, skipped + s
      end
      io.stdout:flush()
    end
  end
  if ran == 0 then
    print('no test file matches ' .. table.concat(arg, ' '))
    failed = failed + 1
  end
  print(('%d passed, %d failed, %d skipped'):format(passed, failed, skipped))
  os.exit(failed == 0 and 0 or 1)
end

main()
