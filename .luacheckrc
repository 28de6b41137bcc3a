std = 'luajit'
max_line_length = 120
exclude_files = { 'build/**' }
files['tests/**/*_spec.lua'] = { std = '+busted' }
