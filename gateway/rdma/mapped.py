"""Parts of chunk files that the device reads where they lie, in the page cache: mapped, registered
once, and kept for the next reader. No byte of them is copied.

Linux registers a read-only shared mapping of a file from 6.3 on; before, and on devices that
cannot, everything is copied into buffers instead. A mapping that may be written to would be
registered by any kernel, but pins its pages for writing, which changes the file's times and makes
its pages dirty. Only what is asked for is registered, whole pages of it, since whoever asks vouches
for that alone: more might be read from the disk for it, here and now, and would come into the page
cache unverified. What is registered is pinned: it stays in memory, and on the disk even after its
file was removed, until it is let go of. `limit_bytes` bounds that, and `MOST_PARTS`.
"""

import ctypes
import math
import mmap
import os
import time
from collections import OrderedDict
from collections.abc import Callable

import structlog

from gateway.rdma.device import Device, Registration, VerbFailed

log = structlog.get_logger()

# Mapping and registering cost more than copying less than this.
FROM_BYTES = 64 * 1024
# At a time: each has a descriptor, and an object of the device's.
MOST_PARTS = 1024
# A kernel that cannot never will; but it may have been that no more memory could be locked.
_AGAIN_SECONDS = 60.0
# What takes more than this part of the limit would push out all others.
_LARGEST_PART = 4
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

# Of a file: device, inode, size, time of the last change. Of its part: where it begins and ends.
_Identity = tuple[int, int, int, int, int, int]


class _Mapping:
    """Some pages of one file. `users` are reading from them."""

    __slots__ = ("address", "descriptor", "region", "size_bytes", "users")

    def __init__(
        self, descriptor: int, address: int, size_bytes: int, region: Registration
    ) -> None:
        self.descriptor = descriptor
        self.address = address
        self.size_bytes = size_bytes
        self.region = region
        self.users = 0

    def close(self) -> None:
        self.region.close()
        _libc.munmap(self.address, self.size_bytes)
        os.close(self.descriptor)


class MappedPart:
    """A part of a file as registered memory, until `release`."""

    __slots__ = ("address", "lkey", "release")

    def __init__(self, address: int, lkey: int, release: Callable[[], None]) -> None:
        self.address = address
        self.lkey = lkey
        self.release = release


class MappedFiles:
    """The parts of files that are mapped now; what was read least recently is let go of first."""

    def __init__(
        self, device: Device, limit_bytes: int, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._device = device
        self._now = now
        self._limit_bytes = limit_bytes
        self._mappings: OrderedDict[_Identity, _Mapping] = OrderedDict()
        self._held_bytes = 0
        # None until it has been tried.
        self._works: bool | None = None
        self._not_before = 0.0 if limit_bytes else math.inf

    @property
    def held_bytes(self) -> int:
        """What is pinned now."""
        return self._held_bytes

    def part(self, descriptor: int, offset: int, size_bytes: int) -> MappedPart | None:
        """A part of an open file; None where it is to be copied."""
        if size_bytes < FROM_BYTES or (not self._works and self._now() < self._not_before):
            return None
        status = os.fstat(descriptor)
        start = offset - offset % mmap.PAGESIZE
        stop = offset + size_bytes
        stop = min(stop + -stop % mmap.PAGESIZE, status.st_size)
        if offset + size_bytes > stop or stop - start > self._limit_bytes // _LARGEST_PART:
            return None
        # Who writes to a file in place changes its times, and makes another one of it.
        file = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
        identity = (*file, start, stop)
        mapping = self._mappings.get(identity)
        if mapping is None:
            if not self._make_room(stop - start):
                return None
            mapping = self._map(descriptor, start, stop - start)
            if mapping is None:
                return None
            self._mappings[identity] = mapping
            self._held_bytes += mapping.size_bytes
        self._mappings.move_to_end(identity)
        mapping.users += 1

        def release() -> None:
            mapping.users -= 1

        return MappedPart(mapping.region.address + offset - start, mapping.region.lkey, release)

    def tidy(self) -> None:
        """Lets go of files that were removed; to be called every now and then."""
        for identity, mapping in list(self._mappings.items()):
            if not mapping.users and not os.fstat(mapping.descriptor).st_nlink:
                self._let_go(identity)

    def close(self) -> None:
        """Lets go of all; call when no queue pair is left."""
        for identity in list(self._mappings):
            self._let_go(identity)

    def _make_room(self, size_bytes: int) -> bool:
        """Whether so much more may be pinned, once what nobody reads was let go of."""
        for identity, mapping in list(self._mappings.items()):
            if self._has_room(size_bytes):
                break
            if not mapping.users:
                self._let_go(identity)
        return self._has_room(size_bytes)

    def _has_room(self, size_bytes: int) -> bool:
        fits = self._held_bytes + size_bytes <= self._limit_bytes
        return fits and len(self._mappings) < MOST_PARTS

    def _let_go(self, identity: _Identity) -> None:
        mapping = self._mappings.pop(identity)
        self._held_bytes -= mapping.size_bytes
        mapping.close()

    def _map(self, descriptor: int, start: int, size_bytes: int) -> _Mapping | None:
        try:
            # To learn later whether the file still has a name.
            kept = os.dup(descriptor)
        except OSError:
            return None
        address = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, kept, start)
        if address in (None, _FAILED):
            os.close(kept)
            return None
        try:
            region = self._device.register_address(
                address, size_bytes, remote=False, writable=False
            )
        except VerbFailed as error:
            _libc.munmap(address, size_bytes)
            os.close(kept)
            if self._works is None:
                self._works = False
                log.info("rdma copies", reason=str(error))
            self._not_before = self._now() + _AGAIN_SECONDS
            return None
        if not self._works:
            self._works = True
            log.info("rdma reads files where they lie", device=self._device.name)
        return _Mapping(kept, address, size_bytes, region)
