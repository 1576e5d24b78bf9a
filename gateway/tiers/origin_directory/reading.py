"""An object of the directory origin being read: one open file, checked after every block.

The open file is the version: replacing or deleting the object leaves it whole. What others do to
the file itself, in place, shows in its size or time, and breaks the read.
"""

import os
from collections.abc import AsyncIterator
from functools import partial
from threading import Lock

from gateway.errors import NoSuchKey, NoSuchVersion, VersionChanged
from gateway.model.objects import ObjectInfo, ObjectRef
from gateway.model.ranges import ByteRange, RangeSpec
from gateway.tiers.origin_directory.backend import Backend
from gateway.tiers.origin_directory.listing import NULL_VERSION
from gateway.tiers.origin_directory.objects import open_object
from gateway.tiers.origin_directory.paths import names_of
from gateway.tiers.origin_directory.records import Identity, Record, info_of

BLOCK_BYTES = 1024**2
# Up to here the bytes come with the opening, in one trip to the thread, and no file stays open.
AT_ONCE_BYTES = 256 * 1024


class OpenFile:
    """A descriptor, the file it was, and who uses it: `close` never pulls it from under a read."""

    def __init__(self, fd: int, identity: Identity) -> None:
        self._fd = fd
        self._identity = identity
        self._busy = Lock()
        self._closing = False

    def read(self, start: int, size_bytes: int) -> bytes:
        """Exactly these bytes. Blocks. VersionChanged where the file is not what it was."""
        try:
            with self._busy:
                return self._read(start, size_bytes)
        finally:
            if self._closing:
                self.close()

    def read_into(self, start: int, memory: memoryview) -> int:
        """As `read`, into `memory`: fewer bytes only where the system gives fewer at once."""
        try:
            with self._busy:
                size_bytes = os.preadv(self._fd, (memory,), start)
                if not size_bytes:
                    raise VersionChanged("The file was cut while it was read.")
                self._check()
                return size_bytes
        finally:
            if self._closing:
                self.close()

    def close(self) -> None:
        """Closes it now, or when the read that is running ends. Safe twice."""
        self._closing = True
        if self._busy.acquire(blocking=False):
            try:
                fd, self._fd = self._fd, -1
                if fd >= 0:
                    os.close(fd)
            finally:
                self._busy.release()

    def _read(self, start: int, size_bytes: int) -> bytes:
        block = os.pread(self._fd, size_bytes, start)
        while len(block) < size_bytes:
            more = os.pread(self._fd, size_bytes - len(block), start + len(block))
            if not more:
                raise VersionChanged("The file was cut while it was read.")
            block += more
        self._check()
        return block

    def _check(self) -> None:
        if Identity.of(os.fstat(self._fd)) != self._identity:
            raise VersionChanged("The file was changed while it was read.")


class Opened:
    """An `OpenedObject` over an open file, or over bytes that came with it."""

    def __init__(
        self, backend: Backend, info: ObjectInfo, wanted: ByteRange, source: OpenFile | bytes
    ) -> None:
        self._backend = backend
        self._info = info
        self._range = wanted
        self._source = source
        self._position = wanted.start

    @property
    def info(self) -> ObjectInfo:
        return self._info

    @property
    def range(self) -> ByteRange:
        return self._range

    async def blocks(self) -> AsyncIterator[bytes]:
        """As promised by `OpenedObject`."""
        read_bytes = self._backend.metrics.origin_read_bytes
        source = self._source
        if isinstance(source, bytes):
            if source:
                read_bytes.inc(len(source))
                yield source
            return
        position = self._range.start
        while position < self._range.stop:
            size_bytes = min(BLOCK_BYTES, self._range.stop - position)
            read = partial(source.read, position, size_bytes)
            block = await self._backend.step("GetObject", read)
            position += len(block)
            read_bytes.inc(len(block))
            yield block

    async def read_into(self, memory: memoryview) -> int:
        """As promised by `OpenedObject`."""
        memory = memory[: self._range.stop - self._position]
        source = self._source
        if not memory:
            return 0
        if isinstance(source, bytes):
            start = self._position - self._range.start
            size_bytes = len(memory)
            memory[:] = source[start : start + size_bytes]
        else:
            read = partial(source.read_into, self._position, memory)
            size_bytes = await self._backend.step("GetObject", read)
        self._position += size_bytes
        self._backend.metrics.origin_read_bytes.inc(size_bytes)
        return size_bytes

    async def close(self) -> None:
        """As promised by `OpenedObject`."""
        self.discard()

    def discard(self) -> None:
        """As `close`, from any thread."""
        if isinstance(self._source, OpenFile):
            self._source.close()


def describe(backend: Backend, ref: ObjectRef) -> tuple[ObjectInfo, Record | None]:
    """What an object is, with its record. Blocks. NoSuchKey, NoSuchVersion, NoSuchBucket."""
    fd, status, record = find_to_read(backend, ref)
    os.close(fd)
    return info_of(ref.key, status, record, backend.now_ns()), record


def open_to_read(
    backend: Backend, ref: ObjectRef, wanted: ByteRange | None, if_match: str | None
) -> Opened:
    """As `Origin.open`. Blocks."""
    try:
        fd, status, record = find_to_read(backend, ref)
    except NoSuchKey as error:
        if if_match is not None:
            raise VersionChanged("The object is gone.") from error
        raise
    file = OpenFile(fd, Identity.of(status))
    try:
        info = info_of(ref.key, status, record, backend.now_ns())
        return _begin(backend, file, info, wanted, if_match)
    except BaseException:
        file.close()
        raise


def find_to_read(backend: Backend, ref: ObjectRef) -> tuple[int, os.stat_result, Record | None]:
    """A descriptor of an object's file, its status and record. Blocks. As `describe`."""
    names = names_of(ref.key)
    with backend.bucket(ref.bucket) as bucket:
        if ref.version_id not in (None, NULL_VERSION):
            raise NoSuchVersion(fields={"Key": ref.key, "VersionId": str(ref.version_id)})
        found = open_object(bucket, names)
    if found is None:
        raise NoSuchKey(fields={"Key": ref.key})
    return found


def _begin(
    backend: Backend,
    file: OpenFile,
    info: ObjectInfo,
    wanted: ByteRange | None,
    if_match: str | None,
) -> Opened:
    if if_match is not None and info.etag != if_match:
        raise VersionChanged("The object is another version now.")
    part = ByteRange(0, info.size_bytes)
    if wanted is not None and info.size_bytes > 0:
        part = RangeSpec(wanted.start, wanted.stop - 1).resolve(info.size_bytes)
    if part.size_bytes > AT_ONCE_BYTES:
        return Opened(backend, info, part, file)
    data = file.read(part.start, part.size_bytes)
    file.close()
    return Opened(backend, info, part, data)
