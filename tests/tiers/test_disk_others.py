"""What other processes read in the index is what the keeper stands for, or they are told not to."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest

from gateway.index.records import Table, object_key
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from gateway.tiers.held_disk import HeldDisk
from tests.tiers.cached import cache_config, info, version
from tests.waiting import until


async def test_what_is_forgotten_stays_so_though_its_commit_was_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cache_config(tmp_path / "cache")
    keeper = DiskTier(config, Metrics())
    await keeper.start()
    of = version("k", 100)
    assert keeper._holding is not None
    index = keeper._holding.index
    begun, may_go_on = threading.Event(), threading.Event()
    transact = index._transact

    def slowly(batch: Any) -> None:
        begun.set()
        may_go_on.wait(60)
        transact(batch)

    monkeypatch.setattr(index, "_transact", slowly)
    await keeper.remember(of.ref, info(of))
    committing = asyncio.create_task(index.flush())
    await asyncio.to_thread(begun.wait, 60)
    forgetting = asyncio.create_task(keeper.forget(of.ref))
    await asyncio.sleep(0)
    assert not forgetting.done()
    may_go_on.set()
    await forgetting
    await committing
    assert index.committed(Table.OBJECTS, object_key(of.ref)) is None
    await keeper.close()


async def test_the_index_is_named_when_open_and_unnamed_before_it_is_given_up(
    tmp_path: Path,
) -> None:
    told: list[Path | None] = []
    config = cache_config(tmp_path / "cache")
    keeper = DiskTier(config, Metrics(), on_index=told.append)
    await keeper.start()
    assert told == [tmp_path / "cache/index.lmdb"]
    await keeper._detach()
    assert told[-1] is None
    await keeper.close()


async def test_an_index_that_cannot_forget_is_unnamed_until_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Path | None] = []
    config = cache_config(tmp_path / "cache")
    keeper = DiskTier(config, Metrics(), look_seconds=0.05, on_index=told.append)
    await keeper.start()
    of = version("k", 100)
    await keeper.remember(of.ref, info(of))
    assert keeper._holding is not None
    index = keeper._holding.index
    await index.flush()
    transact = index._transact

    def fail(batch: Any) -> None:
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    monkeypatch.setattr(index, "_transact", fail)
    monkeypatch.setattr("gateway.index.held.translated", lambda *_: OSError(5, "EIO"))
    await keeper.forget(of.ref)
    assert told[1:] == [None]
    monkeypatch.setattr(index, "_transact", transact)
    await until(lambda: len(told) >= 3)
    assert told[2] == tmp_path / "cache/index.lmdb"
    assert keeper.recall(of.ref) is None
    await keeper.close()


async def test_what_the_index_says_stays_true_when_the_keeper_closes(tmp_path: Path) -> None:
    told: list[Path | None] = []
    config = cache_config(tmp_path / "cache")
    keeper = DiskTier(config, Metrics(), on_index=told.append)
    await keeper.start()
    of = version("k", 100)
    await keeper.remember(of.ref, info(of))
    await keeper.close()
    assert None not in told
    reader = HeldDisk(config)
    await reader.start()
    assert reader.recall(of.ref) == info(of)
    await reader.close()
