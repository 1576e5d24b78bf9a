"""Shards made of objects as they come; each is sealed before the next begins."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from packer.format import (
    ExtentBuilder,
    Record,
    ShardFile,
    ShardWriter,
    etag_bytes,
)
from packer.plan import Task
from packer.reading import Outcome
from packer.runs import RunHead, write_run
from packer.stores.protocol import Got, StoreError

# What LMDB holds in memory until a commit.
_COMMIT_BYTES = 16 * 1024**2

# A key, its record, and where its bytes begin in their extent.
_Member = tuple[bytes, Record, int]


class Sealed(NamedTuple):
    """A shard that is whole, on the local disk, and its run."""

    shard: Path
    run: Path
    head: RunHead


class _Growing:
    """One shard under way."""

    def __init__(self, path: Path, map_bytes: int) -> None:
        self._writer = ShardWriter(path, map_bytes)
        self._path = path
        self._extent = ExtentBuilder()
        self._members: list[_Member] = []
        self._waiting: list[list[_Member]] = []
        self._waiting_bytes = 0
        self.entries: list[tuple[bytes, Record]] = []
        self.object_bytes = 0

    def add(self, key: bytes, data: bytes, record: Record) -> None:
        if not self._extent.fits(len(data)):
            self._end_extent()
        self._members.append((key, record, self._extent.add(data)))
        self.object_bytes += len(data)

    def seal(self) -> ShardFile:
        self._end_extent()
        self._commit()
        self._writer.close()
        with self._path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return ShardFile(
            sha256=sha256,
            size_bytes=self._path.stat().st_size,
            objects=len(self.entries),
            object_bytes=self.object_bytes,
        )

    def close(self) -> None:
        self._writer.close()

    def _end_extent(self) -> None:
        if not len(self._extent):
            return
        value = self._extent.value()
        self._writer.append(value)
        self._waiting.append(self._members)
        self._waiting_bytes += len(value)
        self._members = []
        self._extent = ExtentBuilder()
        if self._waiting_bytes >= _COMMIT_BYTES:
            self._commit()

    def _commit(self) -> None:
        for located, members in zip(self._writer.commit(), self._waiting, strict=True):
            for key, record, within in members:
                offset = located.offset + within
                self.entries.append((key, msgspec.structs.replace(record, offset=offset)))
        self._waiting = []
        self._waiting_bytes = 0


def build(
    outcomes: Iterable[Outcome],
    folder: Path,
    *,
    shard_bytes: int,
    largest_bytes: int,
    generation: int,
    first_number: int,
    took: Callable[[Task], None],
    left_out: Callable[[Task, StoreError], None],
) -> Iterator[Sealed]:
    """Writes shards of about `shard_bytes` into `folder`, and yields each once it is sealed.

    `took` and `left_out` hear of every object. OSError, lmdb.Error."""
    growing: _Growing | None = None
    number = first_number
    # Pages, rounding, and one object more than fits.
    map_bytes = shard_bytes + shard_bytes // 8 + 2 * largest_bytes + 64 * 1024**2
    path = folder / "growing.lmdb"
    try:
        for task, got in outcomes:
            if isinstance(got, StoreError):
                left_out(task, got)
                continue
            size = len(got.data)
            if growing is not None and growing.object_bytes + size > shard_bytes:
                yield _seal(growing, path, folder, number)
                growing, number = None, number + 1
            if growing is None:
                path.unlink(missing_ok=True)
                growing = _Growing(path, map_bytes)
            growing.add(task.key.encode(), got.data, _record(task, got, generation))
            took(task)
        if growing is not None:
            yield _seal(growing, path, folder, number)
            growing = None
    finally:
        if growing is not None:
            growing.close()


def _seal(growing: _Growing, path: Path, folder: Path, number: int) -> Sealed:
    shard = growing.seal()
    head = RunHead(number, shard, len(growing.entries))
    run = folder / f"{number:06}.run"
    coming = run.with_suffix(".coming")
    write_run(coming, head, growing.entries)
    # The run last: it vouches for the shard.
    sealed = path.rename(folder / f"{number:06}.lmdb")
    coming.rename(run)
    return Sealed(sealed, run, head)


def _record(task: Task, got: Got, generation: int) -> Record:
    moved = task.moved
    if moved is not None:
        return msgspec.structs.replace(moved, modified_ms=task.modified_ms, shard=None, offset=0)
    return Record(
        size_bytes=len(got.data),
        etag=etag_bytes(got.etag),
        modified_ms=task.modified_ms,
        checksum=xxhash.xxh3_64_intdigest(got.data),
        headers=got.headers,
        generation=generation,
        checksums=got.checksums,
        tags=got.tags,
        made=task.made,
    )
