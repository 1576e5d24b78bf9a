"""Before the origin is asked: racks that hold it, and who was at home before."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.model.objects import Span
from gateway.model.ranges import RangeSpec
from gateway.store.batch import WantedObject
from tests.cluster.running import CHUNK_BYTES, Cluster, cluster
from tests.cluster.test_reading_near import RACKS, put

SECOND = RangeSpec(CHUNK_BYTES, None)


class Told:
    """A directory that says what it was told."""

    def __init__(self, *racks: str) -> None:
        self.racks = racks
        self.asked = 0

    async def racks_holding(self, span: Span) -> Sequence[str]:
        self.asked += 1
        return self.racks


@pytest.fixture
async def six(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, RACKS) as made:
        yield made


async def test_a_rack_that_holds_it_is_asked_before_the_origin(
    six: Cluster, tmp_path: Path
) -> None:
    key = six.key_at("a1", 1)
    body = put(tmp_path, key, 2 * CHUNK_BYTES)
    in_b = next(each for each in six.homes(key, 1) if each.config.node.rack == "b")
    six.meet(["b1", "b2"])
    assert await in_b.read(key, wanted=SECOND) == body[CHUNK_BYTES:]
    await six.settled()
    six.meet()
    holders = Told("c", "b")
    six["a1"].parts.near.holders = holders
    assert (await six["a1"].tiers(key, wanted=SECOND))[1] == {"remote": CHUNK_BYTES}
    assert holders.asked == 1
    assert six.origin_gets() == 1


async def test_a_rack_that_is_said_to_hold_it_and_does_not_costs_a_question(
    six: Cluster, tmp_path: Path
) -> None:
    key = six.key_at("a1", 1)
    body = put(tmp_path, key, 2 * CHUNK_BYTES)
    six["a1"].parts.near.holders = Told("c", "b", "nowhere")
    assert await six["a1"].read(key, wanted=SECOND) == body[CHUNK_BYTES:]
    assert six["a1"].counted("feedrack_peer_requests_total", asked="span held", outcome="404") == 2
    assert six.origin_gets() == 1


async def test_who_came_lately_asks_who_was_at_home_before(six: Cluster, tmp_path: Path) -> None:
    everybody = ["a2", "b1", "b2", "c1", "c2", "a1"]
    six.meet(everybody)
    keys = [key for key in (f"k{n}" for n in range(60)) if six.homes(key)[0].id == "a1"]
    bodies = {key: put(tmp_path, key, 3000) for key in keys}
    six.meet(everybody[:-1])
    for key in keys:
        await six["a2"].read(key)
    await six.settled()
    six.meet(everybody)
    asked = six.origin_gets()
    for key, body in bodies.items():
        assert await six["a1"].read(key) == body
    assert six.origin_gets() == asked


async def test_who_came_lately_does_not_ask_for_nothing_for_long(
    six: Cluster, tmp_path: Path
) -> None:
    six.meet(["a2", "b1", "b2", "c1", "c2", "a1"])
    keys = [key for key in (f"k{n}" for n in range(500)) if six.homes(key)[0].id == "a1"]
    assert len(keys) > 50
    for key in keys:
        put(tmp_path, key, 1000)
        await six["a1"].read(key)
    assert six["a1"].counted("feedrack_peer_requests_total", asked="head held") == 32


async def test_a_batch_comes_through_peers(six: Cluster, tmp_path: Path) -> None:
    bodies = {f"k{n}": put(tmp_path, f"k{n}", 1000 + n) for n in range(100)}
    bodies["large"] = put(tmp_path, "large", 3 * CHUNK_BYTES)
    for each in six.nodes:
        service = each.node.service
        batch = service.batch(
            service.bucket("train"),
            [*(WantedObject(key) for key in bodies), WantedObject("k5", RangeSpec(10, 19))],
            admit=lambda key: None,
        )
        try:
            for body in [*bodies.values(), bodies["k5"][10:20]]:
                answer = await batch.take()
                assert not isinstance(answer, Exception)
                found = (
                    bytes(answer.whole)  # type: ignore[arg-type]
                    if answer.whole is not None
                    else b"".join([bytes(block) async for block in answer.blocks()])
                )
                await answer.close()
                assert found == body
        finally:
            await batch.close()
    assert six.origin_bytes() == sum(map(len, bodies.values()))


async def test_chunks_elsewhere_are_begun_before_a_reader_has_come_to_them(
    six: Cluster, tmp_path: Path
) -> None:
    body = put(tmp_path, "large", 40 * CHUNK_BYTES)
    for each in six.nodes:
        each.gated()
    assert await six["a1"].read("large") == body
    assert six.origin_bytes() == len(body)
    for first, last in ((0, 0), (CHUNK_BYTES - 1, CHUNK_BYTES), (5, 3 * CHUNK_BYTES + 7)):
        assert (
            await six["b1"].read("large", wanted=RangeSpec(first, last)) == body[first : last + 1]
        )
    budget = six["a1"].node.service._ahead_elsewhere
    assert budget.fills == 0


class Slow:
    """An origin whose streams are slow, each by itself."""

    def __init__(self, inner: Any, streams: list[int]) -> None:
        self._inner = inner
        self._streams = streams

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def open(self, *args: Any, **how: Any) -> "SlowOpened":
        return SlowOpened(await self._inner.open(*args, **how), self._streams)


class SlowOpened:
    """Counts how many are read at a time, in the last place of `streams` the most there were."""

    def __init__(self, inner: Any, streams: list[int]) -> None:
        self._inner = inner
        self._streams = streams
        streams[0] += 1
        streams[1] = max(streams)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read_into(self, memory: memoryview) -> int:
        await asyncio.sleep(0.01)
        got_bytes: int = await self._inner.read_into(memory[:16_384])
        return got_bytes

    async def close(self) -> None:
        self._streams[0] -= 1
        await self._inner.close()


async def test_a_reader_of_a_node_that_keeps_nothing_has_chunks_brought_in_ahead(
    six: Cluster, tmp_path: Path
) -> None:
    """All of it has its home in other racks' nodes and this rack's other one."""
    streams = [0, 0]
    for each in six.nodes:
        packed: Any = each.node.origins["main"]
        packed._origin = Slow(packed._origin, streams)
    body = put(tmp_path, "large", 24 * CHUNK_BYTES)
    assert await six["a1"].read("large") == body
    assert streams[1] >= 5
    assert six.origin_bytes() == len(body)


async def test_what_is_damaged_on_a_peers_disk_comes_anew(six: Cluster, tmp_path: Path) -> None:
    key = six.key_at("a1")
    body = put(tmp_path, key, CHUNK_BYTES)
    assert await six["a1"].read(key) == body
    assert await six["a1"].holds(key)
    (chunk,) = (tmp_path / "a1" / "cache" / "chunks").glob("*/*")
    with chunk.open("r+b") as file:
        file.write(b"damaged")
    assert await six["a2"].read(key) == body
    assert six["a1"].counted("feedrack_cache_corrupt_total") == 1
