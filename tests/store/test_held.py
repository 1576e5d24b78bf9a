"""Reads of what is held: what they answer, `ObjectService` answers; what they cannot, they leave
without a trace."""

import asyncio
import os
import random
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config import BucketConfig
from gateway.errors import InvalidRange, NotModified, PreconditionFailed, S3Error
from gateway.index.records import chunk_key
from gateway.model.body import BytesBody
from gateway.model.conditions import UNCONDITIONAL, UNCONDITIONAL_WRITE, Conditions
from gateway.model.objects import KnownObject, ObjectRef, ObjectVersion, known_object
from gateway.model.ranges import RangeSpec
from gateway.store.buckets import Bucket
from gateway.store.held import HeldReads
from gateway.store.reading import ReadAnswer
from gateway.tiers.protocol import FileRegion
from tests.store.gated import CHUNK_BYTES, SMALL_BYTES, Bench
from tests.waiting import until

_CHANCE = random.Random(4)
OBJECTS = {
    "empty": b"",
    "one": b"x",
    "small": _CHANCE.randbytes(5000),
    "packed": _CHANCE.randbytes(SMALL_BYTES),
    "chunked": _CHANCE.randbytes(SMALL_BYTES + 1),
    "large": _CHANCE.randbytes(3 * CHUNK_BYTES + 12_345),
}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """A service that holds OBJECTS on its disk."""
    async with Bench(tmp_path, others={"strict": BucketConfig(freshness_seconds=0)}) as made:
        for key, body in OBJECTS.items():
            await _put(made, key, body)
        await _on_disk(made)
        yield made
        assert _users(made) == 0


async def _put(bench: Bench, key: str, body: bytes) -> None:
    await bench.service.put("train", key, BytesBody(body), {}, UNCONDITIONAL_WRITE)


async def _on_disk(bench: Bench) -> None:
    holding = bench.disk._holding
    assert holding is not None
    await holding.small.log.flush()


def _users(bench: Bench) -> int:
    """How many readers the cache's files have."""
    holding = bench.disk._holding
    assert holding is not None
    return sum(file.users for file in holding.files._files.values())


def _train(bench: Bench) -> Bucket:
    return bench.service.bucket("train")


async def _bytes_of(answer: ReadAnswer, *, files: bool = False) -> bytes:
    found = bytearray()
    async for piece in answer.pieces(files=files):
        if isinstance(piece, FileRegion):
            found += os.pread(piece.descriptor, piece.size_bytes, piece.offset)
        else:
            found += piece
    return bytes(found)


async def _told(reading: Any) -> Any:
    """What an answer tells, its bytes included; or the error it is."""
    try:
        answer = reading if isinstance(reading, ReadAnswer) else await reading
    except S3Error as error:
        return type(error), error.headers
    try:
        await answer.begin(files=False)
        body = await _bytes_of(answer)
    finally:
        await answer.close()
    return answer.info, answer.range, answer.partial, answer.part, answer.tier, body


