"""One question to the origin answers all who ask at one moment, and nobody who asks later."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import NoSuchKey
from gateway.model.body import BytesBody
from gateway.model.conditions import UNCONDITIONAL_WRITE
from gateway.model.objects import ObjectInfo
from tests.store.gated import Bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path) as made:
        await made.service.put("train", "k", BytesBody(b"old"), {}, UNCONDITIONAL_WRITE)
        yield made


class SlowAnswers:
    """The origin looks at once, but its answers are on their way until `arrive` is set."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looked = asyncio.Event()
        self.arrive = asyncio.Event()
        self._head = bench.origin.inner.head
        monkeypatch.setattr(bench.origin, "head", self.head)

    async def head(self, *args: Any, **kwargs: Any) -> ObjectInfo:
        try:
            return await self._head(*args, **kwargs)
        finally:
            self.looked.set()
            await self.arrive.wait()


async def test_an_answer_from_before_a_delete_is_not_shared_with_who_asks_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = SlowAnswers(bench, monkeypatch)
    versions = bench.service._versions
    ref = bench.service.bucket("train").ref("k")
    # Another question is under way and a write has come and gone; it ends in the very moment
    # between the first reader's decision to ask and the asking.
    other = versions.begin_read(ref)
    versions.forget(ref)
    before = asyncio.create_task(bench.service.head("train", "k"))
    await asyncio.sleep(0)
    versions.end_read(other)
    await origin.looked.wait()
    await bench.service.delete("train", "k")
    after = asyncio.create_task(bench.service.head("train", "k"))
    await asyncio.sleep(0)
    origin.arrive.set()
    assert (await before).info.size_bytes == 3
    with pytest.raises(NoSuchKey):
        await after


async def test_those_who_ask_at_one_moment_share_one_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.seconds += 10_000
    origin = SlowAnswers(bench, monkeypatch)
    origin.arrive.set()
    asked = 0

    async def count(*args: Any, **kwargs: Any) -> ObjectInfo:
        nonlocal asked
        asked += 1
        return await origin.head(*args, **kwargs)

    monkeypatch.setattr(bench.origin, "head", count)
    answers = await asyncio.gather(*(bench.service.head("train", "k") for _ in range(100)))
    assert {answer.info.size_bytes for answer in answers} == {3}
    assert asked == 1


async def test_a_question_that_all_have_left_is_over_and_leaves_nothing_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.seconds += 10_000
    origin = SlowAnswers(bench, monkeypatch)
    ref = bench.service.bucket("train").ref("k")
    asker = asyncio.create_task(bench.service.head("train", "k"))
    await origin.looked.wait()
    asker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asker
    origin.arrive.set()
    while bench.service._questions:
        await asyncio.sleep(0)
    bench.service._versions.forget(ref)
    assert bench.service._versions.generation(ref) == 0
