"""Filling ahead: as much as a reader needs, no more, and nothing that nobody asked for."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import TierUnavailable, VersionChanged
from gateway.model.body import BytesBody
from gateway.model.conditions import UNCONDITIONAL_WRITE
from gateway.model.ranges import RangeSpec
from gateway.store.ahead import Pace
from gateway.store.lanes import Budget
from gateway.store.reading import ReadAnswer
from tests.store.gated import CHUNK_BYTES, Bench
from tests.waiting import until

MIB = 1024**2
LARGE = random.Random(3).randbytes(12 * CHUNK_BYTES + 777)


# The decision


class Reader:
    """A simulated reader that takes up to `takes` MiB/s of an origin that gives `stream` MiB/s a
    stream and `total` in all; `look` is what the reader and its fills would measure in a second."""

    def __init__(self, *, takes: float, stream: float, total: float) -> None:
        self.takes, self.stream, self.total = takes, stream, total
        self.pace = Pace()

    def look(self) -> float:
        """One second of it, in MiB."""
        gives = min((1 + self.pace.chunks) * self.stream, self.total)
        rate = min(gives, self.takes)
        waited_seconds = max(0.0, 1 - gives / self.takes)
        self.pace.look(seconds=1.0, arrived_bytes=int(rate * MIB), waited_seconds=waited_seconds)
        return rate


@pytest.mark.parametrize(
    ("takes", "stream", "total", "reached"),
    [
        (1000, 90, 10_000, 1000),  # as many streams as the reader can take
        (3000, 90, 10_000, 1400),  # as many as there may be
        (1000, 90, 200, 180),  # the origin has hardly more to give
        (1000, 500, 500, 500),
        (50, 90, 10_000, 50),
    ],
)
def test_a_reader_gets_what_it_can_take_or_the_origin_can_give(
    takes: float, stream: float, total: float, reached: float
) -> None:
    reader = Reader(takes=takes, stream=stream, total=total)
    rates = [reader.look() for _ in range(40)]
    assert rates[-1] >= reached
    # And soon.
    assert max(rates[:8]) >= 0.9 * reached


def test_a_reader_that_never_waits_has_nothing_filled_ahead() -> None:
    reader = Reader(takes=1, stream=90, total=10_000)
    for _ in range(50):
        reader.pace.look(seconds=8.0, arrived_bytes=8 * MIB, waited_seconds=0.05)
        assert reader.pace.chunks == 0


def test_more_streams_that_bring_nothing_are_given_up_and_seldom_tried_again() -> None:
    reader = Reader(takes=1000, stream=500, total=500)
    seen = []
    for _ in range(200):
        reader.look()
        seen.append(reader.pace.chunks)
    assert sum(chunks > 1 for chunks in seen) < 0.05 * len(seen)
    assert set(seen[-30:]) <= {1, 2}


def test_a_reader_that_gets_slower_has_ever_less_ahead() -> None:
    reader = Reader(takes=1000, stream=90, total=10_000)
    for _ in range(20):
        reader.look()
    assert reader.pace.chunks >= 8
    for _ in range(200):
        reader.pace.look(seconds=1.0, arrived_bytes=8 * MIB, waited_seconds=0.0)
    assert reader.pace.chunks == 1


@given(
    st.lists(
        st.tuples(
            st.floats(0.001, 10), st.integers(0, 10**10), st.floats(0, 1, allow_subnormal=False)
        ),
        max_size=100,
    ),
    st.integers(1, 20),
)
def test_whatever_is_measured_the_chunks_stay_within_bounds(
    looks: list[tuple[float, int, float]], most: int
) -> None:
    pace = Pace(most)
    for seconds, arrived_bytes, share in looks:
        before = pace.chunks
        changed = pace.look(
            seconds=seconds, arrived_bytes=arrived_bytes, waited_seconds=share * seconds
        )
        assert changed is (pace.chunks != before)
        assert 0 <= pace.chunks <= max(2 * before, before + 1)
        assert pace.chunks <= most


def test_a_budget_counts_what_is_on_its_way() -> None:
    budget = Budget(fills=3, size_bytes=100)
    for size_bytes in (40, 50):
        assert budget.fits(size_bytes)
        budget.begun(size_bytes)
    assert budget.fits(10)
    assert not budget.fits(11)
    budget.begun(200)  # somebody waits for it: it is not asked whether it fits
    assert not budget.fits(0)
    for size_bytes in (40, 50, 200):
        budget.ended(size_bytes)
    assert budget.fits(100)


# The acting


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path) as made:
        yield made


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three chunks ahead from the first moment on, whatever is measured."""

    class Eager(Pace):
        def __init__(self) -> None:
            super().__init__()
            self.chunks = 3

        def look(self, **_: object) -> bool:
            return False

    monkeypatch.setattr("gateway.store.ahead.Pace", Eager)


