"""A plan made of what lies there: the listing, the pack before, what was interrupted."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from packer.format import Index, Manifest, Overrides, Record
from packer.ordering import ordered
from packer.plan import Decided, Scope, Summary, Task, cut, decide, reserved, same, worn_out
from packer.runs import Keyed, Spool, join
from packer.stores.protocol import Listed, Store


class Before(msgspec.Struct):
    """The pack that is there: its manifest, its index, and the log over it."""

    manifest: Manifest | None
    index: Index | None
    overrides: Overrides

    @property
    def gone_through(self) -> int:
        """Originals of records up to this generation may be gone."""
        return self.manifest.originals_gone_through if self.manifest is not None else 0

    def records(self) -> Iterator[Keyed[Record]]:
        """What the index holds."""
        return self.index.walk() if self.index is not None else iter(())

    def knows(self, listed: Listed) -> bool:
        """Whether the index was made when this very version of an object was there."""
        record = self.index.get(listed.key.encode()) if self.index is not None else None
        return record is not None and same(record, listed)


class Plan:
    """What is to be done for a prefix, on disk as far as it grows with the prefix.

    `worn`: the shards whose living objects move out, by position."""

    def __init__(self, spool: Spool[Decided], summary: Summary, worn: set[int]) -> None:
        self._spool = spool
        self.summary = summary
        self.worn = worn

    def is_moved(self, decided: Decided) -> bool:
        """Whether a kept object leaves the shard it is in."""
        record = decided.task.moved
        return decided.doing == "keep" and record is not None and record.shard in self.worn

    def _tasks(self) -> Iterator[Task]:
        for decided in self._spool:
            if decided.doing == "read" or self.is_moved(decided):
                yield decided.task

    def tasks(self, order: str, folder: Path) -> Iterator[Task]:
        """What is to be packed, in order."""
        return ordered(self._tasks(), order, folder)


def keyed(listing: Iterable[Listed]) -> Iterator[Keyed[Listed]]:
    """A listing as a stream of keys, without what is ours. ValueError where it is unsorted."""
    last = b""
    for item in listing:
        key = item.key.encode()
        if key < last:
            raise ValueError(f"the listing is not in the order of bytes: {item.key!r}")
        last = key
        if not reserved(item.key):
            yield key, item


def make_plan(
    store: Store,
    before: Before,
    done: Iterable[Keyed[Record]],
    folder: Path,
    *,
    prefix: str,
    order: str,
    shard_bytes: int,
    scope: Scope,
) -> Plan:
    """Lists the prefix and decides on each key. StoreError, OSError."""
    summary = Summary()
    spool: Spool[Decided] = Spool(folder / "plan.spool", Decided)
    living: dict[int, int] = {}
    with closing(spool):
        for key, (listed, old, ready) in join(keyed(store.listing(prefix)), before.records(), done):
            decided = decide(
                key,
                listed[0] if listed else None,
                old[0] if old else None,
                ready,
                before.overrides.get(key.decode()),
                scope,
            )
            record = decided.task.moved
            if decided.doing == "keep" and record is not None and record.shard is not None:
                living[record.shard] = living.get(record.shard, 0) + record.size_bytes
            elif decided.doing == "plain" and not (old and same(old[0], listed[0])):
                summary.changed_plain += 1
            spool.add(decided)
    shards = before.manifest.shards if before.manifest is not None else ()
    relaid = before.manifest is not None and before.manifest.order != order
    worn = set(range(len(shards))) if relaid else worn_out(shards, living)
    plan = Plan(spool, summary, worn)
    _count(plan, spool, shard_bytes)
    summary.kept_shards = len(shards) - len(worn)
    return plan


def _count(plan: Plan, spool: Spool[Decided], shard_bytes: int) -> None:
    def sizes() -> Iterator[int]:
        for decided in spool:
            moved = plan.is_moved(decided)
            plan.summary.count(decided, moved)
            if moved or decided.doing == "read":
                yield decided.task.size_bytes

    plan.summary.new_shards = sum(1 for _ in cut(sizes(), shard_bytes))
