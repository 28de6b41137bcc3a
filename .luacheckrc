std = 'luajit'
max_line_length = 120
self = false
exclude_files = { 'build/**' }
files['tests/**/*_spec.lua'] = { std = '+busted' }
