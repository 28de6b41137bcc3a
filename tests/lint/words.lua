--- words.lua -- no path of one developer's machine in the sources: what works here must work anywhere.
package.path = 'tests/lint/?.lua;' .. package.path
local files = require 'files'

-- In two pieces each, so that this file passes its own check.
local WORDS = { '/ho' .. 'me/', '/ro' .. 'ot/', '/Us' .. 'ers/', '/wo' .. 'rk/', '../sha' .. 'red' }

local list = files.list('core lua models recipes bin tests .ci', 'c h def lua md sh py json txt map')
for _, name in ipairs { 'Makefile', 'README.md', 'CONTRIBUTING.md', '.gitignore', '.luacheckrc', '.ci/run' } do
  if io.open(name) then list[#list + 1] = name end
end
for _, path in ipairs(list) do
  local text = files.read(path)
  for _, word in ipairs(WORDS) do
    local at = text:find(word, 1, true)
    if at then
      local _, newlines = text:sub(1, at):gsub('\n', '')
      files.fail(path .. ':' .. newlines + 1, 'mentions %s', word)
    end
  end
end
files.finish 'words'
