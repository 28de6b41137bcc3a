--- map.lua -- a file mapped read-only into memory, and the few calls that a cache of files needs.
-- Pages come in when they are touched and never count as the process's own memory.
local ffi = require 'ffi'
local err = require 'z3.error'

local M = {}

ffi.cdef [[
int open(const char *path, int flags, ...);
int close(int fd);
long read(int fd, void *buffer, size_t bytes);
long lseek(int fd, long offset, int whence);
void *mmap(void *address, size_t bytes, int protection, int flags, int fd, long offset);
int munmap(void *address, size_t bytes);
int mkdir(const char *path, unsigned int mode);
int getpid(void);
char *strerror(int number);
]]
local O_RDONLY, O_CLOEXEC, SEEK_END, PROT_READ, MAP_SHARED, EEXIST = 0, 0x80000, 2, 1, 1, 17

local function reason() return ffi.string(ffi.C.strerror(ffi.errno())) end

local function fail(what, path, why) err.throw('IO', ('%s: cannot read %s: %s'):format(what, path, why)) end

--- Maps a whole file.
-- @string path
-- @string what  who asks, for messages
-- @treturn table  { ptr = const uint8_t *, bytes = number }; the mapping lives as long as this table
-- @raise IO: no such file, a folder, not readable, empty
function M.open(path, what)
  local fd = ffi.C.open(path, O_RDONLY + O_CLOEXEC)
  if fd < 0 then fail(what, path, reason()) end
  local probe = ffi.new 'char[1]'
  local got = tonumber(ffi.C.read(fd, probe, 1))
  if got < 1 then
    local why = got < 0 and reason() or 'the file is empty'
    ffi.C.close(fd)
    fail(what, path, why)
  end
  local bytes = tonumber(ffi.C.lseek(fd, 0, SEEK_END))
  local address = bytes > 0 and ffi.C.mmap(nil, bytes, PROT_READ, MAP_SHARED, fd, 0) or ffi.cast('void *', -1)
  local why = reason()
  ffi.C.close(fd)
  if address == ffi.cast('void *', -1) then fail(what, path, why) end
  local owner = ffi.gc(ffi.cast('const uint8_t *', address), function() ffi.C.munmap(address, bytes) end)
  return { ptr = owner, bytes = bytes, path = path }
end

--- Makes a folder and its parents. Returns true, or nil and the reason.
function M.make_folder(path)
  local so_far = path:sub(1, 1) == '/' and '' or '.'
  for part in path:gmatch '[^/]+' do
    so_far = so_far .. '/' .. part
    if ffi.C.mkdir(so_far, 493) ~= 0 and ffi.errno() ~= EEXIST then   -- 0755
      return nil, reason()
    end
  end
  return true
end

--- Number of this process, for names of temporary files.
function M.process() return tonumber(ffi.C.getpid()) end

-- Two odd constants with well-spread bits (golden ratio; Murmur3's finaliser).
local K1, K2 = 0x9E3779B97F4A7C15ULL, 0xFF51AFD7ED558CCDULL

--- 64-bit hash of bytes, eight at a time: tells changed files apart, is no cryptography.
-- @param ptr      const uint8_t *
-- @number bytes
-- @treturn cdata  uint64_t
function M.hash(ptr, bytes)
  local words = ffi.cast('const uint64_t *', ptr)
  local h = K1 * (bytes + 1)
  local n = math.floor(bytes / 8)
  for i = 0, n - 1 do
    h = bit.bxor(h, words[i]) * K2
    h = bit.bxor(h, bit.rshift(h, 29))
  end
  local tail = ffi.cast('const uint8_t *', ptr)
  for i = n * 8, bytes - 1 do h = bit.bxor(h, tail[i]) * K2 end
  h = bit.bxor(h, bit.rshift(h, 32)) * K1
  return bit.bxor(h, bit.rshift(h, 29))
end

return M
