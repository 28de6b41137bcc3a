--- recipes_spec.lua -- every recipe runs as a newcomer would run it, for a few steps, and so do the contract's examples
-- (tests/lua/api). Bad input ends with one clear line and a code that isn't 0.
local helper = require 'tests.lua.helper'

local folder = os.tmpname()
os.remove(folder)
os.execute("mkdir -p '" .. folder .. "'")
local ENV = ("Z3_CACHE='%s/cache'"):format(folder)

local function write(name, text)
  local f = assert(io.open(folder .. '/' .. name, 'wb'))
  f:write(text)
  f:close()
  return folder .. '/' .. name
end

-- Sentences that differ a little: something to learn, in no time.
local function sentences(n)
  local who, what, lines = { 'The cat', 'A dog', 'My bird', 'Her horse' }, { 'sleeps', 'runs', 'sings', 'waits' }, {}
  for i = 1, n do
    lines[i] = ('%s %s in the %s.'):format(who[i * 7 % 4 + 1], what[i * 5 % 4 + 1], i % 3 == 0 and 'house' or 'garden')
  end
  return table.concat(lines, '\n') .. '\n'
end

local text = write('text.txt', sentences(1500))

local function run(arguments)
  return helper.z3lua(arguments, '', ENV)
end

local function good(arguments)
  local out, problem, code = run(arguments)
  assert(code == 0, ('%s\nexit code %d\n%s\n%s'):format(arguments, code, out, problem))
  return out, problem
end

local function losses(out)
  local list = {}
  for v in out:gmatch 'step +%d+/%d+ +loss (%d+%.%d+)' do list[#list + 1] = tonumber(v) end
  return list
end

teardown(function() os.execute("rm -rf '" .. folder .. "'") end)

describe('the recipe', function()
  it('01_train_text learns and writes', function()
    local log = folder .. '/log.jsonl'
    local out = good(('recipes/01_train_text.lua --data %s --steps 30 --batch 4 --seq 64 --sample 40 --log %s'):format(
      text, log))
    local l = losses(out)
    assert(l[1] > 5 and l[#l] < 3.6, out)
    assert.matches('held out', out)
    assert.matches('It writes:', out)
    local n = 0
    for _ in io.lines(log) do n = n + 1 end
    assert.equal(30, n)
    assert.is_nil(out:find '\r')
  end)

  it('02_accumulate_and_log reads a DeepSpeed file and its own log', function()
    local out = good(('recipes/02_accumulate_and_log.lua --data %s --steps 10 --seq 64 --log %s/acc.jsonl'):format(text,
      folder))
    assert.matches('10 steps of 4 micro%-batches: 80 sequences, 5120 bytes', out)
    assert.matches('best step', out)
  end)

  it('03_own_parts finds half of its input', function()
    local out = good 'recipes/03_own_parts.lua'
    local last = tonumber(out:match 'step 300  loss (%d+%.%d+)')
    assert(last and last < 0.01, out)
  end)

  it('04_llama_text learns, and the same with recomputation', function()
    local o = ('recipes/04_llama_text.lua --data %s --steps 20 --batch 4 --seq 64'):format(text)
    local a, b = good(o), good(o .. ' --recompute')
    assert.equal(a:match 'train (%S+)', b:match 'train (%S+)')
    assert(tonumber(a:match 'held out (%S+)') < 4.5, a)
  end)

  it('05_finetune_folder goes on from a folder', function()
    for _, arch in ipairs { 'gpt2', 'llama' } do
      local o = ('--model tests/parity/data/models/%s --data %s --steps 30 --lr 3e-3'):format(arch, text)
      local out = good('recipes/05_finetune_folder.lua ' .. o)
      local before, after = out:match 'held out: (%S+) before, (%S+) after'
      assert(tonumber(after) < tonumber(before) - 0.5, out)
    end
  end)
end)

describe("the contract's example", function()
  it('01 runs as it is', function()
    local out = good(('tests/lua/api/01_train_text.txt --data %s --steps 50 --batch 2 --seq 32'):format(text))
    assert.matches('step 50  train %d+%.%d+  held out %d+%.%d+', out)
    for _, dtype in ipairs { 'f32', 'bf16' } do
      good(('tests/lua/api/01_train_text.txt --data %s --steps 20 --batch 2 --seq 32 --dtype %s'):format(text, dtype))
    end
  end)

  it('05 runs as it is', function()
    assert.matches('\n200\t', good 'tests/lua/api/05_own_parts.txt')
  end)
end)

describe('bad input', function()
  local function bad(arguments, ...)
    local out, problem, code = run(arguments)
    assert(code ~= 0, out)
    for _, word in ipairs { ... } do assert.matches(word, problem, 1, true) end
    assert.is_nil(problem:find 'stack traceback')
  end
  local recipe = 'recipes/01_train_text.lua --batch 2 --seq 32 --steps 2 --sample 0 --log ' .. folder .. '/bad.jsonl '

  it('is named: data', function()
    bad(recipe .. '--data ' .. folder .. '/nothing.txt', 'nothing.txt', 'IO')
    bad(recipe .. '--data ' .. write('empty.txt', ''), 'empty.txt', 'empty')
    bad(recipe .. '--data ' .. write('short.txt', 'too short'), '32', 'needs 33')
    bad(recipe .. '--data ' .. folder, folder)
  end)

  it('is named: options, log, memory', function()
    bad(recipe .. '--dat ' .. text, '--dat', '"data"')
    bad(recipe .. '--steps many --data ' .. text, 'steps', 'a number')
    bad(recipe .. '--preset huge --data ' .. text, 'huge')
    bad(recipe .. '--data ' .. text .. ' --log /nowhere/run.jsonl', '/nowhere/run.jsonl')
    bad('--memory-limit 2MiB ' .. recipe .. '--data ' .. text, 'OOM', 'weight', 'limit')
  end)
end)
