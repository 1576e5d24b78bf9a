"""Memory handed to a line comes back once, and only when the device is through with it."""

import asyncio
import mmap
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.rdma.lines import Completions, Line, LineFailed, Piece
from tests.rdma.soft import Fabric, SoftDevice, SoftRegistration

DEPTH = 4
SIZE = 4096


class Ends:
    """A line to a client's memory. `back` counts the pieces that came back, by their number."""

    def __init__(self, fabric: Fabric, near: SoftDevice, far: SoftDevice) -> None:
        self.fabric = fabric
        self.failures: list[str] = []
        self.back: dict[int, int] = {}
        self.pair = near.pair(depth=DEPTH, remote=False)
        self.other = far.pair(depth=1, remote=True)
        self.pair.connect(self.other.address)
        self.other.connect(self.pair.address)
        self.here: SoftRegistration = near.register(memoryview(mmap.mmap(-1, SIZE)), remote=False)
        self.there: SoftRegistration = far.register(memoryview(mmap.mmap(-1, SIZE)), remote=True)
        self.completions = Completions(near, on_failure=self.failures.append)
        self.line = Line(
            self.completions,
            self.pair,
            DEPTH,
            on_failure=self.failures.append,
            settle_seconds=0.05,
        )

    def release(self, number: int) -> Callable[[], None]:
        self.back.setdefault(number, 0)

        def back() -> None:
            self.back[number] += 1

        return back

    async def write(
        self, number: int = 0, *, rkey: int | None = None
    ) -> asyncio.Future[str | None]:
        piece = await self.line.write(
            self.here.address,
            SIZE,
            self.here.lkey,
            to=self.there.address,
            rkey=self.there.rkey if rkey is None else rkey,
            release=self.release(number),
        )
        return piece.over

    async def read(self, number: int = 0) -> Piece:
        return await self.line.read(
            self.here.address,
            SIZE,
            self.here.lkey,
            source=self.there.address,
            rkey=self.there.rkey,
            release=self.release(number),
        )


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    fabric = Fabric()
    near, far = fabric.device(), fabric.device()
    ends = Ends(fabric, near, far)
    yield ends
    await ends.line.close()
    ends.completions.close()
    near.close()
    far.close()


async def test_a_piece_comes_back_when_it_is_there(ends: Ends) -> None:
    future = await ends.write()
    assert ends.back == {0: 0}
    assert await future is None
    assert ends.back == {0: 1}
    assert ends.line.at_rest


async def test_no_more_is_under_way_than_fits(ends: Ends) -> None:
    ends.fabric.held = True
    for number in range(DEPTH):
        await ends.write(number)
    late = asyncio.create_task(ends.write(DEPTH))
    await asyncio.sleep(0)
    assert not late.done()
    assert len(ends.pair.under_way) == DEPTH
    ends.fabric.held = False
    ends.pair.go_on()
    assert await (await late) is None
    assert ends.back == dict.fromkeys(range(DEPTH + 1), 1)


async def test_what_was_read_is_its_callers_to_release(ends: Ends) -> None:
    piece = await ends.read()
    assert await piece.over is None
    assert ends.back == {0: 0}
    # Or to say that nobody wants it.
    piece.abandon()
    piece.abandon()
    assert ends.back == {0: 1}


async def test_what_nobody_waits_for_any_more_comes_back_by_itself(ends: Ends) -> None:
    ends.fabric.held = True
    piece = await ends.read()
    piece.abandon()
    assert ends.back == {0: 0}
    ends.fabric.held = False
    ends.pair.go_on()
    other = await ends.write(1)
    await other
    assert ends.back == {0: 1, 1: 1}


async def test_one_failure_ends_the_line(ends: Ends) -> None:
    futures = [await ends.write(0), await ends.write(1, rkey=1), await ends.write(2)]
    found = await asyncio.gather(*futures)
    assert found[0] is None
    assert found[1] is not None
    assert "status 10" in found[1]
    # What was given up with it tells the same.
    assert found[2] == found[1]
    assert ends.failures == [found[1]]
    assert ends.back == {0: 1, 1: 1, 2: 1}
    with pytest.raises(LineFailed):
        await ends.write(3)
    assert ends.back[3] == 1


async def test_failing_gives_up_what_is_under_way(ends: Ends) -> None:
    ends.fabric.held = True
    futures = [await ends.write(number) for number in range(3)]
    waiting = [asyncio.create_task(ends.write(number)) for number in (3, 4, 5)]
    await asyncio.sleep(0)
    ends.line.fail("no use")
    # The device says nothing: until its queue pair is destroyed, nothing comes back.
    assert set(ends.back.values()) == {0}
    await ends.line.settled()
    assert ends.pair.closed
    assert await asyncio.gather(*futures) == ["no use"] * 3
    begun = await asyncio.gather(*waiting, return_exceptions=True)
    assert [await each for each in begun if isinstance(each, asyncio.Future)] == ["no use"]
    assert [type(each) for each in begun if isinstance(each, Exception)] == [LineFailed] * 2
    assert set(ends.back.values()) == {1}
    assert ends.failures == ["no use"]
    assert ends.line.over


async def test_a_late_word_of_the_device_changes_nothing(ends: Ends) -> None:
    ends.fabric.held = True
    future = await ends.write()
    number = ends.pair.under_way[0].work
    ends.line.fail("no use")
    await ends.line.settled()
    ends.pair.device.complete(number, 0)
    await asyncio.sleep(0)
    assert await future == "no use"
    assert ends.back == {0: 1}


async def test_one_that_gives_up_waiting_for_its_turn_has_its_memory_back(ends: Ends) -> None:
    ends.fabric.held = True
    for number in range(DEPTH):
        await ends.write(number)
    late = asyncio.create_task(ends.write(DEPTH))
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert ends.back[DEPTH] == 1
    # Its turn is another's.
    ends.fabric.held = False
    ends.pair.go_on()
    assert await (await ends.write(9)) is None


async def test_a_client_that_is_gone_is_noticed(ends: Ends) -> None:
    assert await (await ends.line.knock()).over is None
    ends.other.close()
    found = await (await ends.line.knock()).over
    assert found is not None
    assert "does not answer" in found
    assert ends.line.failure == found
