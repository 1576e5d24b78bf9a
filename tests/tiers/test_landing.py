"""Chunks landing: received into memory, written behind it, readable all the while."""

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import TierFull, TierUnavailable
from gateway.model.objects import Span
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier, Landing
from tests.tiers.cached import (
    CHUNK_BYTES,
    KIB,
    cache_config,
    chunks,
    content,
    get,
    get_span,
    opened,
    sample,
    version,
)
from tests.waiting import until

PIECE_BYTES = 64 * KIB


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four pieces a chunk, eight in all."""
    monkeypatch.setattr("gateway.tiers.disk._PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr("gateway.tiers.disk._PIECES_BYTES", 8 * PIECE_BYTES)
    monkeypatch.setattr("gateway.tiers.landing._WRITE_BYTES", PIECE_BYTES)


@pytest.fixture
async def tier(tmp_path: Path) -> AsyncIterator[DiskTier]:
    async with opened(cache_config(tmp_path)) as tier:
        yield tier


def body(span: Span) -> bytes:
    return content(span.version)[span.start : span.stop]


async def receive(landing: Landing, data: bytes, piece_bytes: int = PIECE_BYTES) -> None:
    """The next bytes come in, at most `piece_bytes` at a time."""
    while data:
        space = await landing.space()
        size_bytes = min(len(space), len(data), piece_bytes)
        space[:size_bytes] = data[:size_bytes]
        landing.received(size_bytes)
        data = data[size_bytes:]
        del space


async def land(tier: DiskTier, span: Span) -> Landing:
    landing = await tier.land(span.size_bytes)
    await receive(landing, body(span))
    await landing.commit(span)
    return landing


async def read_all(landing: Landing) -> bytes:
    data = b""
    while block := await landing.read(len(data), 100_000):
        data += bytes(block)
    return data


async def test_what_has_come_is_readable_at_once_and_from_memory(tier: DiskTier) -> None:
    span = chunks(version("one", CHUNK_BYTES))[0]
    landing = await tier.land(span.size_bytes)
    assert landing.read_now(0, 10) is None
    assert await landing.read(0, 10) == b""
    await receive(landing, body(span)[:1000])
    assert landing.read_now(990, 500) == body(span)[990:1000]
    assert landing.read_now(1000, 500) is None
    await receive(landing, body(span)[1000:])
    assert await read_all(landing) == body(span)
    await landing.commit(span)
    assert await read_all(landing) == body(span)
    assert await get_span(tier, span) == body(span)


async def test_a_read_is_a_view_while_memory_is_ample_and_a_copy_where_it_is_not(
    tier: DiskTier,
) -> None:
    span = chunks(version("one", CHUNK_BYTES))[0]
    landing = await tier.land(span.size_bytes)
    await receive(landing, body(span)[: 2 * PIECE_BYTES])
    assert isinstance(landing.read_now(0, 100), memoryview)
    await receive(landing, body(span)[2 * PIECE_BYTES :])
    other = await tier.land(CHUNK_BYTES)
    await receive(other, body(span)[:1000])
    assert isinstance(landing.read_now(0, 100), bytes)
    await landing.discard()
    await other.discard()


async def test_what_memory_no_longer_has_is_read_from_the_file(tier: DiskTier) -> None:
    one, two = (chunks(version(key, CHUNK_BYTES))[0] for key in ("one", "two"))
    first = await tier.land(CHUNK_BYTES)
    await receive(first, body(one)[: 3 * PIECE_BYTES])
    await until(lambda: first._written_bytes == 3 * PIECE_BYTES)
    second = await tier.land(CHUNK_BYTES)
    await receive(second, body(two))
    third = await tier.land(CHUNK_BYTES)
    await receive(third, body(two)[: 2 * PIECE_BYTES])
    # Nine pieces are wanted and there are eight: the longest written one was taken back.
    assert first.read_now(0, 10) is None
    assert await first.read(10, 100) == body(one)[10:110]
    assert first.read_now(2 * PIECE_BYTES, 10) is not None
    await receive(first, body(one)[3 * PIECE_BYTES :])
    assert await read_all(first) == body(one)
    await first.commit(one)
    assert await get_span(tier, one) == body(one)
    for landing in (second, third):
        await landing.discard()


async def test_what_memory_had_outlives_the_naming_and_the_files_name_is_never_needed_again(
    tier: DiskTier, tmp_path: Path
) -> None:
    span = chunks(version("one", CHUNK_BYTES))[0]
    landing = await land(tier, span)
    assert not list((tmp_path / "tmp").iterdir())
    assert await read_all(landing) == body(span)
    # Push its pieces out: the landing itself can then give nothing more, the tier can.
    others = [await land(tier, chunks(version(f"o{n}", CHUNK_BYTES))[0]) for n in range(2)]
    assert landing.read_now(0, 1) is None
    with pytest.raises(TierUnavailable):
        await landing.read(0, 1)
    assert not list((tmp_path / "tmp").iterdir())
    assert await get_span(tier, span) == body(span)
    assert others


async def test_reading_while_the_file_gets_its_name_is_told_to_look_again(
    tier: DiskTier, tmp_path: Path
) -> None:
    """The pieces are gone and the file has just been renamed: no second file, no broken disk."""
    span = chunks(version("one", CHUNK_BYTES))[0]
    landing = await tier.land(CHUNK_BYTES)
    await receive(landing, body(span))
    await until(lambda: landing._written_bytes == CHUNK_BYTES)
    others = [await tier.land(CHUNK_BYTES) for _ in range(2)]
    for other in others:
        await receive(other, body(span)[:-PIECE_BYTES])
    assert landing.read_now(0, 1) is None
    committing = asyncio.create_task(landing.commit(span))
    ends = []
    while not committing.done():
        try:
            ends.append(bytes(await landing.read(0, 10)) == body(span)[:10])
        except TierUnavailable:
            ends.append(True)
        await asyncio.sleep(0)
    await committing
    assert all(ends)
    assert tier.accepting
    for other in others:
        await other.discard()
    assert not list((tmp_path / "tmp").iterdir())


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    size=st.integers(SMALL := 64 * KIB + 1, CHUNK_BYTES)
    | st.sampled_from([SMALL + 1, CHUNK_BYTES, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 1]),
    piece=st.integers(1000, 2 * PIECE_BYTES),
    direct=st.booleans(),
)
async def test_chunks_of_any_size_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, size: int, piece: int, direct: bool
) -> None:
    path = tmp_path_factory.mktemp("cache")
    one = version("one", size)
    async with opened(cache_config(path)) as tier:
        assert tier._holding is not None
        tier._holding.staging.direct = direct
        landing = await tier.land(size)
        await receive(landing, content(one), piece)
        await landing.commit(chunks(one)[0])
        del landing
        assert await get(tier, one) == content(one)
    (file,) = (path / "chunks").glob("*/*")
    assert file.stat().st_size == size
    async with opened(cache_config(path)) as tier:
        assert await get(tier, one) == content(one)


async def test_small_writes_are_put_together_while_there_is_memory(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.tiers.landing._WRITE_BYTES", 2 * PIECE_BYTES)
    sizes = []
    pwritev = os.pwritev

    def counting_pwritev(descriptor: int, views: list[memoryview], offset: int) -> int:
        sizes.append(sum(map(len, views)))
        return pwritev(descriptor, views, offset)

    monkeypatch.setattr(os, "pwritev", counting_pwritev)
    span = chunks(version("one", CHUNK_BYTES - 7))[0]
    landing = await tier.land(span.size_bytes)
    for start in range(0, span.size_bytes, PIECE_BYTES):
        await receive(landing, body(span)[start : start + PIECE_BYTES])
        await until(lambda: landing._running is None)
    await landing.commit(span)
    # From the fifth piece on, half the pool is not left any more.
    assert sizes[0] == 2 * PIECE_BYTES
    assert sum(sizes) == CHUNK_BYTES
    assert await get_span(tier, span) == body(span)


async def test_what_was_put_off_is_written_when_memory_gets_short(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four chunks stand still with a full piece each, which a fifth one needs."""
    monkeypatch.setattr("gateway.tiers.landing._WRITE_BYTES", CHUNK_BYTES)
    still = [await tier.land(CHUNK_BYTES) for _ in range(4)]
    for landing in still:
        await receive(landing, bytes(PIECE_BYTES))
    assert not any(landing._written_bytes for landing in still)
    span = chunks(version("one", CHUNK_BYTES))[0]
    async with asyncio.timeout(60):
        moving = [await tier.land(CHUNK_BYTES) for _ in range(2)]
        for landing in moving:
            await receive(landing, body(span))
    for landing in still + moving:
        await landing.discard()


