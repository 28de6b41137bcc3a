--- mmap.lua -- a file as memory that may be written: changes stay private to this process.
-- The mapping is never taken down: tensors, their views and the tape may refer to it in ways that only the library
-- knows. It costs address space; its clean pages are the page cache's.
local ffi = require 'ffi'
local err = require 'z3.error'

local M = {}

ffi.cdef [[
int open(const char *path, int flags, ...);
int close(int fd);
long read(int fd, void *buffer, size_t bytes);
long lseek(int fd, long offset, int whence);
void *mmap(void *address, size_t bytes, int protection, int flags, int fd, long offset);
char *strerror(int number);
]]
local O_RDONLY, O_CLOEXEC, SEEK_END, READ_WRITE, MAP_PRIVATE = 0, 0x80000, 2, 3, 2

--- Maps a whole file.
-- @treturn table  { data = void *, bytes = number }
-- @raise IO: no such file, a folder, not readable
function M.open(path)
  local function fail() err.throw('IO', ('cannot map %s: %s'):format(path, ffi.string(ffi.C.strerror(ffi.errno())))) end
  local fd = ffi.C.open(path, O_RDONLY + O_CLOEXEC)
  if fd < 0 then fail() end
  if ffi.C.read(fd, ffi.new 'char[1]', 1) < 0 then     -- a folder opens, but can't be read
    local number = ffi.errno()
    ffi.C.close(fd)
    ffi.errno(number)
    fail()
  end
  local bytes = tonumber(ffi.C.lseek(fd, 0, SEEK_END))
  if bytes == 0 then
    ffi.C.close(fd)
    return { data = ffi.new 'uint64_t[1]', bytes = 0 }
  end
  local data = ffi.C.mmap(nil, bytes, READ_WRITE, MAP_PRIVATE, fd, 0)
  local number = ffi.errno()
  ffi.C.close(fd)
  if ffi.cast('intptr_t', data) == -1 then ffi.errno(number); fail() end
  return { data = data, bytes = bytes }
end

return M