async def _put_unseen(bench: Bench, key: str, body: bytes) -> None:
    ref = bench.service.bucket("train").ref(key)
    await bench.origin.inner.put(ref, BytesBody(body), {}, UNCONDITIONAL_WRITE)


async def _settled(bench: Bench) -> None:
    await until(lambda: not bench.service.fills())


def _numbers(bench: Bench) -> list[int]:
    return [span.number for span, _ in bench.service.fills()]


async def _rest(answer: ReadAnswer) -> bytes:
    try:
        return b"".join([bytes(block) async for block in answer.blocks()])
    finally:
        await answer.close()


async def test_the_chunks_that_follow_come_in_beside_the_readers(bench: Bench, eager: None) -> None:
    await _put_unseen(bench, "k", LARGE)
    bench.origin.free_bytes = 1000
    bench.origin.block_gate.clear()
    answer = await bench.service.get("train", "k")
    await until(lambda: bench.origin.read_bytes >= 4000)
    assert _numbers(bench) == [0, 1, 2, 3]
    bench.origin.block_gate.set()
    assert await _rest(answer) == LARGE
    assert bench.origin.calls["open"] == 13
    assert bench.origin.read_bytes == len(LARGE)
    assert answer.served == {"origin": len(LARGE)}


async def test_nothing_past_the_range_is_fetched(bench: Bench, eager: None) -> None:
    await _put_unseen(bench, "k", LARGE)
    wanted = RangeSpec(CHUNK_BYTES + 5, 3 * CHUNK_BYTES - 1)
    assert await bench.read("k", wanted=wanted) == LARGE[CHUNK_BYTES + 5 : 3 * CHUNK_BYTES]
    await _settled(bench)
    assert bench.origin.read_bytes == 2 * CHUNK_BYTES
    # A range of one chunk has nothing ahead of it.
    wanted = RangeSpec(5 * CHUNK_BYTES, 5 * CHUNK_BYTES + 10)
    await bench.read("k", wanted=wanted)
    await _settled(bench)
    assert bench.origin.read_bytes == 3 * CHUNK_BYTES


