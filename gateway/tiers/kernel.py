"""System calls that Python has no name for. Where the kernel lacks one, another way is taken, or
the answer is the careful one.

Numbers are those of every 64-bit architecture since Linux 5.1 (`scripts/syscall.tbl`).
"""

import ctypes
import errno
import mmap
import os

# An int among the arguments of a variadic function would be passed as a C int.
_OPENAT2 = ctypes.c_long(437)  # Linux 5.6, RESOLVE_CACHED 5.12
_CACHESTAT = ctypes.c_long(451)  # Linux 6.5
_AT_FDCWD = ctypes.c_int(-100)
_RESOLVE_CACHED = 0x20
_PAGE_BYTES = mmap.PAGESIZE
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.restype = ctypes.py_object
_new_bytearray.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


def unset_bytearray(size_bytes: int) -> bytearray:
    """A bytearray of whatever was in the memory: for who writes all of it. `bytearray(n)` fills it
    with zeros first, which costs as much as reading from the page cache does."""
    block: bytearray = _new_bytearray(None, size_bytes)
    return block


class CachedOpen:
    """Opens files for reading where that needs no disk. Use on one thread."""

    def __init__(self) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._how = _OpenHow(flags=flags, mode=0, resolve=_RESOLVE_CACHED)
        self._how_at = ctypes.byref(self._how)
        self._how_bytes = ctypes.c_size_t(ctypes.sizeof(_OpenHow))
        self.offered = True

    def open(self, path: str) -> int | None:
        """A descriptor; None where the disk must be asked, or the kernel cannot tell. OSError
        where the file is known to be missing, or no descriptor is left."""
        if not self.offered:
            return None
        raw = os.fsencode(path)
        descriptor = _syscall(_OPENAT2, _AT_FDCWD, raw, self._how_at, self._how_bytes)
        if descriptor >= 0:
            return int(descriptor)
        number = ctypes.get_errno()
        if number == errno.EAGAIN:
            return None
        if number in (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.E2BIG):
            # An older kernel, or a sandbox that knows only older calls.
            self.offered = False
            return None
        raise OSError(number, os.strerror(number), path)


class Residency:
    """Whether pages of a file are in the page cache. Use on one thread.

    By cachestat, 1 to 4 µs a MiB; where the kernel has none (before 6.5) by mincore over a map of
    its own, about 15 µs a MiB."""

    def __init__(self, *, cachestat: bool = True) -> None:
        self._range = _Range()
        self._found = _CacheStat()
        self._range_at = ctypes.byref(self._range)
        self._found_at = ctypes.byref(self._found)
        self.cachestat = cachestat

    def holds(self, descriptor: int, offset: int, size_bytes: int) -> bool:
        """Whether all of the bytes are there now. False where that cannot be told."""
        first = offset // _PAGE_BYTES
        pages = (offset + size_bytes - 1) // _PAGE_BYTES - first + 1
        if self.cachestat:
            self._range.offset = first * _PAGE_BYTES
            self._range.length = pages * _PAGE_BYTES
            if _syscall(_CACHESTAT, descriptor, self._range_at, self._found_at, 0) == 0:
                return bool(self._found.cached == pages)
            if ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
                return False
            self.cachestat = False
        return _mapped_pages_are_there(descriptor, first, pages)


def _mapped_pages_are_there(descriptor: int, first: int, pages: int) -> bool:
    size_bytes = pages * _PAGE_BYTES
    address = _libc.mmap(
        None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, first * _PAGE_BYTES
    )
    if address is None or address == _MAP_FAILED:
        return False
    try:
        found = (ctypes.c_ubyte * pages)()
        if _libc.mincore(address, size_bytes, found):
            return False
        return bytes(found).count(1) == pages
    finally:
        _libc.munmap(address, size_bytes)