@pytest.mark.parametrize("where", ["open", "write"])
async def test_a_file_system_without_direct_writes_gets_plain_ones(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    open_, pwritev = os.open, os.pwritev
    direct: set[int] = set()

    def refusing_open(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if where == "open" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "told to")
        descriptor = open_(path, flags, *rest, **more)
        (direct.add if flags & os.O_DIRECT else direct.discard)(descriptor)
        return descriptor

    def refusing_pwritev(descriptor: int, *rest: Any) -> int:
        if descriptor in direct:
            raise OSError(errno.EINVAL, "told to")
        return pwritev(descriptor, *rest)

    monkeypatch.setattr(os, "open", refusing_open)
    monkeypatch.setattr(os, "pwritev", refusing_pwritev)
    for number in range(2):
        span = chunks(version(f"odd-{number}", CHUNK_BYTES - 5))[0]
        await land(tier, span)
        assert await get_span(tier, span) == body(span)
    assert tier.accepting


async def test_short_writes_are_gone_on_with(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: pwritev(fd, [views[0][:8192]], at))
    span = chunks(version("one", CHUNK_BYTES - 100))[0]
    await land(tier, span)
    assert await get_span(tier, span) == body(span)


async def test_a_full_disk_takes_nothing_more_and_what_had_come_stays_readable(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "told to")

    span = chunks(version("one", CHUNK_BYTES))[0]
    empty = tier.usage().bytes
    landing = await tier.land(CHUNK_BYTES)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        await receive(landing, body(span)[: PIECE_BYTES + 100])
        await until(lambda: not tier.accepting)
        with pytest.raises(TierFull):
            await landing.space()
        assert await read_all_now(landing, PIECE_BYTES + 100) == body(span)[: PIECE_BYTES + 100]
        await landing.discard()
    assert not list((tmp_path / "tmp").iterdir())
    await until(lambda: tier.usage().bytes == empty)


async def read_all_now(landing: Landing, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        block = landing.read_now(len(data), size_bytes)
        assert block is not None
        data += bytes(block)
    return data


async def test_a_disk_that_refuses_the_last_piece_is_told_at_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    async with opened(cache_config(tmp_path), metrics) as tier:
        span = chunks(version("one", CHUNK_BYTES))[0]
        landing = await tier.land(CHUNK_BYTES)
        with monkeypatch.context() as patched:

            def broken(*_: Any) -> int:
                raise OSError(errno.EIO, "told to")

            await receive(landing, body(span)[:-1])
            patched.setattr(os, "pwritev", broken)
            await receive(landing, body(span)[-1:])
            with pytest.raises(TierUnavailable):
                await landing.commit(span)
            await landing.discard()
        assert await get_span(tier, span) is None
        assert sample(metrics, "feedrack_cache_unkept_total", reason="io-error") == 1


async def test_no_descriptor_left_is_no_fault_of_the_disk(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = await tier.land(CHUNK_BYTES)
    open_ = os.open

    def none_left(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_WRONLY:
            raise OSError(errno.EMFILE, "told to")
        return open_(path, flags, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", none_left)
        await receive(landing, bytes(PIECE_BYTES))
        await until(lambda: landing._running is None)
        with pytest.raises(TierUnavailable):
            await landing.space()
        await landing.discard()
    assert tier.accepting


@pytest.mark.parametrize("received", [0, 1000, PIECE_BYTES, CHUNK_BYTES])
async def test_discarding_leaves_nothing_at_any_moment(
    tier: DiskTier, tmp_path: Path, received: int
) -> None:
    empty = tier.usage().bytes
    landing = await tier.land(CHUNK_BYTES)
    await receive(landing, bytes(received))
    await asyncio.gather(landing.discard(), landing.discard())
    await landing.discard()
    assert not list((tmp_path / "tmp").iterdir())
    await until(lambda: tier.usage().bytes == empty)
    with pytest.raises(TierUnavailable):
        await landing.space()
    # All memory is back.
    del landing
    await until(lambda: tier._pieces.lent_bytes == 0)


async def test_committing_what_is_held_already_changes_nothing(tier: DiskTier) -> None:
    span = chunks(version("one", CHUNK_BYTES))[0]
    await land(tier, span)
    before = tier.usage()
    await land(tier, span)
    await until(lambda: tier.usage() == before)
    assert await get_span(tier, span) == body(span)


async def test_a_chunk_that_is_not_whole_is_not_committed(tier: DiskTier) -> None:
    span = chunks(version("one", CHUNK_BYTES))[0]
    landing = await tier.land(CHUNK_BYTES)
    await receive(landing, body(span)[:-1])
    with pytest.raises(ValueError, match="size"):
        await landing.commit(span)
    await landing.discard()


async def test_many_chunks_land_in_little_memory(tier: DiskTier) -> None:
    """Sixteen at once in a pool for two, each followed by two readers."""
    rng = random.Random(1)
    spans = [chunks(version(f"k{n}", CHUNK_BYTES - n))[0] for n in range(16)]

    async def fill(span: Span) -> None:
        landing = await tier.land(span.size_bytes)

        async def follow() -> None:
            data = b""
            while len(data) < span.size_bytes:
                block = landing.read_now(len(data), 10_000)
                if block is None and landing.received_bytes > len(data):
                    try:
                        block = await landing.read(len(data), 10_000)
                    except TierUnavailable:
                        return
                data += bytes(block or b"")
                assert body(span).startswith(data)
                await asyncio.sleep(0)

        followers = [asyncio.create_task(follow()) for _ in range(2)]
        await receive(landing, body(span), rng.randrange(5000, 100_000))
        await landing.commit(span)
        await asyncio.gather(*followers)

    async with asyncio.timeout(60):
        await asyncio.gather(*(fill(span) for span in spans))
    for span in spans:
        assert await get_span(tier, span) == body(span)