async def test_many_readers_of_one_object_fill_each_chunk_once(bench: Bench, eager: None) -> None:
    await _put_unseen(bench, "k", LARGE)
    rng = random.Random(5)

    async def read(number: int) -> None:
        start = rng.randrange(len(LARGE) // 2)
        stop = rng.randrange(start, len(LARGE)) + 1
        await asyncio.sleep(rng.random() / 50)
        found = await bench.read("k", wanted=RangeSpec(start, stop - 1))
        assert found == LARGE[start:stop]

    await asyncio.gather(*(read(number) for number in range(40)))
    await _settled(bench)
    assert bench.origin.calls["open"] <= 13
    assert bench.origin.read_bytes <= len(LARGE)


async def test_what_is_held_is_not_fetched_again(bench: Bench, eager: None) -> None:
    await _put_unseen(bench, "k", LARGE)
    wanted = RangeSpec(CHUNK_BYTES, 3 * CHUNK_BYTES - 1)
    await bench.read("k", wanted=wanted)
    await _settled(bench)
    assert await bench.read("k") == LARGE
    assert bench.origin.read_bytes == len(LARGE)


async def test_a_reader_that_leaves_has_nothing_more_fetched(bench: Bench, eager: None) -> None:
    """What had begun to come in is finished, for somebody else; what had not is called off."""
    await _put_unseen(bench, "k", LARGE)
    bench.origin.free_bytes = 1000
    bench.origin.block_gate.clear()
    answer = await bench.service.get("train", "k")
    await until(lambda: bench.origin.read_bytes >= 4000)
    bench.origin.open_gate.clear()
    await answer.close()
    bench.origin.block_gate.set()
    await _settled(bench)
    assert bench.origin.read_bytes == 4 * CHUNK_BYTES
    # The next reader's fills are held back before their first byte.
    other = asyncio.create_task(bench.service.get("train", "k", wanted=RangeSpec(4 << 20, None)))
    await until(lambda: _numbers(bench) == [4, 5, 6, 7])
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    await until(lambda: _numbers(bench) == [4])
    bench.origin.open_gate.set()
    await _settled(bench)
    assert bench.origin.read_bytes == 5 * CHUNK_BYTES
    assert await bench.read("k") == LARGE


async def test_what_another_reader_follows_is_not_called_off(bench: Bench, eager: None) -> None:
    await _put_unseen(bench, "k", LARGE)
    await bench.read("k", wanted=RangeSpec(0, 10))
    await _settled(bench)
    bench.origin.open_gate.clear()
    first = asyncio.create_task(bench.service.get("train", "k", wanted=RangeSpec(1 << 20, None)))
    await until(lambda: _numbers(bench) == [1, 2, 3, 4])
    second = asyncio.create_task(bench.read("k", wanted=RangeSpec(2 << 20, (3 << 20) - 1)))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    bench.origin.open_gate.set()
    assert await second == LARGE[2 << 20 : 3 << 20]
    await _settled(bench)
    assert bench.origin.read_bytes == 3 * CHUNK_BYTES


@pytest.mark.parametrize("fills", [0, 1, 2, 3])
async def test_all_readers_together_keep_to_the_lanes_budget(
    bench: Bench, eager: None, fills: int
) -> None:
    budget = Budget(fills=fills, size_bytes=1 << 40)
    bench.filler._lanes = {"read": budget}
    bodies = {f"k{n}": random.Random(n).randbytes(6 * CHUNK_BYTES) for n in range(2)}
    for key, body in bodies.items():
        await _put_unseen(bench, key, body)
    bench.origin.free_bytes = 1000
    bench.origin.block_gate.clear()
    answers = [await bench.service.get("train", key) for key in bodies]
    # The chunks that readers have come to are on their way whatever the budget.
    assert len(_numbers(bench)) == max(2, fills + 1)
    assert budget.fills == len(_numbers(bench))
    bench.origin.block_gate.set()
    assert [await _rest(answer) for answer in answers] == list(bodies.values())
    await until(lambda: (budget.fills, budget.in_flight_bytes) == (0, 0))


async def test_a_fill_ahead_that_fails_is_tried_again_when_the_reader_gets_there(
    bench: Bench, eager: None
) -> None:
    await _put_unseen(bench, "k", LARGE)
    bench.origin.free_bytes = 1000
    bench.origin.block_gate.clear()
    answer = await bench.service.get("train", "k")
    await until(lambda: bench.origin.read_bytes >= 4000)
    # Four attempts each of those ahead, and the reader's own, which goes on in the end.
    bench.origin.break_after_bytes = 1000
    bench.origin.breaks = 14
    bench.origin.block_gate.set()
    assert await _rest(answer) == LARGE


async def test_an_object_replaced_past_us_breaks_the_answer_off_and_is_never_mixed(
    bench: Bench, eager: None
) -> None:
    await _put_unseen(bench, "k", LARGE)
    answer = await bench.service.get("train", "k")
    got = bytearray()

    async def read_on() -> None:
        async for block in answer.blocks():
            got.extend(block)
            if len(got) == len(block):
                await _put_unseen(bench, "k", LARGE[::-1])

    with pytest.raises(VersionChanged):
        await read_on()
    await answer.close()
    assert LARGE.startswith(got)
    assert await bench.read("k") == LARGE[::-1]


async def test_a_disk_that_takes_nothing_in_is_not_filled_ahead(
    bench: Bench, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _put_unseen(bench, "k", LARGE)
    answer = await bench.service.get("train", "k")
    monkeypatch.setattr(type(bench.disk), "accepting", property(lambda _: False))
    assert await _rest(answer) == LARGE


async def test_an_origin_that_goes_down_is_told_at_the_byte_where_it_did(
    bench: Bench, eager: None
) -> None:
    await _put_unseen(bench, "k", LARGE)
    answer = await bench.service.get("train", "k")
    bench.origin.down = True
    got = bytearray()

    async def read_on() -> None:
        async for block in answer.blocks():
            got.extend(block)

    with pytest.raises(TierUnavailable):
        await read_on()
    await answer.close()
    assert LARGE.startswith(got)
    assert got
    await _settled(bench)


async def test_memory_is_back_when_all_have_left(bench: Bench, eager: None) -> None:
    await _put_unseen(bench, "k", LARGE)
    for wanted in (None, RangeSpec(0, 5 * CHUNK_BYTES), RangeSpec(100, None)):
        answer = await bench.service.get("train", "k", wanted=wanted)
        blocks = answer.blocks()
        assert await anext(blocks)
        await blocks.aclose()  # type: ignore[attr-defined]
        await answer.close()
    await _settled(bench)
    await until(lambda: not bench.disk._pieces.lent_bytes)


async def test_a_reader_close_behind_another_is_served_from_memory(bench: Bench) -> None:
    await _put_unseen(bench, "k", LARGE[:CHUNK_BYTES])
    first = await bench.service.get("train", "k")
    await _settled(bench)
    second = await bench.service.get("train", "k")
    assert second.tier == "disk"
    assert await _rest(second) == LARGE[:CHUNK_BYTES]
    assert await _rest(first) == LARGE[:CHUNK_BYTES]
    assert bench.origin.read_bytes == CHUNK_BYTES
