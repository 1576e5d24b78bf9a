"""Objects in the making: hashed as they are written, and real by one rename."""

import errno
import os
from collections.abc import Mapping, Sequence
from threading import Lock

from gateway.errors import TierUnavailable, VersionChanged
from gateway.model import checksums
from gateway.model.objects import ChecksumType
from gateway.tiers.origin_directory.folders import Folder
from gateway.tiers.origin_directory.records import Description, Identity, Record, Records
from gateway.tiers.origin_directory.scratch import DRAFTS, draft_name

COPY_BLOCK_BYTES = 1024**2

_COPY_SPAN_BYTES = 64 * 1024**2
_NO_COPY_RANGE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


class Draft:
    """A new file that is hashed as it is written. Methods block; `discard` waits for the others."""

    def __init__(self, algorithm: str | None = None, *, attributes: bool = True) -> None:
        """`algorithm`: a checksum to compute besides the MD5 of the ETag. `attributes`: as in
        `Records`."""
        self._attributes = attributes
        self._md5 = checksums.hasher("MD5")
        self._algorithm = algorithm
        self._hasher = checksums.hasher(algorithm) if algorithm is not None else None
        self._busy = Lock()
        self._bucket: Folder | None = None
        self._folder: Folder | None = None
        self._fd = -1
        self._name = ""
        self._given_up = False
        self._status: os.stat_result | None = None
        self.size_bytes = 0

    def begin(self, bucket: Folder) -> None:
        """Creates the file."""
        with self._busy:
            self._check()
            self._bucket = bucket.enter()
            self._folder = bucket.make(*DRAFTS)
            self._name = draft_name()
            self._fd = self._folder.create(self._name)

    def write(self, blocks: Sequence[bytes]) -> None:
        """Adds bytes at the end."""
        with self._busy:
            self._check()
            for block in blocks:
                self._write(block)

    def copy(self, source: int, start: int, stop: int) -> None:
        """Adds bytes of another open file, and hashes them. VersionChanged where it is shorter."""
        with self._busy:
            while start < stop:
                block = os.pread(source, min(COPY_BLOCK_BYTES, stop - start), start)
                if not block:
                    raise VersionChanged("The source was cut while it was copied.")
                self._write(block)
                start += len(block)

    def copy_unread(self, source: int, start: int, stop: int) -> None:
        """Adds bytes of another open file without seeing them, where the caller knows their
        hashes: a reflink or a copy on the NAS where there is such a thing."""
        with self._busy:
            while start < stop:
                span_bytes = min(_COPY_SPAN_BYTES, stop - start)
                try:
                    copied = os.copy_file_range(source, self._fd, span_bytes, start)
                except OSError as error:
                    if error.errno not in _NO_COPY_RANGE:
                        raise
                    copied = os.sendfile(self._fd, source, start, span_bytes)
                if not copied:
                    raise VersionChanged("The source was cut while it was copied.")
                start += copied
                self.size_bytes += copied

    @property
    def has_begun(self) -> bool:
        """Whether there is a file yet."""
        return self._fd >= 0

    @property
    def etag(self) -> str:
        """The MD5 of what was written."""
        return self._md5.digest().hex()

    @property
    def checksums(self) -> dict[str, str]:
        """The checksum that was asked for, of what was written."""
        if self._hasher is None or self._algorithm is None:
            return {}
        return {self._algorithm: checksums.encode(self._hasher.digest())}

    def seal(
        self,
        description: Description,
        *,
        etag: str,
        sums: Mapping[str, str],
        checksum_type: ChecksumType | None = "FULL_OBJECT",
        parts: tuple[tuple[int, int], ...] = (),
    ) -> tuple[os.stat_result, Record]:
        """Attaches the record and makes bytes and record durable."""
        with self._busy:
            self._check()
            status = os.fstat(self._fd)
            while True:
                record = Record(
                    headers=description.headers,
                    tags=description.tags,
                    identity=Identity.of(status),
                    etag=etag,
                    checksums=dict(sums),
                    checksum_type=checksum_type if sums else None,
                    parts=parts,
                )
                self._records().attach(self._fd, record)
                self._status = status
                os.fsync(self._fd)
                # A network file system may set the time only when the bytes arrive.
                status = os.fstat(self._fd)
                if Identity.of(status) == record.identity:
                    return status, record
                self._records().drop(self._status)

    def sync(self) -> os.stat_result:
        """Makes the bytes durable, without a record."""
        with self._busy:
            os.fsync(self._fd)
            return os.fstat(self._fd)

    def rename(self, folder: Folder, name: str) -> None:
        """Gives the file its place."""
        with self._busy:
            if self._given_up or self._folder is None:
                raise TierUnavailable("The write was given up in the middle.")
            self._folder.rename(self._name, folder, name)
            self._name = ""

    def discard(self) -> None:
        """Removes the file unless it has got its place; safe twice."""
        with self._busy:
            self._given_up = True
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            try:
                gone = bool(self._name and self._folder and self._folder.unlink(self._name))
                if gone and self._status is not None:
                    self._records().drop(self._status)
            finally:
                for folder in (self._folder, self._bucket):
                    if folder is not None:
                        folder.close()
                self._folder = self._bucket = None

    def _records(self) -> Records:
        if self._bucket is None:
            raise TierUnavailable("The write has not begun.")
        return Records(self._bucket, attributes=self._attributes)

    def _check(self) -> None:
        if self._given_up:
            raise TierUnavailable("The write was given up in the middle.")

    def _write(self, block: bytes) -> None:
        self._md5.update(block)
        if self._hasher is not None:
            self._hasher.update(block)
        view = memoryview(block)
        while view:
            view = view[os.write(self._fd, view) :]
        self.size_bytes += len(block)
