"""What is to be read, moved, kept and forgotten. Pure: the same input makes the same plan.

Everything is a stream in key order, so that a plan of ten million objects needs no memory.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from packer.format import Record, ShardFile, etag_bytes
from packer.format.manifest import RESERVED
from packer.format.overrides import Stand, folded
from packer.stores.protocol import Listed

# A shard with less of its bytes alive is written anew.
LIVING_SHARE = 0.75
# S3 answers GetObject for these only after a restore.
_ARCHIVED = frozenset(("GLACIER", "DEEP_ARCHIVE"))

_ORDER = re.compile(r"lexical\Z|shuffled:-?\d+\Z|file:.+\Z", re.DOTALL)

Doing = Literal["read", "keep", "plain", "done", "gone"]


class Task(Struct, frozen=True, gc=False):
    """An object to be packed: as listed, or (`moved`) out of the shard it is in."""

    key: str
    size_bytes: int
    etag: str
    modified_ms: int
    moved: Record | None = None
    made: bool = False


class Decided(Struct, frozen=True, gc=False):
    """What becomes of one key."""

    doing: Doing
    task: Task


class Scope(NamedTuple):
    """What the decisions on a prefix rest on beside the listing.

    `sources`: suffixes of the files whose contents become objects; they themselves stay."""

    largest_bytes: int
    gone_through: int = 0
    sources: tuple[str, ...] = ()


def valid_order(order: str) -> bool:
    """Whether it is `lexical`, `shuffled:SEED` or `file:PATH`."""
    return _ORDER.match(order) is not None


def same(record: Record, listed: Listed) -> bool:
    """Whether a record is of the very version that is listed."""
    return (
        record.size_bytes == listed.size_bytes
        and record.modified_ms == listed.modified_ms
        and record.etag == etag_bytes(listed.etag)
    )


def reserved(key: str) -> bool:
    """Whether a key is ours: never packed, never listed."""
    return key.startswith(RESERVED)


def decide(
    key: bytes,
    listed: Listed | None,
    old: Record | None,
    done: Iterable[Record],
    stand: Stand | None,
    scope: Scope,
) -> Decided:
    """What becomes of a key: of its original if `listed`, of its `old` record, of what an
    interrupted pack has `done`."""
    if listed is None:
        return _unlisted(key, old, done, stand, scope)
    task = Task(listed.key, listed.size_bytes, listed.etag, listed.modified_ms)
    if any(same(record, listed) for record in done):
        return Decided("done", task)
    if old is not None and old.shard is not None and same(old, listed):
        return Decided("keep", msgspec.structs.replace(task, moved=old))
    if (
        listed.size_bytes > scope.largest_bytes
        or listed.storage_class in _ARCHIVED
        or (scope.sources and listed.key.endswith(scope.sources))
    ):
        return Decided("plain", task)
    return Decided("read", task)


def _unlisted(
    key: bytes, old: Record | None, done: Iterable[Record], stand: Stand | None, scope: Scope
) -> Decided:
    text = key.decode()
    living = stays(old, stand, scope.gone_through) if old is not None else None
    if living is None:
        return Decided("gone", Task(text, 0, "", 0))
    task = Task(text, living.size_bytes, "", living.modified_ms, living)
    if any(_same_record(record, living) for record in done):
        return Decided("done", task)
    return Decided("keep", task)


def stays(record: Record, stand: Stand | None, gone_through: int) -> Record | None:
    """What is left of a packed record whose original is not listed; None: it was deleted."""
    if record.shard is None:
        return None
    if not record.made and record.generation > gone_through:
        return None
    return folded(record, stand)


def _same_record(one: Record, other: Record) -> bool:
    return (one.size_bytes, one.etag, one.checksum) == (
        other.size_bytes,
        other.etag,
        other.checksum,
    )


def settle(
    listed: Listed | None, candidates: Iterable[Record], stand: Stand | None, scope: Scope
) -> Record | None:
    """The record of a key in the new index, by the second listing: None where it has none.

    `candidates` are its packed records, the best first."""
    if listed is not None:
        for record in candidates:
            if record.shard is not None and same(record, listed):
                return record
        headers = (
            {}
            if listed.storage_class == "STANDARD"
            else {"x-amz-storage-class": listed.storage_class}
        )
        return Record(
            listed.size_bytes, etag_bytes(listed.etag), listed.modified_ms, headers=headers
        )
    for record in candidates:
        left = stays(record, stand, scope.gone_through)
        if left is not None:
            return left
    return None


class Source(NamedTuple):
    """A file whose contents became objects: when it was modified, and whether it is the version
    that the pack before has read."""

    modified_ms: int
    unchanged: bool


def still_made(
    key: str, fresh: Iterable[Record], left: Iterable[Record], sources: Mapping[str, Source]
) -> list[Record]:
    """The candidates without those that were made of an older version of a file that is there:
    those of this pack, `fresh`, before those `left` of the one before.

    `sources`: the files, by their keys without the suffix. Times alone do not tell two versions
    apart: S3 has whole seconds."""
    stems = (key[:at] for at, char in enumerate(key) if char == "/")
    found = [sources[stem] for stem in stems if stem in sources]
    times = {source.modified_ms for source in found}
    before = {source.modified_ms for source in found if source.unchanged}
    return [
        *(record for record in fresh if _is_of(record, found, times)),
        *(record for record in left if _is_of(record, found, before)),
    ]


def _is_of(record: Record, found: Sequence[Source], times: Collection[int]) -> bool:
    return not (record.made and found) or record.modified_ms in times


def worn_out(shards: Iterable[ShardFile], living_bytes: Mapping[int, int]) -> set[int]:
    """The positions of shards of which too little is alive."""
    return {
        number
        for number, shard in enumerate(shards)
        if living_bytes.get(number, 0) < LIVING_SHARE * shard.object_bytes
        or number not in living_bytes
    }


def cut(sizes: Iterable[int], shard_bytes: int) -> Iterator[int]:
    """How many objects of these sizes each shard gets, in order."""
    count = held = 0
    for size in sizes:
        if count and held + size > shard_bytes:
            yield count
            count = held = 0
        count += 1
        held += size
    if count:
        yield count


class Summary(Struct):
    """A plan in numbers. `original_*`: what will be in the pack and is still where it was, so what
    `--delete-originals` saves."""

    objects: int = 0
    read_objects: int = 0
    read_bytes: int = 0
    moved_objects: int = 0
    moved_bytes: int = 0
    kept_objects: int = 0
    kept_bytes: int = 0
    plain_objects: int = 0
    changed_plain: int = 0
    gone_objects: int = 0
    done_objects: int = 0
    new_shards: int = 0
    kept_shards: int = 0
    original_objects: int = 0
    original_bytes: int = 0

    def count(self, decided: Decided, moved: bool) -> None:
        """Counts one key."""
        task = decided.task
        if decided.doing == "gone":
            self.gone_objects += 1
            return
        self.objects += 1
        if decided.doing != "plain" and task.etag:
            # It was listed.
            self.original_objects += 1
            self.original_bytes += task.size_bytes
        if decided.doing == "read":
            self.read_objects += 1
            self.read_bytes += task.size_bytes
        elif decided.doing == "plain":
            self.plain_objects += 1
        elif decided.doing == "done":
            self.done_objects += 1
        elif moved:
            self.moved_objects += 1
            self.moved_bytes += task.size_bytes
        else:
            self.kept_objects += 1
            self.kept_bytes += task.size_bytes

    @property
    def idle(self) -> bool:
        """Whether there is nothing to write."""
        return not (
            self.read_objects
            or self.moved_objects
            or self.done_objects
            or self.gone_objects
            or self.changed_plain
        )

    @property
    def requests_saved(self) -> tuple[int, int]:
        """GETs of the origin for one cold epoch, before and after."""
        shards = self.new_shards + self.kept_shards
        return self.objects, self.plain_objects + shards + (1 if shards else 0)
