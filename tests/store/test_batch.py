"""Many objects in order: fetched ahead within bounds, each told for itself, nothing left behind."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from gateway.errors import AccessDenied, InvalidRange, NoSuchKey, TierUnavailable
from gateway.model.body import BytesBody
from gateway.model.conditions import UNCONDITIONAL_WRITE
from gateway.model.ranges import RangeSpec
from gateway.store.batch import BatchReads, WantedObject
from gateway.store.lanes import Budget
from gateway.store.reading import ReadAnswer
from gateway.tiers.protocol import FileRegion
from tests.store.gated import CHUNK_BYTES, Bench
from tests.waiting import until

KIB = 1024
CHANCE = random.Random(5)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path) as made:
        yield made
        assert made.service._ahead.fills == 0
        assert made.service._ahead.in_flight_bytes == 0


def cold(bench: Bench, bodies: dict[str, bytes]) -> None:
    """Puts objects where the node has not looked yet."""
    for key, body in bodies.items():
        path = bench.root / "train" / key
        path.write_bytes(body)
        os.utime(path, (1_000_000_000, 1_000_000_000))


async def warm(bench: Bench, bodies: dict[str, bytes]) -> None:
    for key, body in bodies.items():
        await bench.service.put(
            "train", key, BytesBody(body), headers={}, conditions=UNCONDITIONAL_WRITE
        )


def batch(
    bench: Bench,
    wanted: Sequence[str | WantedObject],
    admit: Callable[[str], None] = lambda _: None,
) -> BatchReads:
    objects = [each if isinstance(each, WantedObject) else WantedObject(each) for each in wanted]
    return bench.service.batch(bench.service.bucket("train"), objects, admit=admit)


async def body_of(taken: ReadAnswer | Exception) -> bytes:
    assert isinstance(taken, ReadAnswer), taken
    if taken.whole is not None:
        assert not isinstance(taken.whole, FileRegion)
        return bytes(taken.whole)
    try:
        return b"".join([bytes(block) async for block in taken.blocks()])
    finally:
        await taken.close()


async def settled(bench: Bench) -> None:
    """Waits until nothing more is asked of the origin unless somebody takes something."""
    calls = -1
    while calls != bench.origin.calls["open"]:
        calls = bench.origin.calls["open"]
        for _ in range(50):
            await asyncio.sleep(0)


async def test_objects_come_in_the_order_asked_wherever_they_are(bench: Bench) -> None:
    sizes = {"empty": 0, "tiny": 10, "small": 100 * KIB, "medium": 250 * KIB, "large": 3_500_000}
    bodies = {name: CHANCE.randbytes(size) for name, size in sizes.items()}
    await warm(bench, {f"warm-{name}": body for name, body in bodies.items()})
    cold(bench, {f"cold-{name}": body for name, body in bodies.items()})
    expected: list[tuple[WantedObject, bytes | type[Exception]]] = []
    for _ in range(200):
        name = CHANCE.choice([*sizes])
        key = f"{CHANCE.choice(['warm', 'cold'])}-{name}"
        body = bodies[name]
        if CHANCE.random() < 0.2:
            expected.append((WantedObject(f"missing-{CHANCE.random()}"), NoSuchKey))
        elif CHANCE.random() < 0.5 and body:
            first = CHANCE.randrange(len(body))
            last = first + CHANCE.randrange(1, 600_000)
            expected.append((WantedObject(key, RangeSpec(first, last)), body[first : last + 1]))
        elif CHANCE.random() < 0.1:
            expected.append((WantedObject(key, RangeSpec(len(body), None)), InvalidRange))
        else:
            expected.append((WantedObject(key), body))
    reads = batch(bench, [wanted for wanted, _ in expected])
    try:
        for wanted, found in expected:
            taken = await reads.take()
            if isinstance(found, bytes):
                assert await body_of(taken) == found, wanted
            else:
                assert isinstance(taken, found), wanted
    finally:
        await reads.close()


async def test_what_is_held_is_taken_without_waiting(bench: Bench) -> None:
    bodies = {f"k{number}": CHANCE.randbytes(CHANCE.randrange(60_000)) for number in range(100)}
    await warm(bench, bodies)
    bench.origin.down = True
    reads = batch(bench, [*bodies])
    try:
        for body in bodies.values():
            taken = reads.take_now()
            assert isinstance(taken, ReadAnswer)
            assert taken.whole == body
        with pytest.raises(IndexError):
            reads.take_now()
    finally:
        await reads.close()


async def test_cold_objects_are_on_their_way_together_but_never_more_than_a_window(
    bench: Bench,
) -> None:
    bodies = {f"k{number:03}": b"%d" % number for number in range(200)}
    cold(bench, bodies)
    bench.origin.open_gate.clear()
    reads = batch(bench, [*bodies])
    assert reads.take_now() is None
    await settled(bench)
    assert bench.origin.calls["open"] == 32
    bench.origin.open_gate.set()
    for number, body in enumerate(bodies.values()):
        assert await body_of(await reads.take()) == body
        assert bench.origin.calls["open"] <= number + 1 + 32
    await reads.close()
    assert bench.origin.calls["open"] == 200


async def test_cold_objects_are_fetched_while_held_ones_before_them_wait_for_the_taker(
    bench: Bench,
) -> None:
    held = {f"held{number}": CHANCE.randbytes(128 * KIB) for number in range(25)}
    await warm(bench, held)
    cold(bench, {"cold": b"c"})
    reads = batch(bench, [*held, "cold"])
    first = reads.take_now()
    assert first is not None
    assert await body_of(first) == held["held0"]
    # Only some of what is held lies in memory: the rest stays on disk until its turn.
    assert reads._ready_bytes < 2200 * KIB
    await until(lambda: bench.origin.read_bytes == 1)
    for body in [*held.values()][1:]:
        assert await body_of(await reads.take()) == body
    assert await body_of(await reads.take()) == b"c"
    await reads.close()


async def test_the_larger_objects_are_the_fewer_are_on_their_way(bench: Bench) -> None:
    bodies = {f"k{number:02}": CHANCE.randbytes(CHUNK_BYTES) for number in range(40)}
    cold(bench, bodies)
    reads = batch(bench, [*bodies])
    assert await body_of(await reads.take()) == bodies["k00"]
    await settled(bench)
    assert reads._fetching_bytes <= 17 * CHUNK_BYTES + 32 * 512 * KIB
    for number, body in enumerate([*bodies.values()][1:20]):
        assert await body_of(await reads.take()) == body
        if number > 16:
            assert reads._fetching_bytes <= 16 * CHUNK_BYTES
    await reads.close()


async def test_batches_share_a_budget_and_each_of_them_goes_on_without_it(bench: Bench) -> None:
    cold(bench, {f"k{number:02}": b"%d" % number for number in range(60)})
    bench.service._ahead = Budget(fills=40, size_bytes=1 << 30)
    bench.origin.open_gate.clear()
    batches = [batch(bench, [f"k{number:02}" for number in range(20 * of, 60)]) for of in (0, 1, 2)]
    for reads in batches:
        assert reads.take_now() is None
    # The third has one of its own on its way all the same: what it waits for.
    assert bench.service._ahead.fills == 41
    bench.origin.open_gate.set()
    for of, reads in enumerate(batches):
        for number in range(20 * of, 60):
            assert await body_of(await reads.take()) == b"%d" % number
        await reads.close()


async def test_a_failure_is_told_in_its_place_and_not_before_its_turn(bench: Bench) -> None:
    await warm(bench, {"a": b"A", "z": b"Z"})

    def admit(key: str) -> None:
        if key.startswith("secret"):
            raise AccessDenied

    reads = batch(bench, ["a", "secret", "missing", "z"], admit)
    assert await body_of(await reads.take()) == b"A"
    assert isinstance(await reads.take(), AccessDenied)
    assert isinstance(await reads.take(), NoSuchKey)
    assert await body_of(await reads.take()) == b"Z"
    await reads.close()
    # Of what may not be read nobody has even asked.
    assert bench.origin.calls["open"] == 1


async def test_a_small_object_that_breaks_off_is_a_failure_and_no_half_object(
    bench: Bench,
) -> None:
    cold(bench, {"a": b"A", "broken": bytes(100 * KIB), "z": b"Z"})
    reads = batch(bench, ["a"])
    assert await body_of(await reads.take()) == b"A"
    await reads.close()
    bench.origin.breaks, bench.origin.break_after_bytes = 100, KIB
    reads = batch(bench, ["a", "broken"])
    assert await body_of(await reads.take()) == b"A"
    assert isinstance(await reads.take(), TierUnavailable)
    await reads.close()
    bench.origin.breaks = 0


async def test_an_origin_that_is_down_fails_what_is_cold_and_nothing_else(bench: Bench) -> None:
    await warm(bench, {"a": b"A", "z": b"Z"})
    cold(bench, {"c": b"C"})
    bench.origin.down = True
    reads = batch(bench, ["a", "c", "z"])
    assert await body_of(await reads.take()) == b"A"
    assert isinstance(await reads.take(), TierUnavailable)
    assert await body_of(await reads.take()) == b"Z"
    await reads.close()


@pytest.mark.parametrize("gate", ["open_gate", "block_gate"])
async def test_closing_ends_what_is_on_its_way(bench: Bench, gate: str) -> None:
    cold(bench, {f"k{number}": bytes(300 * KIB) for number in range(40)})
    getattr(bench.origin, gate).clear()
    reads = batch(bench, [f"k{number}" for number in range(40)])
    assert reads.take_now() is None
    await settled(bench)
    before = len(asyncio.all_tasks())
    taking = asyncio.create_task(reads.take())
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    assert len(asyncio.all_tasks()) == before
    await reads.close()
    await reads.close()
    assert not [task for task in asyncio.all_tasks() if "_bring" in repr(task)]
    getattr(bench.origin, gate).set()
    # The fills that had begun come to their end, and nobody follows them.
    await until(lambda: not bench.service.fills())
    assert bench.origin.calls["open"] <= 64


async def test_what_was_ready_but_not_taken_is_let_go(bench: Bench) -> None:
    cold(bench, {f"k{number}": bytes(3 * CHUNK_BYTES) for number in range(4)})
    reads = batch(bench, [f"k{number}" for number in range(4)])
    assert reads.take_now() is None
    await until(lambda: all(slot.task.done() for slot in reads._slots))  # type: ignore[union-attr]
    await reads.close()
    await until(lambda: not bench.service.fills())
    assert bench.origin.read_bytes == 4 * CHUNK_BYTES


async def test_an_object_written_meanwhile_comes_in_one_version(bench: Bench) -> None:
    await warm(bench, {"k": b"old" * 100_000})
    reads = batch(bench, ["k"] * 60)
    assert await body_of(await reads.take()) == b"old" * 100_000
    await warm(bench, {"k": b"new"})
    bodies = [await body_of(await reads.take()) for _ in range(59)]
    await reads.close()
    assert {*bodies} <= {b"old" * 100_000, b"new"}
    assert bodies == sorted(bodies, reverse=True)
    assert bodies[-1] == b"new"
