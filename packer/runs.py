"""Runs: records in key order on disk, so that millions of them never need to be in memory.

A sealed shard has one, which says where its objects lie; sorting by anything else than the key
makes others and merges them.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from packer.format import Record, ShardFile

T = TypeVar("T")
Keyed = tuple[bytes, T]

_LENGTH_BYTES = 4
_BUFFER_BYTES = 256 * 1024
_SORTED_AT_ONCE = 200_000


class RunDamaged(Exception):  # noqa: N818
    """The file is not a whole run."""


class RunHead(Struct, frozen=True):
    """What a run is about: the shard it belongs to, by number and by file."""

    number: int
    shard: ShardFile
    entries: int


_record_entry = msgspec.msgpack.Decoder(tuple[bytes, Record])
_encoder = msgspec.msgpack.Encoder()


def write_run(path: Path, head: RunHead, entries: list[Keyed[Record]]) -> None:
    """Writes a shard's run; `entries` in any order."""
    with path.open("wb", _BUFFER_BYTES) as file:
        _write(file, _encoder.encode(head))
        for entry in sorted(entries, key=itemgetter(0)):
            _write(file, _encoder.encode(entry))


def read_head(path: Path) -> RunHead:
    """What the run is about. RunDamaged where it is cut short or none."""
    with path.open("rb", 0) as file:
        return _head(_values(file))


def read_run(path: Path) -> Iterator[Keyed[Record]]:
    """A run's records in key order. RunDamaged where some are missing."""
    with path.open("rb", 0) as file:
        values = _values(file)
        left = _head(values).entries
        for raw in islice(values, left):
            yield _decoded(raw, _record_entry)
            left -= 1
    if left:
        raise RunDamaged("a run that is cut short")


def placed(runs: Iterable[Path], shards: dict[str, int]) -> Iterator[Keyed[Record]]:
    """All records of runs in key order, each with its shard's position in `shards`."""

    def of(path: Path) -> Iterator[Keyed[Record]]:
        shard = shards[read_head(path).shard.sha256]
        for key, record in read_run(path):
            yield key, msgspec.structs.replace(record, shard=shard)

    return heapq.merge(*map(of, runs), key=itemgetter(0))


def join(*streams: Iterable[Keyed[Any]]) -> Iterator[tuple[bytes, list[list[Any]]]]:
    """Several streams in key order as one: for each key what every stream has of it."""
    # Two streams or three, each once over every key: half of what heapq.merge and groupby take.
    rest = [iter(stream) for stream in streams]
    heads = [next(stream, None) for stream in rest]
    while living := [head[0] for head in heads if head is not None]:
        key = min(living)
        found: list[list[Any]] = []
        for number, head in enumerate(heads):
            mine: list[Any] = []
            while head is not None and head[0] == key:
                mine.append(head[1])
                head = next(rest[number], None)
            heads[number] = head
            found.append(mine)
        yield key, found


class Sorter(Generic[T]):
    """Sorts more than fits into memory: entries by (key, arrival), through files in a folder."""

    def __init__(self, folder: Path, name: str, kind: type[T]) -> None:
        self._folder = folder
        self._name = name
        self._decoder = msgspec.msgpack.Decoder(tuple[bytes, kind])  # type: ignore[valid-type]
        self._entries: list[Keyed[T]] = []
        self._files: list[Path] = []

    def add(self, key: bytes, value: T) -> None:
        """Takes an entry."""
        self._entries.append((key, value))
        if len(self._entries) >= _SORTED_AT_ONCE:
            self._spill()

    def __iter__(self) -> Iterator[Keyed[T]]:
        self._entries.sort(key=itemgetter(0))
        if not self._files:
            return iter(self._entries)
        self._spill()
        return heapq.merge(*map(self._read, self._files), key=itemgetter(0))

    def _spill(self) -> None:
        if not self._entries:
            return
        self._entries.sort(key=itemgetter(0))
        path = self._folder / f"{self._name}-{len(self._files)}.sorted"
        with path.open("wb", _BUFFER_BYTES) as file:
            for entry in self._entries:
                _write(file, _encoder.encode(entry))
        self._files.append(path)
        self._entries = []

    def _read(self, path: Path) -> Iterator[Keyed[T]]:
        return read_all(path, self._decoder)


class Spool(Generic[T]):
    """Values kept on disk in the order they came, to be read any number of times."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._file: IO[bytes] | None = path.open("wb", _BUFFER_BYTES)

    def add(self, value: T) -> None:
        """Keeps a value."""
        assert self._file is not None, "a spool is filled before it is read"  # noqa: S101
        _write(self._file, _encoder.encode(value))

    def close(self) -> None:
        """Ends the filling. Safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __iter__(self) -> Iterator[T]:
        self.close()
        return read_all(self._path, self._decoder)


def read_all(path: Path, decoder: "msgspec.msgpack.Decoder[T]") -> Iterator[T]:
    """Every value of a file of values."""
    with path.open("rb", 0) as file:
        for raw in _values(file):
            yield _decoded(raw, decoder)


def _values(file: IO[bytes]) -> Iterator[memoryview]:
    """Every value from where the file stands, each good until the next is asked for.

    By the block: two reads a value take twice as long. RunDamaged where the last is cut short."""
    held = b""
    while block := file.read(_BUFFER_BYTES):
        held += block
        view = memoryview(held)
        at = 0
        while at + _LENGTH_BYTES <= len(held):
            start = at + _LENGTH_BYTES
            end = start + int.from_bytes(view[at:start], "little")
            if end > len(held):
                break
            yield view[start:end]
            at = end
        held = held[at:]
    if held:
        raise RunDamaged("a run that is cut short")


def _write(file: IO[bytes], raw: bytes) -> None:
    file.write(len(raw).to_bytes(_LENGTH_BYTES, "little"))
    file.write(raw)


def _head(values: Iterator[memoryview]) -> RunHead:
    raw = next(values, None)
    if raw is None:
        raise RunDamaged("a run that is cut short")
    return _decoded(raw, msgspec.msgpack.Decoder(RunHead))


def _decoded(raw: memoryview, decoder: "msgspec.msgpack.Decoder[T]") -> T:
    try:
        return decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise RunDamaged(f"not a run: {error}") from error
