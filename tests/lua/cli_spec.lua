--- cli_spec.lua -- the z3lua program: its options, arg, exit codes and error text. Each test starts the program.
local helper = require 'tests.lua.helper'
local z3lua = helper.z3lua

--- Runs fn(path) with a temporary script.
local function with_script(code, fn)
  local path = os.tmpname()
  local f = assert(io.open(path, 'wb'))
  f:write(code)
  f:close()
  local ok, e = pcall(fn, path)
  os.remove(path)
  if not ok then error(e, 0) end
end

describe('z3lua', function()
  it('runs a script with its arguments, as lua does', function()
    with_script('print(arg[0], arg[1], arg[2], arg[3], #arg, ...)\nprint(debug.getinfo(1, "S").source)', function(path)
      local out, err, code = z3lua('--threads 1 ' .. path .. ' --steps 3')
      assert.equal('', err)
      assert.equal(path .. '\t--steps\t3\tnil\t2\t--steps\t3\n@' .. path .. '\n', out)
      assert.equal(0, code)
    end)
  end)

  it('leaves options after the script to the script', function()
    with_script('print(...)', function(path)
      local out, _, code = z3lua(path .. ' --version --device x -e')
      assert.equal('--version\t--device\tx\t-e\n', out)
      assert.equal(0, code)
    end)
  end)

  it('runs -e in order, then the script, in one state', function()
    with_script('print(x)', function(path)
      local out = z3lua("-e 'x = 1' -e 'x = x + 1' " .. path)
      assert.equal('2\n', out)
    end)
  end)

  it('reads a script from standard input', function()
    local out, _, code = z3lua('- a', 'print("from stdin", ...)')
    assert.equal('from stdin\ta\n', out)
    assert.equal(0, code)
  end)

  it("prints a script's error once, with the script's lines, and exits with 1", function()
    with_script('local function step()\n  error("no data")\nend\nstep()', function(path)
      local out, err, code = z3lua(path)
      assert.equal('', out)
      assert.equal((('z3lua: PATH:2: no data\n  PATH:2: in function \'step\'\n  PATH:4: in main chunk\n'):gsub(
        'PATH', path)), err)
      assert.equal(1, code)
    end)
  end)

  it("shows the script's line for an error inside the library, and none of the library's", function()
    with_script('local z3 = require "z3"\nlocal a = z3.zeros{2, 3}\nlocal b = a:matmul(a)\nprint(b)', function(path)
      local _, err, code = z3lua(path)
      assert.equal(1, code)
      assert.truthy(err:find('^z3lua: ' .. path:gsub('%p', '%%%0') .. ':3: '), err)
      assert.is_nil(err:find('lua/z3/', 1, true), err)
      assert.equal(2, select(2, err:gsub('\n', '')), err)
    end)
  end)

  it('closes the interpreter on os.exit: finalizers run, files are complete', function()
    local path = os.tmpname()
    local out, _, code = z3lua(([[-e 'local p = newproxy(true)
      getmetatable(p).__gc = function() print "closed" end
      local f = io.open("%s", "w")
      f:write("whole")
      os.exit(7)']]):format(path))
    assert.equal('closed\n', out)
    assert.equal(7, code)
    local f = assert(io.open(path))
    assert.equal('whole', f:read '*a')
    f:close()
    os.remove(path)
  end)

  it('takes true and false in os.exit', function()
    assert.equal(0, select(3, z3lua "-e 'os.exit(true)'"))
    assert.equal(1, select(3, z3lua "-e 'os.exit(false)'"))
  end)

  it('says which options are not built yet, with exit code 2', function()
    for _, words in ipairs { '-n 2', '--hosts a:1', '--plan', '--tune', '--host-limit 1GB', '--timeout 3',
                             '--print-config x.json', '--on-error repl' } do
      local out, err, code = z3lua(words)
      assert.equal('', out)
      assert.equal('z3lua: not supported yet: ' .. words:match '%S+' .. '\n', err)
      assert.equal(2, code)
    end
    assert.equal('z3lua: not supported yet: --device cuda\n', (select(2, z3lua '--device cuda')))
  end)

  it('names the nearest option for an unknown one', function()
    local _, err, code = z3lua '--thread 2 x.lua'
    assert.truthy(err:find('unknown option --thread (did you mean "--threads"?)', 1, true), err)
    assert.equal(2, code)
  end)

  it('refuses wrong values', function()
    for words, text in pairs {
      ['--threads zero'] = '--threads wants 1 to 4096, not zero',
      ['--threads 0'] = '--threads wants 1 to 4096, not 0',
      ['--threads'] = 'wants a value: --threads',
      ['--device gpu'] = '--device is cpu or null, not gpu',
      ['--version=2'] = 'takes no value: --version',
    } do
      local _, err, code = z3lua(words)
      assert.equal('z3lua: ' .. text .. '\n', err)
      assert.equal(2, code)
    end
  end)

  it('names a script that is not there', function()
    local _, err, code = z3lua 'no/such/recipe.lua'
    assert.truthy(err:find('no/such/recipe.lua', 1, true), err)
    assert.equal(1, code)
  end)

  it('prints versions and features in one line', function()
    local out, err, code = z3lua '--version'
    assert.equal('', err)
    local pattern = '^z3lua %d+%.%d+%.%d+ · LuaJIT 2%.1%S* · cpu %([^)]*%) · onednn=%d+%.%d+ openmp=1 [^\n]*\n$'
    assert.truthy(out:find(pattern), out)
    assert.equal(0, code)
  end)

  it('lists every option', function()
    local out, _, code = z3lua '--help'
    for _, name in ipairs { '-e', '-i', '-n', '--device', '--threads', '--memory-limit', '--version' } do
      assert.truthy(out:find('\n  ' .. name .. ' ', 1, true), name)
    end
    assert.equal(0, code)
  end)

  it('sets the threads of the kernels', function()
    local out = z3lua [[--threads 1 -e "local z3 = require 'z3'; print(require('z3.ffi').C.z3_threads(0))"]]
    assert.equal('1\n', out)
  end)

  it('makes --device the default of new tensors', function()
    local out, err = z3lua [[--device null -e "print(z3.zeros{2, 3}.device)"]]
    assert.equal('', err)
    assert.equal('null\n', out)
  end)

  it('makes --memory-limit a hard limit', function()
    local _, err, code = z3lua [[--memory-limit 1MiB -e "local t = z3.zeros{1024, 1024}"]]
    assert.truthy(err:find('[OOM]', 1, true), err)
    assert.equal(1, code)
    local out = z3lua [[--memory-limit=64MiB -e "print(z3.memory.stats().limit)"]]
    assert.equal('67108864\n', out)
  end)

  it('refuses a wrong --memory-limit before anything runs, z3 or not', function()
    for size, text in pairs { lots = '"lots" is no size', ['10zz'] = '"10zz" is no size',
                              ['0'] = '0 bytes is no limit' } do
      local out, bad, code = z3lua(('--memory-limit %s -e "print(1)"'):format(size))
      assert.equal('', out)
      assert.truthy(bad:find('z3lua: --memory-limit: ' .. text, 1, true), bad)
      assert.equal(1, select(2, bad:gsub('\n', '')), bad)
      assert.equal(2, code)
    end
  end)

  it('prints a profile and writes a trace at the end, also of os.exit and after an error', function()
    local path = os.tmpname()
    local work = 'z3.zeros{4}:sum():item()'
    for ending, wanted in pairs { ['print(5)'] = 0, ['print(5) os.exit(3)'] = 3, ['print(5) error"x"'] = 1 } do
      local out, err, code = z3lua(("--profile --trace %s -e '%s; %s'"):format(path, work, ending))
      assert.equal('5\n', out)
      assert.equal(wanted, code)
      assert.truthy(err:find('profile: .*\n  sum forward .*\ntrace: 2 events in ' .. path:gsub('%p', '%%%0')), err)
      local f = assert(io.open(path))
      local events = require('z3.json').decode(f:read '*a').traceEvents
      f:close()
      assert.equal('sum forward', events[#events].name)
    end
    os.remove(path)
    local out, err = z3lua '--profile -e "print(5)"'
    assert.equal('5\n', out)
    assert.equal('z3lua: nothing to profile: the script never loaded z3\n', err)
    local _, refused, code = z3lua '--trace /no/such/folder/t.json -e "print(5)"'
    assert.equal('z3lua: --trace: cannot write /no/such/folder/t.json\n', refused)
    assert.equal(2, code)
  end)

  it('finds its modules whatever LUA_PATH says and wherever it is started', function()
    local out, err = z3lua("-e \"print((require 'z3'.version))\"", '', "LUA_PATH='/nowhere/?.lua'")
    assert.equal('', err)
    assert.truthy(out:find '^%d+%.%d+%.%d+\n$')
    local pipe = io.popen(('cd / && env -u LUA_PATH %s/%s/bin/z3lua -e "print((require \'z3\'.version))" 2>&1'):format(
      helper.root, helper.build))
    assert.equal(out, pipe:read '*a')
    pipe:close()
  end)
end)

describe('z3lua reading from a pipe', function()
  it('prints each result on its own line', function()
    local out, err, code = z3lua('', '1 + 1\nx = 3; x\n"a", "b"\nfor i = 1, 2 do\nprint(i)\nend\nnil\n')
    assert.equal('', err)
    assert.equal('2\n3\na\nb\n1\n2\nnil\n', out)
    assert.equal(0, code)
  end)

  it("prints an error's text once, goes on, and ends with 0", function()
    local out, err, code = z3lua('', 'error("bad")\nx y\n2\n')
    assert.equal("2\n", out)
    assert.truthy(err:find '^error: [^\n]*bad\nerror: [^\n]*near \'y\'\n$', err)
    assert.equal(0, code)
  end)

  it('has z3 without a require', function()
    local out, err = z3lua('', 'z3.arange(4):sum():item()\n')
    assert.equal('', err)
    assert.equal('6\n', out)
  end)

  it('goes on reading after the script with -i', function()
    with_script('x = 5', function(path)
      assert.equal('6\n', (z3lua('-i ' .. path, 'x + 1\n')))
    end)
  end)

  it('reports an unfinished statement at the end of input', function()
    local _, err, code = z3lua('', 'for i = 1, 2 do\n')
    assert.truthy(err:find("'end' expected", 1, true), err)
    assert.equal(0, code)
  end)
end)
