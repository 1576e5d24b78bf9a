"""What a node remembers, while other nodes change it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cluster.changes import Begun, ChangeId, Ended, Run
from gateway.model.objects import ObjectInfo, ObjectRef
from gateway.store.coherence import Coherence
from gateway.store.versions import VersionTable
from tests.tiers.cached import cache_config, info, opened, version

CHANGE = ChangeId(Run("n2", "a"), 1)
KEY = ObjectRef("main", "bucket", "key")
OTHER = ObjectRef("main", "other", "key")
TOLD = ObjectInfo(etag="e1", size_bytes=1, last_modified_ms=1)


class Packs:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, ...]] = []

    def changing(self, bucket: str, key: str) -> None:
        self.heard.append(("changing", bucket, key))

    def changed(self, bucket: str, key: str) -> None:
        self.heard.append(("changed", bucket, key))

    def missed(self) -> None:
        self.heard.append(("missed",))


class Remembering:
    """A table, packs and timers that are fired by hand, under one `Coherence`."""

    def __init__(self, disk: object, immutable: frozenset[tuple[str, str]] = frozenset()) -> None:
        self.versions = VersionTable(now=lambda: 0.0)
        self.packs = Packs()
        self.timers: list[Callable[[], None]] = []
        self.coherence = Coherence(
            self.versions,
            disk,  # type: ignore[arg-type]
            {"main": self.packs},
            immutable=immutable,
            doubt_seconds=30.0,
            later=lambda _, call: self.timers.append(call),
        )

    def learn(self, ref: ObjectRef = KEY) -> bool:
        ticket = self.versions.begin_read(ref)
        learned = self.versions.learn(ticket, TOLD)
        self.versions.end_read(ticket)
        return learned

    def knows(self, ref: ObjectRef = KEY) -> bool:
        return self.versions.trusted(ref, None) is not None


async def test_from_begin_to_end_nothing_of_the_key_is_trusted_or_learned() -> None:
    node = Remembering(None)
    node.learn()
    await node.coherence.begun(Begun(CHANGE, (KEY,)))
    assert not node.knows()
    assert not node.learn()
    assert node.learn(OTHER)
    node.coherence.ended(Ended(CHANGE, abandoned=False))
    assert not node.knows()
    assert node.learn()
    assert node.packs.heard == [("changing", "bucket", "key"), ("changed", "bucket", "key")]


async def test_what_was_asked_before_the_end_teaches_nothing() -> None:
    node = Remembering(None)
    await node.coherence.begun(Begun(CHANGE, (KEY,)))
    ticket = node.versions.begin_read(KEY)
    node.coherence.ended(Ended(CHANGE, abandoned=False))
    assert not node.versions.learn(ticket, TOLD)


async def test_it_is_distrusted_in_the_very_call_not_once_that_is_awaited() -> None:
    node = Remembering(None)
    node.learn()
    waiting = node.coherence.begun(Begun(CHANGE, (KEY,)))
    assert not node.knows()
    await waiting


async def test_what_a_dead_writer_left_is_doubted_for_a_while() -> None:
    node = Remembering(None)
    await node.coherence.begun(Begun(CHANGE, (KEY,)))
    node.coherence.ended(Ended(CHANGE, abandoned=True))
    assert not node.learn()
    (timer,) = node.timers
    timer()
    assert node.learn()


async def test_after_an_absence_what_changed_is_dropped_and_the_rest_is_not() -> None:
    node = Remembering(None)
    node.learn()
    node.learn(OTHER)
    ticket = node.versions.begin_read(OTHER)
    await node.coherence.begun(Begun(CHANGE, (ObjectRef("main", "bucket", "third"),)))
    await node.coherence.missed([KEY])
    assert not node.knows()
    assert node.knows(OTHER)
    # Asked before: whatever was written meanwhile, nobody told.
    assert not node.versions.learn(ticket, TOLD)
    assert node.learn()
    assert ("missed",) in node.packs.heard


async def test_after_an_absence_of_which_nothing_is_known_everything_is_dropped() -> None:
    node = Remembering(None)
    node.learn()
    node.learn(OTHER)
    await node.coherence.missed(None)
    assert not node.knows()
    assert not node.knows(OTHER)


@pytest.mark.parametrize("everything", [False, True])
async def test_heads_on_disk_that_are_believed_unasked_are_gone_too(
    tmp_path: Path, everything: bool
) -> None:
    of, beside = version("a", 10), version("b", 10)
    async with opened(cache_config(tmp_path)) as disk:
        node = Remembering(disk, frozenset({("main", "bucket")}))
        for each in (of, beside):
            await disk.remember(each.ref, info(each))
        await node.coherence.begun(Begun(CHANGE, (of.ref,)))
        assert disk.recall(of.ref) is None
        assert disk.recall(beside.ref) == info(beside)
        await disk.remember(of.ref, info(of))
        await node.coherence.missed(None if everything else [of.ref])
        assert disk.recall(of.ref) is None
        assert (disk.recall(beside.ref) is None) == everything
