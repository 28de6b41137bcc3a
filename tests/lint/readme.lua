--- readme.lua -- the README of each top folder names every file in it, so that its reading order stays complete; and
-- names no file that is gone.
package.path = 'tests/lint/?.lua;' .. package.path
local files = require 'files'

for _, top in ipairs { 'core', 'lua', 'models', 'recipes', 'tests' } do
  local readme = top .. '/README.md'
  local f = io.open(readme)
  local text = f and f:read '*a' or ''
  if f then f:close() end
  local names = {}
  -- Of tests the parts are named, not every test; of models the folders.
  local folders = top == 'tests' and 'tests/lint tests/*.lua tests/*.sh tests/lua/helper.lua tests/lua/smoke.lua' or top
  for _, path in ipairs(files.list(folders, 'c h def map lua sh')) do
    local name = path:match '[^/]+$'
    names[name] = true
    local folder = path:match '^models/([^/]+)/'
    if folder then name = folder .. '/' end
    if not text:find('`[^`]*' .. name:gsub('%p', '%%%0') .. '`') then files.fail(path, 'not named in %s', readme) end
  end
  for word in text:gmatch '`([^`]+)`' do
    local name = word:match '^[%w_/]*[%w_]+%.[chd][ef]*$' or word:match '^[%w_/]*[%w_]+%.lua$'
    local base = name and name:match '[^/]+$'
    if base and not names[base] and not base:find '%u%u%u' then     -- NAME_spec.lua is a pattern, no file
      local found = files.lines_of(("find core lua tests models recipes -name '%s' 2>/dev/null"):format(base))
      if #found == 0 then files.fail(readme, 'names `%s`, which is not there', word) end
    end
  end
end
files.finish 'readme'