@pytest.mark.parametrize("files", [False, True])
async def test_what_is_held_is_answered_as_the_service_answers_it(
    bench: Bench, *, files: bool
) -> None:
    seed = secrets.randbits(32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    infos = {key: (await bench.service.head("train", key)).info for key in OBJECTS}
    bench.origin.calls.clear()
    for _ in range(150):
        key = chance.choice([*OBJECTS])
        size, info = len(OBJECTS[key]), infos[key]
        places = [0, 1, size // 2, size - 1, size, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES]
        first = max(0, chance.choice(places))
        last = chance.choice([None, first, first + 10, first + 300_000])
        how: dict[str, Any] = {
            "wanted": chance.choice(
                [None, RangeSpec(first, last), RangeSpec(None, chance.choice([1, size + 1, 0]))]
            ),
            "conditions": chance.choice(
                [
                    UNCONDITIONAL,
                    UNCONDITIONAL,
                    Conditions(if_match=(info.etag,)),
                    Conditions(if_match=("other",)),
                    Conditions(if_none_match=(info.etag,)),
                    Conditions(if_modified_since=info.last_modified_ms // 1000),
                    Conditions(if_unmodified_since=info.last_modified_ms // 1000 - 5),
                ]
            ),
        }
        try:
            ours: Any = bench.service.held.get(_train(bench), key, **how, files=files)
        except S3Error as error:
            ours = type(error), error.headers
        assert ours is not None, (key, how)
        if isinstance(ours, ReadAnswer):
            whole = ours.whole
            ours = await _told(ours)
            if whole is not None and not isinstance(whole, FileRegion):
                assert bytes(whole) == ours[-1]
        assert ours == await _told(bench.service.get("train", key, **how)), (key, how)
        try:
            head: Any = bench.service.held.head(_train(bench), key, **how)
        except S3Error as error:
            head = type(error), error.headers
        theirs = await _told(bench.service.head("train", key, **how))
        assert (await _told(head) if isinstance(head, ReadAnswer) else head) == theirs, (key, how)
        assert _users(bench) == 0
    assert not bench.origin.calls


async def test_what_takes_more_than_the_disk_is_left_alone(bench: Bench) -> None:
    held, train = bench.service.held, _train(bench)
    bench.origin.calls.clear()
    assert held.get(train, "unheard of") is None
    assert held.head(train, "unheard of") is None
    assert held.get(train, "small", part_number=1) is None
    assert held.head(train, "small", part_number=1) is None
    assert held.get(train, "small", version_id="unheard of") is None
    bench.seconds += 3601
    assert held.get(train, "small") is None
    assert held.head(train, "small") is None
    assert not bench.origin.calls


async def test_what_must_always_be_asked_for_is_never_held(bench: Bench) -> None:
    await bench.service.create_bucket("strict")
    await bench.service.put("strict", "k", BytesBody(b"x"), {}, UNCONDITIONAL_WRITE)
    strict = bench.service.bucket("strict")
    assert bench.service.held.get(strict, "k") is None
    assert bench.service.held.head(strict, "k") is None


async def test_checksums_that_nobody_has_asked_for_yet_are_asked_for(bench: Bench) -> None:
    def believed(bucket: Bucket, ref: ObjectRef) -> KnownObject | None:
        known = bench.service._believed(bucket, ref)
        if known is None:
            return None
        return known_object(ref, msgspec.structs.replace(known.info, checksums_known=False))

    train = _train(bench)
    held = HeldReads(
        believed, bench.disk.holds, bench.service._source, chunk_size_bytes=CHUNK_BYTES
    )
    assert held.get(train, "small", checksums=True) is None
    assert held.head(train, "small", checksums=True) is None
    # An answer in part has none of them.
    part = held.get(train, "small", checksums=True, wanted=RangeSpec(0, 9))
    whole = bench.service.held.get(train, "small", checksums=True)
    for answer in (part, whole, held.get(train, "small")):
        assert answer is not None
        answer.release()


async def test_nothing_is_believed_while_a_write_is_under_way(bench: Bench) -> None:
    held, train = bench.service.held, _train(bench)
    before = held.get(train, "small")
    assert before is not None
    bench.origin.write_gate.clear()
    writing = asyncio.create_task(_put(bench, "small", b"new"))
    while bench.origin.calls["put"] < len(OBJECTS) + 1:
        await asyncio.sleep(0)
    assert held.get(train, "small") is None
    assert held.head(train, "small") is None
    # What had begun before goes on with what it began with.
    assert await _bytes_of(before) == OBJECTS["small"]
    await before.close()
    bench.origin.write_gate.set()
    await writing
    after = held.get(train, "small")
    assert after is not None
    assert after.whole == b"new"
    after.release()


async def test_a_wrong_range_or_condition_opens_nothing(bench: Bench) -> None:
    held, train = bench.service.held, _train(bench)
    etag = (await bench.service.head("train", "large")).info.etag
    with pytest.raises(InvalidRange):
        held.get(train, "large", wanted=RangeSpec(len(OBJECTS["large"]), None))
    with pytest.raises(NotModified):
        held.get(train, "large", conditions=Conditions(if_none_match=(etag,)))
    with pytest.raises(PreconditionFailed):
        held.get(train, "large", conditions=Conditions(if_match=("other",)))
    assert _users(bench) == 0


def _chunk(bench: Bench, version: ObjectVersion, number: int) -> Path:
    holding = bench.disk._holding
    assert holding is not None
    return holding.chunks.path(chunk_key(version.digest, number))


async def _version(bench: Bench, key: str) -> ObjectVersion:
    info = (await bench.service.head("train", key)).info
    return ObjectVersion(_train(bench).ref(key), info.etag, info.size_bytes)


@pytest.mark.parametrize("number", [0, 2])
async def test_a_damaged_chunk_is_found_and_the_answer_is_right_all_the_same(
    bench: Bench, number: int
) -> None:
    with _chunk(bench, await _version(bench, "large"), number).open("r+b") as file:
        file.write(bytes(100))
    answer = bench.service.held.get(_train(bench), "large", files=True)
    if number == 0:
        assert answer is None
        assert await bench.read("large") == OBJECTS["large"]
    else:
        assert answer is not None
        assert await _bytes_of(answer, files=True) == OBJECTS["large"]
        await answer.close()
    assert _users(bench) == 0
    await until(lambda: not bench.service.fills())
    again = bench.service.held.get(_train(bench), "large", files=True)
    assert again is not None
    assert await _bytes_of(again, files=True) == OBJECTS["large"]
    await again.close()


async def test_who_can_ask_nobody_else_needs_every_chunk(bench: Bench) -> None:
    service = bench.service
    held = HeldReads(
        service._believed,
        bench.disk.holds,
        service._source,
        chunk_size_bytes=CHUNK_BYTES,
        whole_only=True,
    )
    train = _train(bench)
    version = await _version(bench, "large")
    answer = held.get(train, "large")
    assert answer is not None
    assert await _bytes_of(answer) == OBJECTS["large"]
    await answer.close()
    holding = bench.disk._holding
    assert holding is not None
    holding.chunks.drop(chunk_key(version.digest, 2))
    assert held.get(train, "large") is None
    assert held.get(train, "large", wanted=RangeSpec(2 * CHUNK_BYTES, 2 * CHUNK_BYTES)) is None
    first = held.get(train, "large", wanted=RangeSpec(0, 2 * CHUNK_BYTES - 1))
    assert first is not None
    assert await _bytes_of(first) == OBJECTS["large"][: 2 * CHUNK_BYTES]
    await first.close()
    # The keeper of the cache itself can go on from the origin.
    other = service.held.get(train, "large")
    assert other is not None
    assert await _bytes_of(other) == OBJECTS["large"]
    await other.close()
    assert _users(bench) == 0
