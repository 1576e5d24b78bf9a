"""`packer unpack`: the objects of a packed prefix as they are now, out of the pack and beside it.

What the log of overrides speaks of comes from the origin; what only the index lists (plain records)
too, unless the objects are to stay where they are.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from msgspec import Struct, field

from packer.catalog import fetch_file, fetch_index, load_pack, read_overrides
from packer.format import Index, Manifest, Overrides, Place, Record, etag_text
from packer.format.overrides import folded
from packer.plan import Task, reserved
from packer.progress import Watcher
from packer.reading import read_in_order, restored
from packer.stores.protocol import Deletion, Got, Listed, ObjectMissing, Store, StoreError
from packer.targets import Facts, Target
from packer.verify import Entry, by_shard

_REPORTED = 1000


class Unpacked(Struct):
    """What was written, what was there already, and what could not be written."""

    pack: str
    objects: int = 0
    size_bytes: int = 0
    kept: int = 0
    failed_count: int = 0
    failed: list[str] = field(default_factory=list)


class _Job:
    def __init__(
        self, store: Store, place: Place, folder: Path, target: Target, watcher: Watcher
    ) -> None:
        self._store = store
        self._place = place
        self._folder = folder
        self._target = target
        self._watcher = watcher
        self.manifest: Manifest = load_pack(store, place)
        self._overrides: Overrides = read_overrides(store, place, self.manifest.overrides_through)
        self.result = Unpacked(self.manifest.pack_id)
        self._guard = threading.Lock()

    def run(self, jobs: int, *, in_place: bool) -> None:
        watcher, manifest = self._watcher, self.manifest
        watcher.stage("unpacking", manifest.packed_objects, manifest.packed_bytes)
        with fetch_index(self._store, self._place, manifest, self._folder) as index:
            if self._target.ordered:
                self._in_key_order(index, jobs)
            else:
                with ThreadPoolExecutor(jobs, thread_name_prefix="write") as threads:
                    for number, entries in by_shard(index, self._folder):
                        self._shard(number, entries, threads)
                if not in_place:
                    for key in self._elsewhere(index):
                        self._copy(key, index)

    def take_back(self) -> None:
        """Deletes again what was deleted while it was restored."""
        through = self.manifest.overrides_through
        with fetch_index(self._store, self._place, self.manifest, self._folder) as index:
            for key, stand in read_overrides(self._store, self._place, through).items():
                record = index.get(key.encode())
                if (
                    stand.override.op == "delete"
                    and record is not None
                    and self._overrides.get(key) != stand
                ):
                    self._store.delete([Deletion(key, etag_text(record.etag))])

    def _in_key_order(self, index: Index, jobs: int) -> None:
        def tasks() -> Iterator[Task]:
            for key, record in self._merged(index):
                current = self._current(key, record) if record is not None else None
                if current is not None and current.shard is not None:
                    etag = etag_text(current.etag)
                    yield Task(key, current.size_bytes, etag, current.modified_ms, current)
                else:
                    yield Task(key, 0, "", 0)

        shards = self.manifest.shards
        packed: list[Task] = []

        def flush() -> None:
            outcomes = read_in_order(
                self._store, packed, jobs, lambda number: self._place.shard(shards[number].sha256)
            )
            for task, got in outcomes:
                if isinstance(got, StoreError):
                    self._fail(task.key, got)
                else:
                    self._write(_facts(task.key, got, task.modified_ms), got)
            packed.clear()

        for task in tasks():
            if task.moved is not None:
                packed.append(task)
                if len(packed) >= 32 * jobs:
                    flush()
            else:
                flush()
                self._copy(task.key, index)
        flush()

    def _merged(self, index: Index) -> Iterator[tuple[str, Record | None]]:
        """All keys in order: those of the index, and those that only the log knows."""
        new = [key for key in self._overrides if index.get(key.encode()) is None]
        position = 0
        for raw, record in index.walk():
            key = raw.decode()
            while position < len(new) and new[position].encode() < raw:
                yield new[position], None
                position += 1
            yield key, record
        for key in new[position:]:
            yield key, None

    def _elsewhere(self, index: Index) -> Iterator[str]:
        """The keys whose bytes are not in the pack."""
        for key, record in self._merged(index):
            current = self._current(key, record) if record is not None else None
            if current is None or current.shard is None:
                yield key

    def _current(self, key: str, record: Record) -> Record | None:
        """The record as it is now; None where the pack does not speak for the key."""
        return folded(record, self._overrides.get(key)) if record.shard is not None else record

    def _shard(self, number: int, entries: Iterable[Entry], threads: ThreadPoolExecutor) -> None:
        shard = self.manifest.shards[number]
        path = self._folder / "unpacked.lmdb"
        key = self._place.shard(shard.sha256)
        fetch_file(self._store, key, shard.sha256, shard.size_bytes, path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            remaining = iter(entries)
            while batch := list(islice(remaining, 1024)):
                list(threads.map(lambda entry: self._restore(descriptor, entry), batch))
        finally:
            os.close(descriptor)
            path.unlink()

    def _restore(self, descriptor: int, entry: Entry) -> None:
        key = entry.key.decode()
        record = self._current(key, entry.record)
        if record is None or reserved(key):
            return
        data = os.pread(descriptor, record.size_bytes, record.offset)
        try:
            got = restored(record, data)
        except StoreError as error:
            self._fail(key, error)
            return
        self._write(_facts(key, got, record.modified_ms), got)

    def _listed_ms(self, key: str, index: Index, known: Listed) -> int:
        """When an object was modified, as a listing said it; HeadObject says seconds only."""
        record = index.get(key.encode())
        stand = self._overrides.get(key)
        if stand is not None and stand.override.etag == known.etag:
            return stand.override.modified_ms
        if record is not None and etag_text(record.etag) == known.etag:
            return record.modified_ms
        return known.modified_ms

    def _copy(self, key: str, index: Index) -> None:
        """Takes an object from the origin as it is; where there is none, it was deleted."""
        path = self._folder / "copied"
        try:
            known = self._fetched(key, path)
            if known is None:
                return
            modified_ms = self._listed_ms(key, index, known)
            tags = self._store.tags(key)
            facts = Facts(key, known.etag, modified_ms, known.headers, tags=tags)
            done = self._target.write_file(facts, path)
        except StoreError as error:
            self._fail(key, error)
            return
        finally:
            path.unlink(missing_ok=True)
        self._count(done, known.size_bytes)

    def _fetched(self, key: str, path: Path) -> Listed | None:
        """Brings the origin's object to `path`; None where there is none."""
        try:
            known = self._store.head(key)
            with self._store.open(key, known.etag) as source, path.open("wb") as file:
                while block := source.read(1024**2):
                    file.write(block)
        except ObjectMissing:
            return None
        return known

    def _write(self, facts: Facts, got: Got) -> None:
        try:
            done = self._target.write(facts, got)
        except StoreError as error:
            self._fail(facts.key, error)
        else:
            self._count(done, len(got.data))

    def _count(self, done: bool, size: int) -> None:
        with self._guard:
            if done:
                self.result.objects += 1
                self.result.size_bytes += size
            else:
                self.result.kept += 1
            self._watcher.advance(1, size)

    def _fail(self, key: str, error: StoreError) -> None:
        with self._guard:
            self.result.failed_count += 1
            if len(self.result.failed) < _REPORTED:
                self.result.failed.append(f"{key}: {error}")


def unpack(
    store: Store,
    place: Place,
    folder: Path,
    target: Target,
    watcher: Watcher,
    *,
    jobs: int,
    in_place: bool,
) -> Unpacked:
    """Restores objects. `in_place`: into the very prefix, where plain objects are already.

    NoPack, PackDamaged, StoreError, OSError."""
    job = _Job(store, place, folder, target, watcher)
    try:
        job.run(jobs, in_place=in_place)
        if in_place:
            job.take_back()
    except BaseException:
        target.abandon()
        raise
    target.close()
    return job.result


def _facts(key: str, got: Got, modified_ms: int) -> Facts:
    return Facts(key, got.etag, modified_ms, got.headers, "", got.checksums, got.tags)
